"""``accelerate`` with a client of a real service, in processes of its own: what it has tuned, its default, its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.torch.restored_table import restored_table
from tests.waiting import until
from tirgemm import Client, Gemm
from verification.service.processes import Serve

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

TUNED, OTHER = Gemm.parse("5x29x37:f32:nt:bias"), Gemm.parse("5x23x29:f32:nt:bias")


def test_a_model_takes_the_tuned_kernel_of_a_real_service_and_a_default_until_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tirgemm.torch import accelerate

    monkeypatch.setattr("tirgemm.torch.service_kernels.POLL_S", 0.05)
    model = torch.nn.Sequential(torch.nn.Linear(37, 29), torch.nn.ReLU(), torch.nn.Linear(29, 23))
    x = torch.randn(5, 37)

    def roles(report: Any) -> dict[Gemm, str]:
        return {gemm: role for linear in report.linears for gemm, role in linear.problems}

    with torch.no_grad(), restored_table():
        wanted = model(x)
        with (
            Serve(tmp_path / "data") as server,
            Client(server.url, cache_dir=tmp_path / "cache", patience=1.0) as client,
        ):
            job = client.submit(TUNED, effort="quick", budget={"trials": 1, "seconds": 300}).job_id
            assert [event.kind for event in client.events(job)][-1] == "done"
            report = accelerate(model, rows=5, client=client)
            assert roles(report)[TUNED] == "tuned"
            until(lambda: len(report.replaced) == 2)
            torch.testing.assert_close(model(x), wanted)
        assert report.wait(60)
        assert roles(report)[TUNED] == "tuned"
        assert len(report.replaced) == 2, "what has come stays"
        assert roles(report)[OTHER] == "tuned" or OTHER in report.failures
        torch.testing.assert_close(model(x), wanted)
        report.undo()
        assert torch.equal(model(x), wanted)
