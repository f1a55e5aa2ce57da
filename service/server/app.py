"""The FastAPI application: routes, problems, checks of requests, and the OpenAPI document."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from fastapi import FastAPI

from tirgemm._version import __version__
from tirgemm.service.http import problems
from tirgemm.service.http.absolute_form import AbsoluteForm
from tirgemm.service.http.answer_known_kernels import AnswerKnownKernels
from tirgemm.service.http.body_limit import BodyLimit
from tirgemm.service.http.events import LeftStreams
from tirgemm.service.http.head_requests import HeadRequests
from tirgemm.service.http.host_check import HostCheck, own_names
from tirgemm.service.http.key_check import KeyCheck, holds_key
from tirgemm.service.http.pages import (
    assets,
    compare_page,
    fleet,
    kernel_table_page,
    login,
    models,
    one_kernel_page,
    spaces,
    timelines,
)
from tirgemm.service.http.pages import jobs as job_pages
from tirgemm.service.http.pages.problem_pages import ProblemPages
from tirgemm.service.http.request_metrics import RequestMetrics
from tirgemm.service.http.routes import artifacts, batches, explain, info, jobs, kernels, metrics
from tirgemm.service.http.security_scheme import describe_security
from tirgemm.service.http.state import ServiceState
from tirgemm.service.settings import MAX_BATCH_BODY_BYTES, MAX_BODY_BYTES, MAX_HEADER_BYTES
from tirgemm.service.traces import request_telemetry

DESCRIPTION = """\
POST a matrix-multiply problem, get the fastest verified kernel for it, its timings, and a signed file to load.
Every error is an `application/problem+json` document with a `code` to switch on.
"""


class App(FastAPI):
    """FastAPI with our problem documents in its schema."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = describe_security(problems.describe(super().openapi()))
        return self.openapi_schema


def _is_untraced(scope: MutableMapping[str, Any]) -> bool:
    """Of probes and scrapes there are no spans, nor of an address that holds a key, which would be sent along."""
    return not scope["path"].startswith("/v1/") or holds_key(scope["query_string"])


def create_app(state: ServiceState) -> FastAPI:
    """The application on an open service state."""
    app = App(
        title="tirgemm",
        version=__version__,
        description=DESCRIPTION,
        responses=problems.RESPONSES,
        # The documentation pages would load scripts from elsewhere; /openapi.json is what tools read.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry=request_telemetry(_is_untraced),
    )
    app.state.service = state
    # The last one added is asked first. What they are asked for are HTTP requests: Uvicorn, as http_server.py runs it,
    # knows neither a lifespan nor WebSockets.
    app.add_middleware(LeftStreams)
    app.add_middleware(AnswerKnownKernels, state=state)
    app.add_middleware(BodyLimit, limit=MAX_BODY_BYTES, longer={("POST", "/v1/batches"): MAX_BATCH_BODY_BYTES})
    app.add_middleware(KeyCheck, state=state)
    names = own_names(state.settings.host, state.settings.hosts)
    app.add_middleware(HostCheck, names=names, header_bytes=MAX_HEADER_BYTES, state=state)
    app.add_middleware(problems.FaultAnswers)
    app.add_middleware(ProblemPages)
    # Around the pages of problems, too, which are made of the body that HEAD leaves out.
    app.add_middleware(HeadRequests)
    problems.install(app)
    routers = [module.router for module in (kernels, explain, batches, jobs, artifacts, info, metrics)]
    routers += [module.router for module in (assets, login, kernel_table_page, one_kernel_page, compare_page)]
    routers += [module.router for module in (job_pages, models, fleet, spaces, timelines)]
    for router in routers:
        app.include_router(router)
    app.state.routes = [route for router in routers for route in router.routes]
    app.add_middleware(RequestMetrics, state=state, routes=app.state.routes)
    app.add_middleware(AbsoluteForm)
    return app
