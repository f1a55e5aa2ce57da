"""The race of whole models on a real GPU: eagerly and in CUDA graphs, with the simt family's defaults."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the race is of PyTorch's models")
pytest.importorskip("transformers", reason="the race is of Hugging Face's decoders")

from tests.gpu.launcher_samples import GPUS, artifact, loaded  # noqa: E402 (it imports torch)
from tirgemm.bench.results import load  # noqa: E402
from tirgemm.gemm import Gemm  # noqa: E402
from tirgemm.kernel_source import Preparation, run_in_background  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.torch,
    pytest.mark.skipif(not GPUS, reason="this machine has no NVIDIA GPU"),
]


class SimtDefaults:
    """A KernelSource that builds the simt family's default of whatever it is asked for."""

    tunes = False

    def lookup(self, gemm: Gemm, device: Any) -> None:
        del gemm, device

    def refusal(self, gemm: Gemm, device: Any, policy: Any) -> None:
        del gemm, device, policy

    def prepare(self, gemms: Sequence[Gemm], device: Any, policy: Any, arrived: Any) -> Preparation:
        del device, policy

        def make() -> None:
            for gemm in gemms:
                arrived(loaded(artifact(str(gemm))))

        return run_in_background(Preparation(tuple(gemms)), make, str)


@pytest.mark.parametrize(
    "place", [0, pytest.param(-1, marks=pytest.mark.skipif(len(GPUS) < 2, reason="this machine has no second GPU"))]
)
def test_models_agree_with_pytorch_eagerly_and_in_graphs(
    place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU that is not PyTorch's current one, too, it is that GPU which is waited for."""
    gpu = GPUS[place]
    race: Any = importlib.import_module("benchmarks.models.race")
    waited, alternating = set[int](), race.alternating

    def alternated(contenders: Any, turns: Any, synchronise: Any) -> Any:
        waited.add(torch.cuda.current_device())
        return alternating(contenders, turns, synchronise)

    monkeypatch.setattr(race, "alternating", alternated)
    options = ["--device", gpu.name, "--models", "qwen-tiny", "--tokens", "1", "5", "--turns", "3"]
    options += ["--turn-seconds", "0.001", "--lock-dir", str(tmp_path), "--out", str(tmp_path / "models.json")]
    options += ["--data", str(tmp_path / "data")]
    variants = ["tirgemm", "tirgemm_set"]
    if int(gpu.arch[3:].rstrip("a")) >= 90:
        variants.insert(1, "tirgemm_pdl")
    assert race.main([*options, "--all-kernels", "--variants", *variants], SimtDefaults()) == 0
    rows = load(tmp_path / "models.json")["rows"]
    assert [(row["tokens"], row["mode"], row["variant"]) for row in rows] == [
        (tokens, mode, variant) for variant in variants for tokens in (1, 5) for mode in ("eager", "graph")
    ]
    # q, k and v, output, gate and up, down, head: six linears, k and v alike.
    assert all(sum(row["kernels"].values()) == 6 for row in rows)
    assert waited == {gpu.index}
