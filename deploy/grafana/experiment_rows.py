"""The rows about the chosen experiment: decision, regret, privacy."""

from typing import Any

from grafana_foundation_sdk.builders import (
    common,
    prometheus,
    statetimeline,
    table,
    text,
)
from grafana_foundation_sdk.models.dashboard import (
    DataTransformerConfig,
    DynamicConfigValue,
    ValueMap,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from kit import (
    DASHED,
    GOOD,
    HERE,
    NOT_IN_LEGEND,
    SOURCE,
    coloured,
    counts,
    lines,
    number,
    of,
    queries,
)

ARMS = "Arms"
RUNNING = "In the running"
REGRET = "Regret"
IN_OR_OUT = ValueMap(
    {"1": ValueMappingResult("in", GOOD), "0": ValueMappingResult("out", "#808080")}
)


def decision() -> list[Any]:
    """The chosen experiment: state, arms, eliminations."""
    return [*standing(), arms_chart(), arms_table(), *steps()]


def standing() -> list[Any]:
    """Where it is now."""
    state = f"max by (state) (shufflebandit_experiment_state{HERE}) == 1"
    leading = f"topk(1, {of('arm_estimate', 'arm')} and {of('arm_viable', 'arm')} == 1)"
    phase = of("experiment_phase")
    users = of("experiment_users")
    left = of("experiment_remaining_users")
    since = f"time() - {of('experiment_last_release_timestamp_seconds')}"
    return [
        number("State", state, "What became of it.", legend="{{state}}"),
        number(
            "Leading arm", leading, "The best estimate of those in the running.", legend="{{arm}}"
        ),
        number("Phase", phase, "Each phase collects one batch per arm that is left.").span(3),
        number("Users", users, "Users in released batches.", unit="locale").span(3),
        number("Users to go", left, "Until the horizon.", unit="locale"),
        number("Batches", of("experiment_batches"), "Released batches.", unit="locale").span(3),
        number("Last sum", since, "Time since the newest one.", unit="s").span(3),
    ]


def arms_chart() -> Any:
    """Estimates, and the intervals of the arms that are left."""
    left = f"and {of('arm_viable', 'arm')} == 1"
    arms = [
        (of("arm_estimate", "arm"), "{{arm}}"),
        (f"{of('arm_lower', 'arm')} {left}", "{{arm}}, at least"),
        (f"{of('arm_upper', 'arm')} {left}", "{{arm}}, at most"),
    ]
    about = (
        "Estimated means; dashed: confidence intervals of the arms in the running. "
        "A vertical line: an arm is out."
    )
    chart = lines(ARMS, arms, about, unit="percentunit", span=15).height(10)
    for bound in "BC":
        chart.override_by_query(bound, [*DASHED, coloured("#808080"), NOT_IN_LEGEND])
    return chart


def steps() -> list[Any]:
    """Eliminations and phases, in time."""
    viable = statetimeline.Panel().title(RUNNING).span(15).height(6).mappings([IN_OR_OUT])
    viable.description("Which arms are still in the running.").no_value("nothing yet")
    viable.legend(common.VizLegendOptions().show_legend(False))
    return [
        queries(viable, [(of("arm_viable", "arm"), "{{arm}}")]),
        counts(
            "Phases",
            [(of("experiment_phase"), "phase")],
            "Steps up when a phase is complete.",
            span=9,
        ).height(6),
    ]


def arms_table() -> Any:
    """The arms now."""
    columns = {
        "viable": "state",
        "users": "users",
        "estimate": "mean",
        "lower": "from",
        "upper": "to",
    }
    panel = table.Panel().title("Arms now").span(9).height(10).no_value("nothing yet").min_width(60)
    panel.description("State, users, estimated mean and its confidence interval.")
    for at, metric in enumerate(columns):
        query = (
            prometheus.Dataquery().expr(of(f"arm_{metric}", "arm")).instant().ref_id(chr(65 + at))
        )
        panel.with_target(query.format(PromQueryFormat.TABLE))
    panel.with_transformation(
        DataTransformerConfig(id_val="joinByField", options={"byField": "arm"})
    )
    renamed = {f"Value #{chr(65 + at)}": shown for at, shown in enumerate(columns.values())}
    hidden = {f"Time {at}": True for at in range(1, len(columns) + 1)}
    organize = {"excludeByName": {"Time": True, **hidden}, "renameByName": renamed}
    panel.with_transformation(DataTransformerConfig(id_val="organize", options=organize))
    panel.override_by_name("arm", [DynamicConfigValue("custom.minWidth", 100)])
    panel.override_by_name("state", [DynamicConfigValue("mappings", [IN_OR_OUT])])
    panel.override_by_name("users", [DynamicConfigValue("unit", "locale")])
    share = [DynamicConfigValue("unit", "percentunit"), DynamicConfigValue("decimals", 1)]
    panel.override_by_regexp("/^(mean|from|to)$/", share)
    panel.sort_by([common.TableSortByFieldState().display_name("mean").desc(True)])
    return panel.datasource(SOURCE)


def regret() -> list[Any]:
    """What learning has cost so far."""
    given = [
        (of("experiment_estimated_regret"), "estimated"),
        (of("experiment_estimated_regret_upper"), "at most"),
        (of("experiment_estimated_regret_lower"), "at least"),
        (of("experiment_true_regret"), "true"),
    ]
    about = (
        "Rewards lost against the best arm, by users in released batches. Band: the range if every "
        "arm's interval holds. True: only where the definition states the means (simulations)."
    )
    band = lines(REGRET, given, about, span=12)
    edge = [DynamicConfigValue("custom.lineWidth", 1), coloured("super-light-blue")]
    filled = [
        DynamicConfigValue("custom.fillBelowTo", "at least"),
        DynamicConfigValue("custom.fillOpacity", 25),
    ]
    band.override_by_name("at most", [*edge, *filled])
    band.override_by_name("at least", edge)
    band.override_by_name("estimated", [coloured("blue")])
    band.override_by_name("true", [*DASHED, coloured("orange")])
    progress = [
        (of("experiment_users"), "users"),
        (of("experiment_horizon_users"), "horizon"),
    ]
    share = f"{of('experiment_estimated_regret')} / ({of('experiment_users')} > 0)"
    return [
        band,
        lines(
            "Users against the horizon", progress, "When the horizon is reached it ends.", span=6
        ),
        lines(
            "Regret per user", [(share, "estimated")], "Falls while it learns.", span=6
        ).axis_soft_min(0),
    ]


def privacy() -> list[Any]:
    """What is promised and what is certified."""
    words = (
        "Everything on this dashboard comes from released sums, counts and times. The promise "
        "holds for each user if the stated fraction of each batch is honest and the shuffle stage "
        "and Kafka's `reports` are trusted; `shufflebandit verify` and `audit` check it afterwards."
    )
    promised = of("experiment_delta")
    certified = of("experiment_certified_delta")
    return [
        number("Epsilon", of("experiment_epsilon"), "Promised to each user."),
        number("Delta", promised, "Promised to each user.", unit="sci").decimals(2).span(5),
        number("Certified delta", certified, "Computed from the noise itself.", unit="sci")
        .decimals(2)
        .span(5),
        number(
            "Certified of promised",
            f"{certified} / {promised}",
            "Above 1 the stage would refuse.",
            unit="percentunit",
            limit=1.000001,
        ).span(5),
        number(
            "Refusals",
            "sum(increase(shufflebandit_refusals_total[$__range]))",
            "Terms, sums and definitions not accepted, in the time shown.",
            limit=0.5,
        ).span(5),
        text.Panel().title("").span(24).height(2).content(words),
    ]
