"""Writes the reference tables of settings and metrics into their documents.

`python deploy/reference.py` writes, `--check` only compares. The types are the source: an option's
words are the comment lines directly above its field (its class's docstring if it has none), a
metric's are its help text. A table stands between two marker comments; the text around it is not
touched. Must not know what any option or metric means.
"""

import ast
import dataclasses
import enum
import inspect
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from prometheus_client.metrics_core import Metric

from stream_app.metrics.edge import EdgeMetrics
from stream_app.metrics.experiments import ExperimentCollector
from stream_app.metrics.instruments import ACCEPTED, Metrics
from stream_app.settings import MetricsSettings, Settings

HERE = Path(__file__).parent
_OURS = "shufflebandit_"
# A bucket's bound is no label of ours: every histogram has it.
_BOUND = "le"


def section_types() -> dict[str, type]:
    """Every section of the settings and the dataclass of its options."""
    sections: dict[str, type] = {}
    for section in dataclasses.fields(Settings):
        assert isinstance(section.default_factory, type)
        sections[section.name] = section.default_factory
    return sections


def field_comments(owner: type) -> dict[str, str]:
    """The comment lines directly above each field of a dataclass, as one line."""
    source = inspect.getsource(owner)
    lines = source.splitlines()
    (made,) = ast.parse(source).body
    assert isinstance(made, ast.ClassDef)
    found = {}
    for node in made.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            above = _comment_above(lines, node.lineno - 1)
            if above:
                found[node.target.id] = above
    return found


def _comment_above(lines: list[str], index: int) -> str:
    words: list[str] = []
    while index > 0 and lines[index - 1].lstrip().startswith("#"):
        index -= 1
        words.insert(0, lines[index].strip().lstrip("#").strip())
    return " ".join(words)


def settings_table() -> str:
    """Every option of every section."""
    rows = []
    for section, owner in section_types().items():
        comments = field_comments(owner)
        for option in dataclasses.fields(owner):
            words = comments.get(option.name) or inspect.cleandoc(owner.__doc__ or "")
            variable = f"SHUFFLEBANDIT_{section}_{option.name}".upper()
            names = (f"`{section}`", f"`{option.name}`", f"`{variable}`")
            rows.append((*names, _default(option.default), words))
    return _table(("section", "option", "environment variable", "default", "what it is"), rows)


def _default(value: object) -> str:
    """A default as a TOML file would have it; nothing for an empty text."""
    match value:
        case "":
            return ""
        case bool():
            return f"`{str(value).lower()}`"
        case int() | float():
            return f"`{value:_.0f}`" if value >= 10_000 else f"`{value:g}`"
        case Decimal():
            return f"`{value:f}`"
        case enum.Enum():
            return f"`{value.value}`"
        case _:
            return f"`{value}`"


class _OneExperiment:
    """A view with one experiment of one arm: every family of its metrics then has a sample."""

    invalid = 0

    def __init__(self) -> None:
        arm: dict[str, Any] = defaultdict(int, {"name": "", "history": []})
        self._snapshot: dict[str, Any] = defaultdict(int, {"name": "", "arms": [arm]})

    def experiments(self) -> list[dict[str, Any]]:
        """All of them."""
        return [self._snapshot]

    def snapshot(self, _name: str) -> dict[str, Any]:
        """The only one."""
        return self._snapshot


def metric_families() -> Iterator[Metric]:
    """Every metric of the project, with at least one sample to tell its labels."""
    metrics = Metrics()
    for stage in ("shuffle", "agent"):
        metrics.stage(stage).lag(0, 0)
    edge = EdgeMetrics()
    edge.requests[200] += 1
    edge.reports[ACCEPTED, ""] += 1
    metrics.registry.register(edge)
    metrics.registry.register(ExperimentCollector(_OneExperiment(), MetricsSettings()))
    for family in metrics.registry.collect():
        if family.name.startswith(_OURS):
            yield family


def metrics_table() -> str:
    """Every metric, as the text format names it."""
    rows = []
    for family in metric_families():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = ", ".join(label for label in family.samples[0].labels if label != _BOUND)
        rows.append((f"`{name}`", family.type, labels, family.documentation))
    return _table(("metric", "type", "labels", "what it tells"), rows)


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(header)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in x)} |" for x in lines)


TABLES: dict[str, tuple[Path, Callable[[], str]]] = {
    "settings": (HERE / "OPERATING.md", settings_table),
    "metrics": (HERE / "MONITORING.md", metrics_table),
}


def with_table(document: str, name: str, table: str) -> str:
    """The document with this table between the markers of that name."""
    begin = f"<!-- {name}: begin -->"
    end = f"<!-- {name}: end -->"
    before, opened, rest = document.partition(begin)
    _, closed, after = rest.partition(end)
    if not opened or not closed:
        raise ValueError(f"no {begin} with {end} after it")
    return f"{before}{begin}\n{table}\n{end}{after}"


def main() -> None:
    """Write or compare."""
    for name, (file, render) in TABLES.items():
        present = file.read_text(encoding="utf-8")
        current = with_table(present, name, render())
        if "--check" not in sys.argv:
            file.write_text(current, encoding="utf-8")
        elif present != current:
            sys.exit(f"{file}: the table of {name} is not current; write it with: make reference")


if __name__ == "__main__":
    main()
