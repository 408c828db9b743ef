# shufflebandit: `make help` lists what can be done. Nothing but Python 3.11+ is needed to begin.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
MINUTES ?= 3
INPUTS ?= 1000000
SEED ?=
.DEFAULT_GOAL := help

.PHONY: help install kafka prometheus browser demo demo-web observe dashboard reference test chaos fuzz test-minimum audit-dependencies lint soak overload evidence bench clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

install: $(VENV)/.installed ## create .venv and install the project with its development tools

kafka: install ## fetch the local Kafka (needs Java 17 and Maven; installs them with apt where it may)
	@deploy/ensure java maven
	@$(BIN)/shufflebandit broker --fetch-only

demo: kafka ## run the whole thing with a live view; ARGS="--preset vb-sdp-ae" for the paper's own algorithm
	@$(BIN)/shufflebandit demo $(ARGS)

demo-web: kafka ## a shop page to try in a browser: it adds the noise before anything leaves it
	@$(BIN)/shufflebandit demo-web $(ARGS)

prometheus: ## install Prometheus, where it may
	@deploy/ensure prometheus || true

observe: kafka prometheus ## keep the demo running with Prometheus, and Grafana where it is installed
	@$(BIN)/shufflebandit observe $(ARGS)

dashboard: install ## write Grafana's dashboard anew
	@$(BIN)/python deploy/grafana/generate.py

reference: install ## write the tables of settings and metrics anew
	@$(BIN)/python deploy/reference.py

browser: ## install a Chromium for the tests of the web pages, where it may
	@deploy/ensure chromium || true

test: kafka prometheus browser lint ## lint, then run every test
	$(BIN)/pytest -q -n 2 tests/core -m "not slow" --cov=stream_app.core --cov-report=term --cov-fail-under=95 $(ARGS)
	$(BIN)/pytest -q -n 2 tests/core -m slow $(ARGS)
	$(BIN)/pytest -q -n 2 --dist loadfile tests --ignore tests/core $(ARGS)

chaos: kafka ## kill, freeze and restart everything for MINUTES minutes, then audit; SEED=n replays a schedule
	$(BIN)/python -m tests.integration.chaos.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

fuzz: kafka ## write INPUTS bad records to every topic beside real experiments, then audit; SEED=n draws the same ones
	$(BIN)/python -m tests.integration.fuzz.fuzz --inputs $(INPUTS) $(if $(SEED),--seed $(SEED))

test-minimum: ## run the fast tests with the lowest versions of all dependencies, in an environment of its own
	$(PYTHON) -m venv .cache/minimum
	$(PYTHON) tests/minimum.py > .cache/minimum/constraints.txt
	.cache/minimum/bin/pip install --quiet --disable-pip-version-check -c .cache/minimum/constraints.txt --editable '.[plot,replay]' hypothesis mpmath pytest pytest-asyncio pytest-cov pytest-timeout pyyaml selenium
	.cache/minimum/bin/pytest -q -m "not slow and not kafka" tests/core tests/runtime tests/shuffler tests/agent tests/producers tests/metrics tests/wire tests/kafka/test_record_batches.py tests/kafka/test_aiokafka_patch.py $(ARGS)

audit-dependencies: install ## look up known vulnerabilities of what is installed; says so where it cannot
	@test -x .cache/audit/bin/pip-audit || { $(PYTHON) -m venv .cache/audit && .cache/audit/bin/pip install --quiet --disable-pip-version-check pip-audit; }
	@$(BIN)/pip freeze --exclude-editable > .cache/audit/installed.txt
	@found=$$(.cache/audit/bin/pip-audit --strict --disable-pip --no-deps -r .cache/audit/installed.txt 2>&1); code=$$?; \
	case "$$found" in \
		*"could not be audited"*|*"onnection"*|*"imeout"*) echo "audit-dependencies: nothing checked, the vulnerability service cannot be reached from here" >&2; exit 3;; \
		*) echo "$$found" | grep -v WARNING; exit $$code;; \
	esac

lint: install ## ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

soak: kafka ## half an hour at a steady rate (MINUTES=n): memory must stay flat, every report be counted
	$(BIN)/python -m tests.integration.load soak $(if $(filter command line,$(origin MINUTES)),--minutes $(MINUTES)) $(ARGS)

overload: kafka ## MINUTES minutes of more reports than the service can take: it must catch up and lose none
	$(BIN)/python -m tests.integration.load overload --minutes $(MINUTES) $(ARGS)

evidence: kafka ## the long forms of the attacks (an hour and a half); writes what they showed to tests/RESULTS.md; ARGS="chaos fuzz" for some
	$(BIN)/python -m tests.evidence $(ARGS)

bench: kafka ## run the benchmarks (20 minutes; fails where an aim is missed): ratios against peers, JSON and pictures; ARGS="stage core" for some
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[bench]'
	$(BIN)/python -m tests.benchmarks $(ARGS)

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache build dist *.egg-info
