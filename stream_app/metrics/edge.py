"""The gateway's numbers. Nothing here tells of a sender, or of what a report says.

The gateway counts in plain attributes; they are read when somebody scrapes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from stream_app.metrics.instruments import ACCEPTED, REFUSED

TURNED_AWAY = "turned_away"  # with a time to come again
# The statuses of a request with one report, by what became of it.
_TAKEN = 202
_NOT_TAKEN = 422
# From the time that a hold may take to the time that Kafka may take.
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class EdgeMetrics(Collector):
    """What one gateway did; `held` says how many reports wait for Kafka now.

    Nothing here moves when a page is left, for those who leave are often those who clicked. So a
    report that was handed over is counted as any other, when it leaves for `reports`; and open
    connections are not exported: a page that is left closes its own.
    """

    def __init__(self, held: Callable[[], int] = int) -> None:
        self.requests: Counter[int] = Counter()  # by status
        self.reports: Counter[tuple[str, str]] = Counter()  # by outcome and reason
        self._held = held
        self._acknowledged = Histogram(
            "shufflebandit_gateway_acknowledgement_seconds",
            "From the first report of a hold to Kafka's acknowledgement of all of it.",
            buckets=_SECONDS, registry=None,
        )  # fmt: skip

    def judged(self, outcomes: Iterable[str]) -> None:
        """What became of the reports of a request that was answered in full."""
        for outcome, count in Counter(outcomes).items():
            key = (ACCEPTED, "") if outcome == ACCEPTED else (REFUSED, outcome)
            self.reports[key] += count

    def let_go(self, outcomes: Sequence[str]) -> None:
        """Reports that were handed over have left: as if each had come in a request only now."""
        for outcome in outcomes:
            self.requests[_TAKEN if outcome == ACCEPTED else _NOT_TAKEN] += 1
        self.judged(outcomes)

    def acknowledged(self, seconds: float) -> None:
        """Kafka has a hold."""
        self._acknowledged.observe(seconds)

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are not checked against a scrape at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families of one scrape."""
        requests = CounterMetricFamily(
            "shufflebandit_gateway_requests", "Requests answered, by status.", labels=["status"]
        )
        for status, count in self.requests.items():
            requests.add_metric([str(status)], count)
        yield requests
        reports = CounterMetricFamily(
            "shufflebandit_gateway_reports",
            "Reports that came in, by what became of them here.",
            labels=["outcome", "reason"],
        )
        for labels, count in self.reports.items():
            reports.add_metric(labels, count)
        yield reports
        yield GaugeMetricFamily(
            "shufflebandit_gateway_held_reports",
            "Reports that wait for Kafka's acknowledgement.",
            value=self._held(),
        )
        yield from self._acknowledged.collect()
