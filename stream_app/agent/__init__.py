"""UNTRUSTED: learns from sums which arm to try next, and never sees a report.

It may run elsewhere, with Kafka credentials that cannot read `reports` or `windows`. Clients and
shuffler check the terms of every batch that it opens.
"""

from stream_app.agent.partition import EliminationPartition, make_runner

__all__ = ["EliminationPartition", "make_runner"]
