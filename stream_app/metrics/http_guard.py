"""Which requests a worker's own pages do not answer: those that a page elsewhere makes.

Knows headers, not what the pages say. For the monitor's pages and for the metrics' endpoint.
"""

import ipaddress

from aiohttp import web


def refusal(request: web.Request, host: str, section: str) -> tuple[int, str] | None:
    """Status and reason why a request to a server on `host` is not served; None if it is.

    `section` is where the settings name that host.

    A server on a loopback address answers to local names only: otherwise a page elsewhere could
    give itself a name that leads here, and read what it likes (DNS rebinding).
    """
    if request.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site") and (
        request.headers.get("Sec-Fetch-Mode") != "navigate"
    ):
        return 403, "no page of another origin may read this"
    asked, _, _ = request.host.removeprefix("[").partition("]" if "[" in request.host else ":")
    if _loopback(host) and not _loopback(asked):
        return 403, f"this server answers to localhost only; see the setting {section}.host"
    if request.can_read_body:
        return 413, "a request has no body here"
    return None


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
