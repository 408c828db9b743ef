"""What the long runs watch of a worker: its memory, and its metrics."""

import os
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families


def rss_mb(pid: int) -> int:
    """Resident memory of a process."""
    (line,) = [
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in line
    ]
    return int(line.split()[1]) // 1024


def cpu_s(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def busy_s() -> float:
    """Processor time that the machine has used, all cores together."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")  # idle, waiting


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
