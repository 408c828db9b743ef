"""A replay's report as text for a terminal."""

from typing import Any

_MOST_ARMS = 20  # rows of the table of arms: a screen, not a page
_MOST_DAYS = 14  # rows of the table of days: of a longer log every n-th is shown


def text(found: dict[str, Any]) -> str:
    """The report of a replay."""
    rows = found["rows"]
    lines = [
        found["verdict"]["text"],
        f"Guarantee: {found['guarantee']}",
        "",
        *_arms(found["arms"]),
        "",
        *[
            f"row {d['row']:,}, {d['users']:,} users{_when(d)}: dropped {', '.join(d['dropped'])}"
            for d in found["decisions"]
        ],
        "",
        *_table(
            ["on the same log", "outcome", "arm", "users", "regret"],
            [
                [a["name"], a["outcome"], a["arm"], f"{a['users']:,}", f"{a['regret']:,.0f}"]
                for a in found["agents"]
            ],
        ),
        f"Regret: of {found['agents'][0]['regret_users']:,} users against always showing "
        f"{found['best_in_log']}, the log's best, by the log's own rates.",
        "",
        *_counts(rows),
        *_days(found["days"]),
        *[f"warning: {warning}" for warning in found["warnings"]],
        f"Privacy: {found['privacy']}",
    ]  # fmt: skip
    return "\n".join(lines)


def _arms(arms: list[dict[str, Any]]) -> list[str]:
    return _table(
        ["arm", "rows", "rate in the log", "users", "private estimate", "state"],
        [
            [
                arm["arm"],
                f"{arm['rows']:,}",
                _rate(arm["rate"], arm["rate_interval"]),
                f"{arm['users']:,}",
                _rate(arm["estimate"], arm["interval"]),
                "viable" if arm["viable"] else "dropped",
            ]
            for arm in _best_first(arms)
        ],
        _MOST_ARMS,
    )


def dry_text(found: dict[str, Any]) -> str:
    """The report of `--dry-run`."""
    columns = ", ".join(f"{name} ({option[2:]})" for name, option in found["columns"].items())
    rows = found["rows"]
    known = found["arms"] and found["arms"][0]["in_experiment"] is not None
    lines = [
        f"{', '.join(found['files'])}: {found['format']}; columns {columns}",
        f"{rows['read']:,} rows, {rows['usable']:,} usable",
        *_left_out(rows),
        "",
        *_table(
            ["arm", "rows", "rate", *(["in the experiment"] if known else [])],
            [
                [
                    arm["arm"], f"{arm['rows']:,}", _rate(arm["rate"], arm["interval"]),
                    *(["yes" if arm["in_experiment"] else "NO"] if known else []),
                ]
                for arm in _best_first(found["arms"])
            ],
            _MOST_ARMS,
        ),
        *_days(found["days"]),
        *[f"warning: {warning}" for warning in found["warnings"]],
        f"arms chosen at random as said: chi-square p = {found['choice_p']:.2g}",
    ]  # fmt: skip
    return "\n".join(lines)


def _counts(rows: dict[str, Any]) -> list[str]:
    after = f", {rows['after_the_end']:,} after the end" if rows["after_the_end"] else ""
    kept = rows["kept_by_weight"]
    return [
        f"Rows: {rows['read']:,} read, {rows['usable']:,} usable; {rows['used']:,} used, "
        f"{rows['not_asked_for']:,} not asked for{after}",
        *_left_out(rows),
        *([f"  weights keep {kept:.1%} of the usable rows"] if kept is not None else []),
    ]


def _left_out(rows: dict[str, Any]) -> list[str]:
    filtered = [f"  left out by --where: {rows['filtered']:,}"] if rows["filtered"] else []
    return filtered + [
        f"  {reason}: {skipped['rows']:,} rows, first at {', '.join(skipped['first'])}"
        for reason, skipped in rows["skipped"].items()
    ]


def _days(days: list[dict[str, Any]]) -> list[str]:
    if len(days) < 2:
        return []
    step = -(-len(days) // _MOST_DAYS)
    shown = [[d["day"], f"{d['rows']:,}", f"{d['rate']:.4f}"] for d in days[::step]]
    every = "" if step == 1 else f" (every {step}th shown)"
    return ["", *_table([f"day{every}", "rows", "rate"], shown), ""]


def _best_first(arms: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(arms, key=lambda arm: -(arm["rate"] or 0))


def _rate(rate: float | None, interval: tuple[float, float]) -> str:
    if rate is None:
        return "-"
    return f"{rate:.4f} [{interval[0]:.4f}, {interval[1]:.4f}]"


def _when(decision: dict[str, Any]) -> str:
    return f", {decision['time']}" if decision["time"] else ""


def _table(headings: list[str], rows: list[list[str]], most: int = 1000) -> list[str]:
    """Columns side by side; the first to the left, figures to the right."""
    shown = rows[:most]
    widths = [max(len(row[i]) for row in [headings, *shown]) for i in range(len(headings))]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [headings, *shown]
    ]
    return lines + ([f"... and {len(rows) - most} more"] if len(rows) > most else [])
