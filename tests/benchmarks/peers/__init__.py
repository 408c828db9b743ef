"""The same window in other stream processors, each as a program of its own.

`python -m tests.benchmarks.peers.NAME BOOTSTRAP REPORTS_TOPIC SUMS_TOPIC REPORTS SIZE` reads so
many reports of batches of that size, writes a sum for each batch, and prints the seconds from the
first report to the end. None of them checks terms or ids beyond what is said in its own file.
"""

import json
import sys
import time
from dataclasses import dataclass


@dataclass
class Job:
    """What a peer is to do, and its clock."""

    bootstrap: str
    reports_topic: str
    sums_topic: str
    reports: int
    size: int
    began: float = 0.0

    def begin(self) -> None:
        """The first report is here; later calls do nothing."""
        self.began = self.began or time.perf_counter()

    def end(self) -> None:
        """All is done: print how long it took."""
        line = json.dumps({"seconds": time.perf_counter() - self.began})
        print(line, file=sys.__stdout__, flush=True)  # faust redirects the other


def job() -> Job:
    """From the command line."""
    bootstrap, reports_topic, sums_topic, reports, size = sys.argv[1:]
    return Job(bootstrap, reports_topic, sums_topic, int(reports), int(size))
