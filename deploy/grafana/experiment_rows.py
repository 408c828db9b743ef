"""The rows about the chosen experiment: decision, regret, privacy."""

from typing import Any

from grafana_foundation_sdk.builders import prometheus, statetimeline, table, text
from grafana_foundation_sdk.models.dashboard import (
    DataTransformerConfig,
    DynamicConfigValue,
    ValueMap,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from kit import DASHED, GOOD, HERE, SOURCE, lines, number, of, queries


def decision() -> list[Any]:
    """The chosen experiment: state, arms, eliminations."""
    state = f"max by (state) (shufflebandit_experiment_state{HERE}) == 1"
    arms = [
        (of("arm_estimate", "arm"), "{{arm}}"),
        (of("arm_lower", "arm"), "{{arm}} lower"),
        (of("arm_upper", "arm"), "{{arm}} upper"),
    ]
    about = "Estimated means; dashed: confidence intervals. A vertical line: an arm is out."
    chart = lines("Arms", arms, about, unit="percentunit", span=16).height(10)
    chart.override_by_regexp("/ (lower|upper)$/", DASHED)
    told = ValueMap(
        {"1": ValueMappingResult("in", GOOD), "0": ValueMappingResult("out", "#808080")}
    )
    viable = statetimeline.Panel().title("In the running").span(16).height(6).mappings([told])
    viable.description("Which arms are still in the running.").no_value("nothing yet")
    viable = queries(viable, [(of("arm_viable", "arm"), "{{arm}}")])
    since = f"time() - {of('experiment_last_release_timestamp_seconds')}"
    return [
        number("State", state, "What became of it.", legend="{{state}}"),
        number(
            "Phase", of("experiment_phase"), "Each phase collects one batch per arm that is left."
        ),
        number("Users", of("experiment_users"), "Users in released batches."),
        number("Users to go", of("experiment_remaining_users"), "Until the horizon."),
        number("Batches", of("experiment_batches"), "Released batches."),
        number("Last release", since, "Time since the newest sum.", unit="s"),
        chart,
        arms_table(),
        viable,
        lines(
            "Phase",
            [(of("experiment_phase"), "phase")],
            "Steps up when a phase is complete.",
            span=8,
        ).height(6),
    ]


def arms_table() -> Any:
    """The arms now."""
    columns = ("viable", "users", "estimate", "lower", "upper")
    panel = table.Panel().title("Arms now").span(8).height(10).no_value("nothing yet")
    panel.description("State, users and confidence interval of each arm.")
    for at, column in enumerate(columns):
        query = (
            prometheus.Dataquery().expr(of(f"arm_{column}", "arm")).instant().ref_id(chr(65 + at))
        )
        panel.with_target(query.format(PromQueryFormat.TABLE))
    panel.with_transformation(
        DataTransformerConfig(id_val="joinByField", options={"byField": "arm"})
    )
    renamed = {f"Value #{chr(65 + at)}": column for at, column in enumerate(columns)}
    hidden = {f"Time {at}": True for at in range(1, len(columns) + 1)}
    organize = {"excludeByName": {"Time": True, **hidden}, "renameByName": renamed}
    panel.with_transformation(DataTransformerConfig(id_val="organize", options=organize))
    for column in columns[2:]:
        panel.override_by_name(column, [DynamicConfigValue("decimals", 3)])
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
    band = lines("Regret", given, about, span=12)
    band.override_by_name(
        "at most",
        [
            DynamicConfigValue("custom.fillBelowTo", "at least"),
            DynamicConfigValue("custom.fillOpacity", 15),
            DynamicConfigValue("custom.lineWidth", 1),
        ],
    )
    band.override_by_name("at least", [DynamicConfigValue("custom.lineWidth", 1)])
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
        lines("Regret per user", [(share, "estimated")], "Falls while it learns.", span=6),
    ]


def privacy() -> list[Any]:
    """What is promised and what is certified."""
    words = (
        "Everything on this dashboard comes from released sums, counts and times. The promise "
        "holds for each user if the stated fraction of each batch is honest and the shuffle stage "
        "and Kafka's `reports` are trusted; `shufflebandit verify` and `audit` check it afterwards."
    )
    ratio = f"{of('experiment_certified_delta')} / {of('experiment_delta')}"
    return [
        number("Epsilon", of("experiment_epsilon"), "Promised to each user."),
        number("Delta", of("experiment_delta"), "Promised to each user.", unit="sci"),
        number(
            "Certified delta",
            of("experiment_certified_delta"),
            "Computed from the noise itself.",
            unit="sci",
        ),
        number(
            "Certified of promised",
            ratio,
            "Above 1 the stage would refuse.",
            unit="percentunit",
            limit=1.000001,
        ),
        number(
            "Refusals",
            "sum(increase(shufflebandit_refusals_total[$__range]))",
            "Terms, sums and definitions not accepted, in the time shown.",
            limit=0.5,
        ),
        text.Panel().title("In words").span(4).height(4).content(words),
    ]
