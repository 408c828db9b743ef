"""A replay's report as one HTML file: no script, no other file, pictures drawn as SVG."""

import math
from html import escape
from typing import Any

from producers.replay.wording import text

# Of a picture, in pixels at the text's full width, which is 800 less the body's margins.
_WIDTH = 760
_HEIGHT = 300
# Around the plot: room for the ticks' figures and the axes' names, in letters of 12 pixels.
_LEFT = 64
_RIGHT = 34
_TOP = 12
_BOTTOM = 44
_COLOURS = 8  # as many as the style below has
# Within the file, as nothing may be loaded; every colour has a twin that is legible in the dark.
_STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --faint: #6b7482; --line: #d8dde5;
  --paper: #ffffff; --c0: #0b6bcb; --c1: #c2410c; --c2: #15803d; --c3: #a21caf; --c4: #a16207;
  --c5: #0e7490; --c6: #be123c; --c7: #4d5b70; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --faint: #98a2b3; --line: #333b48;
  --paper: #14181f; --c0: #6cb2ff; --c1: #ff9a62; --c2: #67d391; --c3: #e48bf0; --c4: #e3c04f;
  --c5: #5fd0e3; --c6: #ff8199; --c7: #a9b5c9; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 800px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
pre { overflow-x: auto; font-size: 13px; border: 1px solid var(--line); padding: .75rem; }
.verdict { font-size: 1.1rem; border-left: 4px solid var(--c0); padding-left: .75rem; }
.warning { border-left: 4px solid var(--c1); padding-left: .75rem; }
svg { width: 100%; height: auto; } svg text { fill: var(--faint); font-size: 12px; }
.grid { stroke: var(--line); } .legend span { margin-right: 1rem; white-space: nowrap; }
"""


def page(found: dict[str, Any]) -> str:
    """The whole file."""
    title = f"Replay of {escape(found['experiment'])}"
    warnings = "".join(f'<p class="warning">{escape(w)}</p>' for w in found["warnings"])
    parts = [
        f"<h1>{title}</h1>",
        f'<p class="verdict">{escape(found["verdict"]["text"])}</p>',
        warnings,
        "<h2>What the agent saw: private estimates, with intervals</h2>",
        _estimates(found),
        "<h2>Regret against always showing the log's best arm</h2>",
        _regret(found),
        _days(found),
        "<h2>All figures</h2>",
        f"<pre>{escape(text(found))}</pre>",
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _pictured_arms(found: dict[str, Any]) -> list[int]:
    """The arms that pictures have: the best ones by the log, at most as many as colours."""
    ranked = sorted(range(len(found["arms"])), key=lambda i: -(found["arms"][i]["rate"] or 0))
    return ranked[:_COLOURS]


def _estimates(found: dict[str, Any]) -> str:
    course = found["course"]
    series = []
    bands = []
    for i in _pictured_arms(found):
        kept = [m for m in course if m["viable"][i] and m["means"][i] is not None]
        series.append((found["arms"][i]["arm"], [(m["users"], m["means"][i]) for m in kept]))
        bands.append([(m["users"], *m["intervals"][i]) for m in kept])
    if not course:
        return "<p>The log ended before the first phase did.</p>"
    return _plot(series, "users", "reward", bands=bands)


def _regret(found: dict[str, Any]) -> str:
    return _plot([(a["name"], a["path"][1:]) for a in found["agents"]], "users", "regret")


def _days(found: dict[str, Any]) -> str:
    days = found["days"]
    if len(days) < 2:
        return ""
    series = []
    for i in _pictured_arms(found):
        points = [(n, d["rates"][i]) for n, d in enumerate(days) if d["rates"][i] is not None]
        series.append((found["arms"][i]["arm"], points))
    picture = _plot(series, f"days from {days[0]['day']}", "reward", log_x=False)
    return f"<h2>The log's own rates by day</h2>{picture}"


class _Scale:
    """From values to coordinates of the picture."""

    def __init__(self, values: list[float], low: float, high: float, *, log: bool) -> None:
        self._log = log and min(values, default=1) > 0
        self.first = min(values, default=0.0)
        self.last = max(values, default=1.0)
        if self.first == self.last:
            self.first = self.first * 0.9
            self.last = self.last * 1.1 + 1e-9
        self._low = low
        self._high = high

    def at(self, value: float) -> float:
        """A value's coordinate."""
        first = self.first
        last = self.last
        here = value
        if self._log:
            first = math.log(first)
            last = math.log(last)
            here = math.log(max(value, self.first))
        return self._low + (here - first) / (last - first) * (self._high - self._low)

    def ticks(self) -> list[float]:
        """Round values for the grid."""
        if self._log:
            powers = range(math.floor(math.log10(self.first)), math.ceil(math.log10(self.last)) + 1)
            return [t for t in (10.0**p for p in powers) if self.first <= t <= self.last]
        step = 10 ** math.floor(math.log10((self.last - self.first) / 2))
        step *= 2 if (self.last - self.first) / step > 8 else 1
        count = int((self.last - self.first) / step) + 2
        start = math.ceil(self.first / step)
        return [t for t in (step * (start + i) for i in range(count)) if t <= self.last]


def _plot(
    series: list[tuple[str, list[Any]]],
    x_label: str,
    y_label: str,
    *,
    bands: list[list[Any]] | None = None,
    log_x: bool = True,
) -> str:
    xs = [float(p[0]) for _, points in series for p in points]
    ys = [float(p[1]) for _, points in series for p in points]
    across = _Scale(xs, _LEFT, _WIDTH - _RIGHT, log=log_x)
    up = _Scale(_with_margins(ys), _HEIGHT - _BOTTOM, _TOP, log=False)
    drawn = [_grid(across, up, x_label, y_label)]
    for i, (name, points) in enumerate(series):
        colour = f"var(--c{i % _COLOURS})"
        if bands is not None and bands[i]:
            drawn.append(_band(bands[i], across, up, colour))
        path = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in points)
        drawn.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2">'
            f"<title>{escape(name)}</title></polyline>"
        )
    legend = "".join(
        f'<span style="color:var(--c{i % _COLOURS})">&#9632; {escape(name)}</span>'
        for i, (name, _) in enumerate(series)
    )
    picture = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(drawn)}</svg>'
    return f'{picture}<p class="legend">{legend}</p>'


def _with_margins(values: list[float]) -> list[float]:
    """With a tenth of their spread to spare on both sides."""
    if not values:
        return [0.0, 1.0]
    spare = 0.1 * (max(values) - min(values)) or 0.05
    return [max(0.0, min(values) - spare), max(values) + spare]


def _band(points: list[Any], across: _Scale, up: _Scale, colour: str) -> str:
    def clipped(value: float) -> float:
        return up.at(min(max(value, up.first), up.last))

    there = [f"{across.at(x):.1f},{clipped(high):.1f}" for x, _, high in points]
    back = [f"{across.at(x):.1f},{clipped(low):.1f}" for x, low, _ in reversed(points)]
    return f'<polygon points="{" ".join(there + back)}" fill="{colour}" opacity="0.13"/>'


def _grid(across: _Scale, up: _Scale, x_label: str, y_label: str) -> str:
    floor = _HEIGHT - _BOTTOM
    lines = []
    for tick in up.ticks():
        y = up.at(tick)
        lines.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        lines.append(f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{tick:,.6g}</text>')
    for tick in across.ticks():
        x = across.at(tick)
        lines.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{_TOP}" y2="{floor}"/>')
        lines.append(f'<text x="{x}" y="{floor + 16}" text-anchor="middle">{tick:,.6g}</text>')
    middle = (_LEFT + _WIDTH) / 2
    lines.append(
        f'<text x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>'
    )
    lines.append(
        f'<text transform="translate(14,{floor / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_label)}</text>"
    )
    return "".join(lines)
