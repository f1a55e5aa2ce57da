"""A client without any trust of its own, against a service process of the same user."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tirgemm
from tests.helpers.artifact_samples import CONFIG, certified, operands
from tests.service.support import CPU
from tirgemm import Client, Gemm
from tirgemm.artifact.known_servers import KnownServers
from tirgemm.service import cli
from tirgemm.timings import Timing, Timings
from tirgemm.tuning.records import Certificate, KernelRecord
from tirgemm.tuning_db import data_folder
from verification.service.processes import Serve

SHAPE = Gemm.parse("33x17x19:f32:nt")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder that is not the user's default one, with one kernel that its own key signed."""
    for name in ("CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "service"
    artifact = certified(SHAPE, signer=data_folder.signer(folder))
    certificate = Certificate("0" * 64, True, ({"name": "exact"},), "numpy fp64")
    timings = Timings({"sustained": Timing(12.5)})
    with data_folder.open_store(folder) as store:
        store.put_device(CPU)
        record = KernelRecord(
            gemm=SHAPE,
            device=CPU,
            regime="sustained",
            role="tuned",
            config=CONFIG,
            kernel_sha256="0" * 64,
            artifact_sha256=store.put_blob(artifact),
            artifact_bytes=len(artifact),
            certificate=certificate,
            timings=timings,
            trials=32,
        )
        store.put_kernel(record)
    return folder


def test_a_kernel_of_the_users_own_service_is_loaded_called_and_verified(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    key = data_folder.signer(data).public
    with Serve(data, "--no-worker") as server:
        with Client(server.url) as client:
            kernel = client.kernel(SHAPE)
        assert f"trusting the key of your own service at {server.url}: {key}" in caplog.text
        tensors, product = operands(SHAPE)
        assert np.array_equal(kernel(tensors["a"], tensors["b"]), product)
        assert KnownServers.default().keys(server.url) == {key}
        caplog.clear()
        assert cli.main(["get", str(SHAPE), "--url", server.url, "-o", "k", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["file"] == "k"
        assert not caplog.records
    assert cli.main(["verify", "k"]) == 0
    assert tirgemm.load(kernel.save(tmp_path / "again")).kernel_sha256 == kernel.kernel_sha256
