"""A service that lists no kernel, and a linear that is accelerated by it."""

from __future__ import annotations

from typing import Any

import httpx

from tests.helpers.fake_service import CPU, FakeService
from tirgemm import Client, Gemm

GEMM = Gemm.parse("33x17x19:f32:nt")


class Unlisted(FakeService):
    """A service that lists no kernel until ``listed``: what it has comes out of jobs."""

    listed = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if not self.listed and (request.method, request.url.path) == ("GET", "/v1/kernels"):
            self.requests.append(request)
            return httpx.Response(200, json={"kernels": [], "next": None})
        return super().handle_request(request)


def accelerated(client: Client, **more: Any) -> tuple[Any, Any, Any]:
    """A model, its report, and a call of it that must be right."""
    import torch

    from tirgemm.torch import accelerate

    made = torch.nn.Linear(19, 17, bias=False)
    x = torch.randn(33, 19)
    wanted = made(x)

    def check() -> None:
        assert torch.allclose(made(x), wanted, atol=1e-5)

    report = accelerate(made, rows=33, client=client, **more)
    check()
    return made, report, check


def role(table: Any) -> str | None:
    kernel = table.find(GEMM, CPU)
    return None if kernel is None else kernel.manifest.role
