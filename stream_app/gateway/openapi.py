"""The OpenAPI description that the gateway serves; tests hold it against what it does."""

from typing import Any

import orjson

from stream_app.core.batch_id import PATTERN
from stream_app.core.state import Status
from stream_app.gateway.reports import MAX_LEFT_MS, MAX_REPORTS, Outcome
from stream_app.settings import GatewaySettings
from stream_app.wire.envelope import VERSION

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
    "additionalProperties": False,
}
_REPORT = {
    "type": "object",
    "description": "One user's noisy report. All have the same length on the wire.",
    "required": ["batch", "id", "ones"],
    "properties": {
        "batch": {"type": "string", "pattern": f"^{PATTERN}$"},
        "id": {"type": "string", "pattern": "^[0-9a-f]{32}$", "description": "128 random bits."},
        "ones": {"type": "integer", "minimum": 0, "maximum": (1 << 32) + 1},
        "token": {
            "type": "string",
            "pattern": "^[A-Za-z0-9_-]+$",
            "description": "Of the product's own backend, where gateway.admission is tokens.",
        },
    },
    "additionalProperties": False,
}
_ASSIGNMENT = {
    "type": "object",
    "description": "What a client may report to; it checks every batch's terms itself.",
    "required": ["version", "experiment", "state", "serve", "open"],
    "properties": {
        "version": {"type": "integer", "const": VERSION},
        "experiment": {"type": "string"},
        "state": {"type": "string", "enum": list(Status)},
        "serve": {"type": ["string", "null"]},
        "open": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["batch", "terms"],
                "properties": {"batch": {"type": "string"}, "terms": {"type": "object"}},
            },
        },
    },
}
_OUTCOMES = {
    "type": "object",
    "required": ["outcomes"],
    "properties": {
        "outcomes": {
            "type": "array",
            "description": "One for each report, in the order of the request.",
            "items": {"type": "string", "enum": list(Outcome)},
        }
    },
}
_NAME = {
    "name": "name",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,63}$"},
}
_RETRY = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}}}


def document(settings: GatewaySettings) -> bytes:
    """The description as JSON."""
    return orjson.dumps(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "shufflebandit gateway",
                "version": str(VERSION),
                "description": "Assignments out, noisy reports in. Nothing about a sender is kept.",
            },
            "paths": {
                "/v1/experiments/{name}": {"get": _get_experiment()},
                "/v1/experiments/{name}/events": {"get": _get_events()},
                "/v1/reports": {"post": _post_reports(settings)},
                "/v1/held": {"post": _post_held(settings)},
                "/v1/openapi.json": {"get": _get_page("This description.")},
                "/healthz": {"get": _get_page("Whether Kafka is there, and how busy it is.")},
            },
        }
    )


def _get_experiment() -> dict[str, Any]:
    return {
        "summary": "The current assignment.",
        "parameters": [_NAME, {"name": "If-None-Match", "in": "header", "schema": _text()}],
        "responses": {
            "200": _answer("The assignment.", _ASSIGNMENT, {"ETag": {"schema": _text()}}),
            "304": {"description": "It has not changed."},
            **_errors(400, 403, 404, 503),
        },
    }


def _get_events() -> dict[str, Any]:
    return {
        "summary": "The assignment now and whenever it changes, as server-sent events.",
        "parameters": [_NAME, {"name": "Last-Event-ID", "in": "header", "schema": _text()}],
        "responses": {
            "200": {
                "description": "Events `assignment`; the id is the ETag, the data the assignment.",
                "content": {"text/event-stream": {"schema": _text()}},
            },
            **_errors(400, 403, 404, 503),
        },
    }


def _post_reports(settings: GatewaySettings) -> dict[str, Any]:
    body = {
        "type": "object",
        "required": ["experiment", "reports"],
        "properties": {
            "experiment": _text(),
            "reports": {
                "type": "array",
                "minItems": 1,
                "maxItems": MAX_REPORTS,
                "items": _REPORT,
            },
        },
        "additionalProperties": False,
    }
    content = {"schema": body}
    return {
        "summary": f"Send 1 to {MAX_REPORTS} reports; again after a lost answer is harmless.",
        "description": f"At most {settings.max_body_bytes} bytes; text/plain needs no preflight.",
        "requestBody": {
            "required": True,
            "content": {"application/json": content, "text/plain": content},
        },
        "responses": {
            "202": _answer("Kafka has acknowledged those accepted.", _OUTCOMES),
            "422": _answer("No report was accepted.", _OUTCOMES),
            **_errors(400, 403, 404, 408, 413, 415, 429, 503),
        },
    }


def _post_held(settings: GatewaySettings) -> dict[str, Any]:
    body = {
        "type": "object",
        "required": ["experiment", "left_ms", "report"],
        "properties": {
            "experiment": _text(),
            "left_ms": {"type": "integer", "minimum": 0, "maximum": MAX_LEFT_MS},
            "report": _REPORT,
        },
        "additionalProperties": False,
    }
    content = {"schema": body}
    return {
        "summary": "Hand over the report of a page that is left; it leaves after left_ms.",
        "description": f"At most {settings.max_body_bytes} bytes. A later one of the same id "
        "replaces it. Whether its batch is open is asked when it leaves.",
        "requestBody": {
            "required": True,
            "content": {"application/json": content, "text/plain": content},
        },
        "responses": {
            "202": _answer("It is durable.", _OUTCOMES),
            "422": _answer("It is not accepted.", _OUTCOMES),
            **_errors(400, 403, 404, 408, 413, 415, 429, 503),
        },
    }


def _get_page(summary: str) -> dict[str, Any]:
    return {
        "summary": summary,
        "responses": {"200": _answer(summary, {"type": "object"}), **_errors(400, 403)},
    }


def _text() -> dict[str, str]:
    return {"type": "string"}


def _answer(
    description: str, schema: dict[str, Any], headers: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "description": description,
        "headers": headers or {},
        "content": {"application/json": {"schema": schema}},
    }


_WHY = {
    400: "Not a valid request.",
    403: "The origin is not allowed.",
    404: "There is no such experiment.",
    408: "The body took too long.",
    413: "The body is too large.",
    415: "Not JSON, or compressed.",
    429: "Too many reports.",
    503: "Kafka is slow or away, or too much is open.",
}


def _errors(*statuses: int) -> dict[str, Any]:
    return {
        str(status): _answer(_WHY[status], _ERROR, _RETRY if status in (429, 503) else None)
        for status in statuses
    }
