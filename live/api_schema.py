"""The OpenAPI description of the hot path, which is no FastAPI route."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from ..envs.trace import SLO_CLASSES
from .request import ID_HEADER, MAX_TOKENS, OUTPUT_HEADER, SLO_HEADER
from .two_legs import CHAT, COMPLETIONS

TOKENS: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": MAX_TOKENS}

SHARED: dict[str, Any] = {
    "model": {"type": "string", "description": "By default the one that is served."},
    "max_tokens": TOKENS,
    "stream": {"type": "boolean", "default": False},
    "stream_options": {"type": "object", "properties": {"include_usage": {"type": "boolean"}}},
    "n": {"type": "integer", "enum": [1]},
    "metadata": {
        "type": "object",
        "properties": {"slo": {"type": "string", "enum": list(SLO_CLASSES)}, "output_tokens": TOKENS},
    },
}

PROMPT: dict[str, Any] = {
    "description": "A text, or token ids.",
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": MAX_TOKENS}},
    ],
}

MESSAGES: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role", "content"],
        "properties": {"role": {"type": "string"}, "content": {"type": "string"}},
    },
}

ERRORS = {
    400: "The request cannot be served as it is; the message names the field.",
    401: "The API key is missing or wrong.",
    404: "Another model.",
    413: "The body is too large.",
    429: "Too many requests in flight; Retry-After says when to come back.",
    500: "The router failed.",
    502: "No engine could serve the request.",
    503: "No engine is available, or the router is shutting down.",
}

PARAMETERS: list[dict[str, Any]] = [
    {
        "name": SLO_HEADER.decode(),
        "in": "header",
        "description": "SLO class; loose unless said here or in metadata.",
        "schema": {"type": "string", "enum": list(SLO_CLASSES)},
    },
    {
        "name": OUTPUT_HEADER.decode(),
        "in": "header",
        "description": "Expected output tokens; else the router predicts.",
        "schema": TOKENS,
    },
    {
        "name": ID_HEADER.decode(),
        "in": "header",
        "description": "Names the request at the engines and in the records.",
        "schema": {"type": "string", "maxLength": 200, "pattern": "^[!-~]*$"},
    },
]


def describe(app: FastAPI, *, secured: bool) -> None:
    """Adds completions to an application's OpenAPI description.

    Args:
        app: whose description it is.
        secured: whether clients need a key.
    """

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            for path, required, fields in (
                (COMPLETIONS, "prompt", {"prompt": PROMPT}),
                (CHAT, "messages", {"messages": MESSAGES, "max_completion_tokens": TOKENS}),
            ):
                schema["paths"][path] = {"post": _operation(path, required, SHARED | fields, secured)}
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _operation(path: str, required: str, fields: dict[str, Any], secured: bool) -> dict[str, Any]:
    body = {"type": "object", "required": [required], "properties": fields}
    error = {"application/json": {"schema": {"type": "object", "required": ["error"]}}}
    operation: dict[str, Any] = {
        "summary": "A completion" if path == COMPLETIONS else "A chat completion",
        "description": "As in OpenAI's API; what is not named here goes to the engines as it is.",
        "parameters": PARAMETERS,
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {
            "200": {
                "description": "The answer, or its stream.",
                "content": {"application/json": {"schema": {"type": "object"}}, "text/event-stream": {}},
            }
        }
        | {str(status): {"description": text, "content": error} for status, text in ERRORS.items()},
    }
    if secured:
        operation["security"] = [{"HTTPBearer": []}]
    return operation
