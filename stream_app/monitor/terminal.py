"""The live view on a terminal: an experiment's snapshot as a table, or as one plain line.

Shows what the monitor's view knows, which is public. Knows no Kafka and no clock.
"""

from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

# Columns of an interval's line: the whole table then fits into 80 with names of ordinary length.
_BAR = 44


def render(shown: dict[str, Any], note: str = "") -> RenderableType:
    """An experiment as a table: arms with their confidence intervals, phase, users, regret."""
    arms = shown["arms"]
    low = min(arm["lower"] for arm in arms)
    high = max(arm["upper"] for arm in arms)
    table = Table(box=None, pad_edge=False, title_justify="left")
    for heading in ("arm", "", "users", "mean"):
        table.add_column(heading, justify="right" if heading in ("users", "mean") else "left")
    table.add_column(f"confidence interval, {low:.2f} to {high:.2f}", width=_BAR, no_wrap=True)
    for arm in arms:
        winner = arm["name"] == shown["serve"]
        state = "serve" if winner else "viable" if arm["viable"] else "out"
        style = "bold green" if winner else "" if arm["viable"] else "dim"
        table.add_row(
            escape(arm["name"]),
            state,
            f"{arm['users']:,}",
            "-" if arm["mean"] is None else f"{arm['mean']:.3f}",
            bar(arm, low, high),
            style=style,
        )
    return Group(Text(headline(shown)), table, Text(note, style="dim"))


def headline(shown: dict[str, Any]) -> str:
    """State, phase, users and regret in one line."""
    regret = shown["true_regret"]
    kind = "regret" if regret is not None else "estimated regret"
    regret = shown["estimated_regret"] if regret is None else regret
    served = f", serve {shown['serve']!r}" if shown["serve"] is not None else ""
    return (
        f"{shown['name']}: {shown['state']}{served} | phase {shown['phase']} | "
        f"{shown['users']:,} of {shown['horizon']:,} users | "
        f"{kind} {'-' if regret is None else f'{regret:,.0f}'} | "
        f"guarantee: {shown['guarantee']}"
    )


def bar(arm: dict[str, Any], low: float, high: float) -> str:
    """The interval as a line with the mean on it."""
    span = max(high - low, 1e-9)

    def column(value: float) -> int:
        return min(_BAR - 1, max(0, round((value - low) / span * (_BAR - 1))))

    start = column(arm["lower"])
    end = column(arm["upper"])
    line = [" "] * _BAR
    line[start : end + 1] = "─" * (end - start + 1)
    line[start] = "├"
    line[end] = "┤"
    if arm["mean"] is not None:
        line[column(arm["mean"])] = "●"
    return "".join(line)


def overview(listed: list[dict[str, Any]]) -> Table:
    """All experiments in short."""
    table = Table(box=None, pad_edge=False)
    for heading in ("experiment", "state", "phase", "viable", "users", "horizon", "serve"):
        right = heading in ("phase", "viable", "users", "horizon")
        table.add_column(heading, justify="right" if right else "left")
    for one in listed:
        table.add_row(
            escape(one["name"]),
            one["state"],
            str(one["phase"]),
            str(one["viable"]),
            f"{one['users']:,}",
            f"{one['horizon']:,}",
            escape(one["serve"] or "-"),
        )
    return table
