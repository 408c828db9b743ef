"""The gateway's answers: JSON, errors, and what allows a page of another origin to read them."""

import math
import secrets
from collections.abc import Mapping

import orjson
from aiohttp import web


class Refused(Exception):
    """An answer other than the one that was asked for."""

    def __init__(self, status: int, error: str, **headers: str) -> None:
        super().__init__(error)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def later(status: int, error: str, wait_s: float | None = None) -> Refused:
    """Come again: after a given time, or some seconds, not the same for all."""
    seconds = 1 + secrets.randbelow(4) if wait_s is None else math.ceil(wait_s)
    return Refused(status, error, Retry_After=str(max(1, seconds)))


def json(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """A JSON answer."""
    given = {"Content-Type": "application/json", **(headers or {})}
    return web.Response(body=orjson.dumps(value), status=status, headers=given)


def preflight(allowed: str) -> web.Response:
    """The answer to a browser that asks before it sends."""
    return web.Response(
        status=204,
        headers={
            "Access-Control-Allow-Methods": allowed,
            "Access-Control-Allow-Headers": "Content-Type, If-None-Match",
            "Access-Control-Max-Age": "600",
        },
    )


def shared_headers(origin: str | None) -> dict[str, str]:
    """What every answer carries, to an allowed origin or to a sender without one."""
    headers = {"Vary": "Origin", "X-Content-Type-Options": "nosniff"}
    if origin is not None:
        headers["Access-Control-Allow-Origin"] = origin
        headers["Access-Control-Expose-Headers"] = "ETag, Retry-After"
    return headers
