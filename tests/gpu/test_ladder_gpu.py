"""The ladder on a real GPU: every rung exact at odd sizes and the same at every launch, and the command end to end."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tirgemm.detect import devices
from tirgemm.families.simt import ladder
from tirgemm.gemm import Gemm

GPUS = [device for device in devices() if device.kind == "cuda"]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.torch,
    pytest.mark.skipif(not GPUS, reason="this machine has no NVIDIA GPU"),
]

NAMES = [rung.name for rung in ladder.RUNGS]
# Odd: no size is a multiple of a tile, k ends inside a step; the second has rows of which four elements are no
# multiple.
TEXTS = ("2049x2052x1036:f32:nn:alpha:beta", "2047x2053x519:f16:nn", "2050x2054x1034:f32:tt:beta")


@cache
def kernel(name: str, text: str) -> Any:
    from tests.gpu.launcher_samples import SIGNER, loaded
    from tirgemm.artifact import pack
    from tirgemm.tuning.build.compile import build

    gemm = Gemm.parse(text)
    config = ladder.config(name, gemm, GPUS[0])
    binary = build(gemm, config, GPUS[0])
    return loaded(
        pack(
            binary.contents(gemm, config, GPUS[0]),
            SIGNER,
        )
    )


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", NAMES)
def test_every_rung_is_exact_and_the_same_at_every_launch(name: str, text: str) -> None:
    import torch

    from tests.gpu.launcher_samples import expected, operands

    run = kernel(name, text)
    tensors = operands(run.gemm, seed=3)
    scalars = {scalar: {"alpha": 2.0, "beta": -1.0}[scalar] for scalar in run.gemm.scalars}
    right = expected(run.gemm, tensors, **scalars).to(tensors["a"].dtype)
    for _ in range(12):
        assert torch.equal(run(**tensors, **scalars), right)


def test_the_command_measures_every_rung_beside_cublas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tirgemm.service import cli

    page, file = tmp_path / "ladder.html", tmp_path / "ladder.sustained.json"
    options = ["--data", str(tmp_path / "data"), "--json", "--html", str(page), "--out", str(file), "--measure", "0.2"]
    assert cli.main(["ladder", "2048", "2048", "2048", "--baselines", "torch.matmul", *options]) == 0
    (actual,) = json.loads(capsys.readouterr().out)["ladders"]
    rungs = {rung["name"]: rung for rung in actual["rungs"]}
    assert list(rungs) == NAMES
    assert {rung["status"] for rung in rungs.values()} == {"measured"}
    assert all(rung["shares"]["torch.matmul"] > 0 for rung in rungs.values())
    assert rungs["naive"]["median_us"] > 2 * rungs["default"]["median_us"]
    assert actual["baselines_tflops"]["torch.matmul"] > 0
    assert "coalesced" in page.read_text()
    assert len(json.loads(file.read_text())["rows"]) == len(NAMES)
