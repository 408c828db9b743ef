"""What the long runs watch of a worker: its memory, and its metrics."""

import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families


def rss_mb(pid: int) -> int:
    """Resident memory of a process."""
    (line,) = [
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in line
    ]
    return int(line.split()[1]) // 1024


def series(port: int, metric: str) -> dict[tuple[str, ...], int]:
    """A metric's series by their labels' values, from a worker's endpoint."""
    url = f"http://127.0.0.1:{port}/metrics"
    text = urllib.request.urlopen(url, timeout=20).read().decode()
    return {
        tuple(sample.labels.values()): int(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == metric
    }
