"""Every error of the service as one RFC 9457 document: type, title, status, detail, instance, and code."""

from __future__ import annotations

import http
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tirgemm.errors import QuotaExceeded, TirgemmError, number_limits
from tirgemm.service.json_text import longest_integer, nesting
from tirgemm.service.validation_messages import fault_message, refusal

logger = logging.getLogger("tirgemm.service")

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:tirgemm:problem:"
RETRY_SECONDS = 5

_HTTP_CODES = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "body_too_large",
    415: "unsupported_media_type",
    416: "range_not_satisfiable",
    431: "headers_too_large",
    503: "not_ready",
}


class ProblemDocument(BaseModel):
    """An RFC 9457 problem. ``code`` is the stable name to switch on; more members may follow."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(examples=["urn:tirgemm:problem:invalid_gemm"])
    title: str
    status: int = Field(ge=400, le=599)
    detail: str
    instance: str = Field(description="The path of the request.")
    code: str


class Problem(Exception):
    """An error that only the service knows; ``extra`` becomes members of the document."""

    def __init__(
        self, status: int, detail: str, code: str = "", headers: Mapping[str, str] | None = None, **extra: Any
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.code = code or _HTTP_CODES[status]
        self.headers = dict(headers or {})
        self.extra = extra


def respond(
    path: str, status: int, code: str, detail: str, headers: Mapping[str, str] | None = None, **extra: Any
) -> Response:
    """The response that carries one problem document."""
    body = {
        "type": f"{TYPE_PREFIX}{code}",
        "title": code.replace("_", " ").capitalize(),
        "status": status,
        "detail": detail,
        "instance": path,
        "code": code,
        **extra,
    }
    # ASCII only: a message may quote what a client sent, lone surrogates included, which UTF-8 cannot hold.
    content = json.dumps(body, ensure_ascii=True, default=str).encode("ascii")
    return Response(content, status, {"Cache-Control": "no-store", **(headers or {})}, MEDIA_TYPE)


def error_response(path: str, error: TirgemmError) -> Response:
    """The response for an error of ours; what will pass says when to ask again."""
    headers = {"Retry-After": str(RETRY_SECONDS)} if error.status == http.HTTPStatus.SERVICE_UNAVAILABLE else {}
    if isinstance(error, QuotaExceeded):
        headers = {"Retry-After": str(error.retry_after)}
    return respond(path, error.status, error.code, error.public or str(error), headers)


class FaultAnswers:
    """ASGI middleware that logs an exception that nobody expected and answers with its problem, if no answer has begun:
    one that leaves the application would be answered outside of all middleware, and the connection dropped."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def send_noted(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, send_noted)
        except Exception as error:
            if begun:
                raise
            logger.exception("%s %.200r failed", scope["method"], scope["path"])
            await _fault(scope["path"], error)(scope, receive, send)


def install(app: FastAPI) -> None:
    """Make ``app`` answer every exception with a problem document; what its middleware is for is FaultAnswers'."""
    app.add_exception_handler(Problem, _on_problem)
    app.add_exception_handler(TirgemmError, _on_tirgemm_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_exception)


RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "Problem", "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}},
    "5XX": {"description": "Problem", "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}},
}


def describe(schema: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI document with FastAPI's own error schemas replaced by the one that is really sent."""
    schemas = schema.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Problem"] = ProblemDocument.model_json_schema()
    for operations in schema["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    return schema


def _on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return respond(request.url.path, error.status, error.code, error.detail, error.headers, **error.extra)


def _on_tirgemm_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, TirgemmError)
    if error.status >= 500:
        logger.error("%s %s: %s: %s", request.method, request.url.path, error.code, error)
    return error_response(request.url.path, error)


def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = error.errors()
    first = errors[0]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", first["msg"])
        return respond(request.url.path, 400, "invalid_json", f"the body is not JSON: {reason}")
    fields = [{"field": _field(e["loc"]), "message": _words(request, e)} for e in errors[:20]]
    detail = refusal(fields[0]["field"], first | {"msg": fields[0]["message"]})
    return respond(request.url.path, 422, "invalid_request", detail, errors=fields)


def _words(request: Request, error: Mapping[str, Any]) -> str:
    if error["type"] in ("int_parsing", "int_parsing_size", "float_parsing") and error["loc"][0] == "query":
        noun = "an integer" if error["type"].startswith("int") else "a number"
        return f"Input should be {noun}{_query_limits(request, str(error['loc'][1]))}"
    model = _body_part(request, error["loc"][1:-1]) if error["type"] == "extra_forbidden" else None
    return fault_message(error) if model is None else f"no such member; there are {', '.join(model.model_fields)}"


def _query_limits(request: Request, name: str) -> str:
    """The limits of a query parameter that is a number, in words."""
    route = request.scope.get("route")
    parameters = route.dependant.query_params if isinstance(route, APIRoute) else []
    limits = [limit for one in parameters if one.alias == name for limit in one.field_info.metadata]
    low, high = ([getattr(limit, side) for limit in limits if hasattr(limit, side)] for side in ("ge", "le"))
    return number_limits(low[0] if low else None, high[0] if high else None)


def _body_part(request: Request, way: Sequence[int | str]) -> type[BaseModel] | None:
    """The model of the object at ``way`` in the body that the route of a request takes; None where it has none."""
    route = request.scope.get("route")
    field = route.body_field if isinstance(route, APIRoute) else None
    model: Any = None if field is None else field.field_info.annotation
    for step in way:
        part = model.model_fields.get(str(step)) if isinstance(model, type) and issubclass(model, BaseModel) else None
        model = None if part is None else part.annotation
    return model if isinstance(model, type) and issubclass(model, BaseModel) else None


def _field(loc: tuple[int | str, ...]) -> str:
    return ".".join(str(part)[:80] for part in loc)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _HTTP_CODES.get(error.status_code, "http_error")
    detail = str(error.detail)
    if error.status_code == 404:
        detail = f"nothing is at {request.url.path}; /openapi.json lists what is"
    elif error.status_code == 405:
        allowed = ", ".join(_allowed(request))
        detail = f"{request.url.path} does not take {request.method}, but {allowed}"
        return respond(request.url.path, 405, code, detail, {"Allow": allowed})
    elif error.status_code == 400:
        code, detail = "invalid_json", await _unread_json(request, error.__cause__)
    elif not detail:
        detail = http.HTTPStatus(error.status_code).phrase
    return respond(request.url.path, error.status_code, code, detail, error.headers)


async def _unread_json(request: Request, cause: BaseException | None) -> str:
    """Why a body, which has been received, was not read as JSON, by what its parser raised."""
    if isinstance(cause, RecursionError):
        depth = await run_in_threadpool(nesting, await request.body())
        return f"the body is JSON that is nested {depth} levels deep, too deep to be read; no request needs more than 3"
    if isinstance(cause, ValueError) and not isinstance(cause, UnicodeError):
        digits = await run_in_threadpool(longest_integer, await request.body())
        return f"the body is JSON with an integer of {digits} digits; the limit is {sys.get_int_max_str_digits()}"
    return "the body is not JSON in UTF-8"


def _allowed(request: Request) -> list[str]:
    """The methods of every route at the path; a router answers 405 by the first route that it meets there."""
    methods: set[str] = set()
    for route in (*request.app.routes, *request.app.state.routes):
        if isinstance(route, Route) and route.path_regex.match(request.url.path):
            methods |= route.methods or set()
    return sorted(methods | ({"HEAD"} if "GET" in methods else set()))


def _on_exception(request: Request, error: Exception) -> Response:
    return _fault(request.url.path, error)


def _fault(path: str, error: Exception) -> Response:
    # The log has the traceback; what the client gets names no internals.
    detail = f"the service failed to answer ({type(error).__name__}); its log says why"
    return respond(path, 500, "internal_error", detail)
