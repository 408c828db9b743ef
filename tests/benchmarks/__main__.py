"""`python -m tests.benchmarks [FILTER]`: run them, print ratios, write JSON."""

import dataclasses
import json
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.benchmarks import core, gateway, metrics, replay

MODULES = (core, metrics, replay, gateway)


def main() -> None:
    table = Table(
        title=f"ratios ours / peer, medians, {os.cpu_count()} cores", title_justify="left"
    )
    for heading in ("what", "against", "peer", "ours", "ratio", "at most", ""):
        table.add_column(heading)
    results = []
    for module in MODULES:
        for outcome in module.outcomes():
            results.append({**dataclasses.asdict(outcome), "ratio": outcome.ratio})
            table.add_row(
                outcome.name, outcome.peer, f"{outcome.peer_cost:.4g}", f"{outcome.our_cost:.4g}",
                f"{outcome.ratio:.3g}", f"{outcome.target:g}", "" if outcome.reached else "missed",
            )  # fmt: skip
    Console(width=160).print(table)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(results, indent=2))


main()
