"""Errors as OpenAI's clients expect them: a JSON object `error` with message, type, param and code."""

import json
from collections.abc import Mapping

from aiohttp import web


def error_body(message: str, *, kind: str, code: str) -> dict[str, object]:
    """The JSON of an error."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def error_event(message: str, *, kind: str, code: str) -> bytes:
    """One server-sent event that carries an error, for a stream that has already begun."""
    return b"data: " + json.dumps(error_body(message, kind=kind, code=code)).encode() + b"\n\n"


def error_response(
    status: int, message: str, *, kind: str, code: str, headers: Mapping[str, str] | None = None
) -> web.Response:
    """An error as a whole answer."""
    return web.json_response(error_body(message, kind=kind, code=code), status=status, headers=headers)


def unauthorized() -> web.Response:
    """401: no key, or a wrong one. Says nothing of what was sent."""
    return error_response(
        401,
        "A valid API key is needed: send it as 'Authorization: Bearer <key>'.",
        kind="invalid_request_error",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


def too_large(limit: int) -> web.Response:
    """413: the body is over the limit in bytes. The connection ends, since the rest of the body was not read."""
    response = error_response(
        413,
        f"The request body is larger than the {limit} bytes that this server takes.",
        kind="invalid_request_error",
        code="request_too_large",
    )
    response.force_close()
    return response


def overloaded(message: str, retry_after: int) -> web.Response:
    """503: this router holds as much as it may. Try again in `retry_after` seconds."""
    response = error_response(
        503, message, kind="service_unavailable", code="overloaded", headers={"Retry-After": str(retry_after)}
    )
    response.force_close()
    return response


def no_decode(retry_after: int) -> web.Response:
    """503: no decode engine can be reached. Try again in `retry_after` seconds."""
    return error_response(
        503,
        "No decode engine is available now. The model is scaled to zero, starting or lost; try again later.",
        kind="service_unavailable",
        code="no_decode_engine",
        headers={"Retry-After": str(retry_after)},
    )


def engine_failed(retry_after: int) -> web.Response:
    """502: the engines that had this request broke before they answered."""
    return error_response(
        502,
        "The engine stopped before it answered, and so did the one tried after it.",
        kind="api_error",
        code="engine_failed",
        headers={"Retry-After": str(retry_after)},
    )


def bad_request(message: str) -> web.Response:
    """400: the request cannot be read."""
    return error_response(400, message, kind="invalid_request_error", code="invalid_request")
