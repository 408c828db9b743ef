"""`python -m tests.benchmarks [NAME ...]`: run the benchmarks, print their ratios.

Without names, all of them; then also the results as JSON and their pictures, in deploy/figures.
Broker, clients and workers share this machine's cores.
"""

import dataclasses
import json
import logging
import os
import platform
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.benchmarks import pictures, scaling
from tests.benchmarks.harness import Outcome, measured

MODULES = ("core", "stage", "client", "latency", "scale", "metrics", "replay", "gateway")
FIGURES = Path(__file__).parents[2] / "deploy" / "figures"


def main() -> None:
    """Each line as soon as it is known, then the table. Fails if an aim is missed."""
    logging.disable(logging.WARNING)  # as in `measured`, for the curves
    names = sys.argv[1:] or [*MODULES, "scaling"]
    chosen = [name for name in names if name in MODULES]
    # Each in a process of its own: what one leaves behind in memory must not slow the next.
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        outcomes = [outcome for found in pool.map(measured, chosen) for outcome in found]
    _show(outcomes)
    curves = scaling.curves() if "scaling" in names else []
    if len(sys.argv) == 1:
        results = [{**dataclasses.asdict(o), "ratio": o.ratio} for o in outcomes]
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        text = json.dumps({"machine": machine, "outcomes": results, "curves": curves}, indent=1)
        (FIGURES / "benchmarks.json").write_text(text + "\n")
        pictures.draw(json.loads(text), FIGURES)
    missed = [outcome for outcome in outcomes if not outcome.reached]
    if missed:
        sys.exit(f"bench: {len(missed)} of {len(outcomes)} aims missed")


def _show(outcomes: list[Outcome]) -> None:
    title = f"ratios ours / peer, medians; broker and programs share {os.cpu_count()} cores"
    table = Table(title=title, title_justify="left")
    for heading in ("what", "against", "peer", "ours", "ratio", "of a round", "at most", ""):
        table.add_column(heading)
    for o in outcomes:
        costs = (f"{o.peer_cost:.4g}", f"{o.our_cost:.4g}", f"{o.ratio:.3g}")
        spread = " to ".join(f"{ratio:.3g}" for ratio in o.spread or ())
        table.add_row(o.name, o.peer, *costs, spread, f"{o.target:.3g}", o.verdict)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
