"""The kinds of panels that the dashboard has, and how its queries are written.

Queries are aggregated over workers, so that several monitors or a restarted worker give one line.
"""

from collections.abc import Sequence
from typing import Any

from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.models import common as models_common
from grafana_foundation_sdk.models import heatmap as models_heatmap
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
HERE = '{experiment="$experiment"}'
RATE = "$__rate_interval"
BAD = "red"
GOOD = "green"
STARTUP_LOG = "text"
DASHED = [
    DynamicConfigValue("custom.lineWidth", 1),
    DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [4, 4]}),
]
NOT_IN_LEGEND = DynamicConfigValue(
    "custom.hideFrom", {"legend": True, "tooltip": False, "viz": False}
)
Query = tuple[str, str]  # PromQL, legend


def of(metric: str, by: str = "experiment") -> str:
    """A gauge of the chosen experiment."""
    return f"max by ({by}) (shufflebandit_{metric}{HERE})"


def rate(metric: str, by: str = "") -> str:
    """A counter's increase per second, over all workers."""
    name, brace, labels = metric.partition("{")
    total = f"sum{f' by ({by}) ' if by else ''}(rate(shufflebandit_{name}"
    return f"{total}{brace}{labels}[{RATE}]))"


def quantile(q: float, metric: str, by: str = "le") -> str:
    """A histogram's quantile over all workers."""
    buckets = f"rate(shufflebandit_{metric}_bucket[{RATE}])"
    return f"histogram_quantile({q}, sum by ({by}) ({buckets}))"


def queries(panel: Any, given: Sequence[Query], *, instant: bool = False) -> Any:
    """The panel with its queries."""
    for number, (expr, legend) in enumerate(given):
        query = prometheus.Dataquery().expr(expr).legend_format(legend).ref_id(chr(65 + number))
        panel.with_target(query.instant() if instant else query.range())
    return panel.datasource(SOURCE)


def lines(
    title: str, given: Sequence[Query], about: str, unit: str = "short", span: int = 12
) -> Any:
    """Values over time."""
    legend = (
        common.VizLegendOptions()
        .show_legend(True)
        .placement(models_common.LegendPlacement.BOTTOM)
        .display_mode(models_common.LegendDisplayMode.LIST)
    )
    tooltip = common.VizTooltipOptions().mode(models_common.TooltipDisplayMode.MULTI)
    panel = timeseries.Panel().title(title).description(about).unit(unit).span(span).height(8)
    panel.legend(legend).tooltip(tooltip).fill_opacity(0).line_width(2).no_value("nothing yet")
    return queries(panel, given).show_points(models_common.VisibilityMode.NEVER)


def counts(title: str, given: Sequence[Query], about: str, span: int = 6) -> Any:
    """Whole numbers over time."""
    panel = lines(title, given, about, span=span).axis_soft_min(0).axis_soft_max(1)
    return panel.line_interpolation(models_common.LineInterpolation.STEP_AFTER)


def coloured(name: str) -> DynamicConfigValue:
    """One colour, whatever the palette would give."""
    return DynamicConfigValue("color", {"mode": "fixed", "fixedColor": name})


def number(
    title: str,
    expr: str,
    about: str,
    unit: str = "short",
    legend: str = "",
    limit: float | None = None,
) -> Any:
    """One value now; red from `limit` on."""
    steps = [Threshold(None, GOOD if limit is not None else STARTUP_LOG)]
    if limit is not None:
        steps.append(Threshold(limit, BAD))
    thresholds = dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
    panel = stat.Panel().title(title).description(about).unit(unit).span(4).height(3)
    panel.thresholds(thresholds).graph_mode(models_common.BigValueGraphMode.NONE).no_value("-")
    panel.text(common.VizTextDisplayOptions().value_size(30))
    if legend:
        panel.text_mode(models_common.BigValueTextMode.NAME)
    return queries(panel, [(expr, legend)], instant=True)


def heat(title: str, metric: str, about: str) -> Any:
    """A histogram over time."""
    expr = f"sum by (le) (increase(shufflebandit_{metric}_bucket[{RATE}]))"
    colour = heatmap.HeatmapColorOptions().mode(models_heatmap.HeatmapColorMode.SCHEME)
    panel = heatmap.Panel().title(title).description(about).span(12).height(11).calculate(False)
    panel.no_value("nothing yet")
    panel.color(colour.scheme("Blues").steps(32)).y_axis(heatmap.YAxisConfig().unit("s"))
    query = prometheus.Dataquery().expr(expr).legend_format("{{le}}").range().ref_id("A")
    return panel.with_target(query.format(PromQueryFormat.HEATMAP)).datasource(SOURCE)
