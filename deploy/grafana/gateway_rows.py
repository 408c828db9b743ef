"""The row about the gateway: what devices send, and how soon Kafka has it."""

from typing import Any

from kit import counts, lines, quantile, rate


def edge() -> list[Any]:
    """Do devices get through."""
    requests = [(rate("gateway_requests_total", "status"), "{{status}}")]
    reports = [(rate("gateway_reports_total", "outcome, reason"), "{{outcome}} {{reason}}")]
    held = [("shufflebandit_gateway_held_reports", "{{instance}}")]
    waits = [(quantile(q, "gateway_acknowledgement_seconds"), f"{q:.0%}") for q in (0.5, 0.95)]
    away = "Turned away: told to come again, since there are too many or Kafka is slow or away."
    soon = "From the first report of a hold to Kafka's acknowledgement; gateway.hold_ms is in it."
    return [
        lines("Requests per second", requests, "By the status of the answer.", span=6),
        lines("Reports per second, by outcome", reports, away, span=6),
        counts("Held reports", held, "They wait for Kafka's acknowledgement.", span=6),
        lines("Time to acknowledgement", waits, soon, unit="s", span=6),
    ]
