"""The FastAPI application: routes, problems, the body limit, and the OpenAPI document."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from tirgemm._version import __version__
from tirgemm.service.http import problems
from tirgemm.service.http.body_limit import BodyLimit
from tirgemm.service.http.routes import artifacts, explain, info, jobs, kernels
from tirgemm.service.http.state import ServiceState
from tirgemm.service.settings import MAX_BODY_BYTES

DESCRIPTION = """\
POST a matrix-multiply problem, get the fastest verified kernel for it, its timings, and a signed file to load.
Every error is an `application/problem+json` document with a `code` to switch on.
"""


class App(FastAPI):
    """FastAPI with our problem documents in its schema."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = problems.describe(super().openapi())
        return self.openapi_schema


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
    )
    app.state.service = state
    app.add_middleware(BodyLimit, limit=MAX_BODY_BYTES)
    problems.install(app)
    for module in (kernels, explain, jobs, artifacts, info):
        app.include_router(module.router)

    return app
