"""The row about the gateway: what devices send, and how soon Kafka has it."""

from typing import Any

from kit import heat, lines, rate


def edge() -> list[Any]:
    """Do devices get through."""
    requests = [(rate("gateway_requests_total", "status"), "{{status}}")]
    reports = [(rate("gateway_reports_total", "outcome, reason"), "{{outcome}} {{reason}}")]
    connections = [("shufflebandit_gateway_connections", "{{instance}}")]
    held = [("shufflebandit_gateway_held_reports", "{{instance}}")]
    away = "Turned away: told to come again, since there are too many or Kafka is slow or away."
    return [
        lines("Requests per second", requests, "By the status of the answer.", span=6),
        lines("Reports per second, by outcome", reports, away, span=6),
        lines("Connections", connections, "Open ones; see gateway.max_connections.", span=6),
        lines("Held reports", held, "They wait for Kafka's acknowledgement.", span=6),
        heat(
            "Time to acknowledgement",
            "gateway_acknowledgement_seconds",
            "From the first report of a hold to Kafka's acknowledgement; gateway.hold_ms is in it.",
        ),
    ]
