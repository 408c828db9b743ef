"""JSON objects with a version, and whole numbers in them: what all records are made of."""

from typing import Any

import orjson

from stream_app.core.terms import MAX_INTEGER
from stream_app.core.window import LogPosition
from stream_app.errors import InvalidInput

# Of every record: another one is refused, not guessed at.
VERSION = 1


def json_object(value: bytes | None, *keys: str) -> dict[str, Any]:
    """A record of this version that has these keys. Raises InvalidInput."""
    try:
        raw = orjson.loads(value or b"")
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"not JSON: {error}") from None
    if not isinstance(raw, dict) or raw.get("version") != VERSION:
        raise InvalidInput(f"must be a JSON object of version {VERSION}")
    for key in keys:
        if key not in raw:
            raise InvalidInput(f"{key}: missing")
    return raw


def integer(raw: dict[str, Any], key: str, least: int = 0) -> int:
    """A whole number that every language can hold. Raises InvalidInput."""
    value = raw[key]
    if type(value) is not int or not least <= value <= MAX_INTEGER:
        raise InvalidInput(f"{key}: must be a whole number from {least} to {MAX_INTEGER}")
    return value


def parse_position(raw: object) -> LogPosition:
    """Where a report stands in the log. Raises InvalidInput."""
    if not isinstance(raw, dict) or set(raw) != {"offset", "time_ms"}:
        raise InvalidInput("a place must have offset and time_ms")
    return LogPosition(integer(raw, "offset"), integer(raw, "time_ms", least=-1))


def dump_json(raw: object) -> bytes:
    """The bytes of what was parsed. Raises InvalidInput."""
    try:
        return orjson.dumps(raw)
    except TypeError as error:  # nested deeper than orjson writes, though not than it reads
        raise InvalidInput(str(error)) from None
