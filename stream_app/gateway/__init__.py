"""The HTTP edge for devices: assignments out, reports in. A role of the service.

It is trusted like the shuffle stage: it sees addresses and reports (deploy/SECURITY.md,
"What each party learns"). So it forgets: no address, agent, cookie or time of a sender is written
anywhere; there is no access log, no state per address, and forwarded headers are not read. Reports
of several senders are held and leave in random order. It keeps nothing but memory; run as many as
are needed.
"""

from stream_app.gateway.server import Gateway, make_runner

__all__ = ["Gateway", "make_runner"]
