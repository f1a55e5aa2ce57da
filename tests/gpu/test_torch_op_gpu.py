"""``tirgemm::gemm`` and ``tirgemm call`` on a real GPU, with the simt family's default kernels."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from unittest.mock import patch

import pytest

from tirgemm.service import cli
from tirgemm.tuning_db.data_folder import signer

torch = pytest.importorskip("torch", reason="the GPU tests of the operator call with PyTorch tensors")

from tests.gpu.launcher_samples import GPUS, artifact, expected, loaded, operands  # noqa: E402 (it imports torch)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.torch,
    pytest.mark.skipif(not GPUS, reason="this machine has no NVIDIA GPU"),
]

PLAIN = "257x129x65:f16:nt:align=2"
RANGED = "1..130x67x35:f16:nn:alpha:beta:bias:align=2"


@pytest.mark.parametrize("text", [PLAIN, RANGED, "129x67x35:bf16:tn:align=2"])
def test_it_passes_opcheck_on_cuda(text: str) -> None:
    from tirgemm.torch import register

    kernel = loaded(artifact(text))
    given = operands(kernel.gemm)
    beta = 0.5 if kernel.gemm.beta else 1.0
    arguments = (given["a"], given["b"], given.get("c"), given.get("bias"), register(kernel), 1.0, beta)
    torch.library.opcheck(torch.ops.tirgemm.gemm.default, arguments)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_it_compiles_and_computes_on_cuda(backend: str) -> None:
    from tirgemm.torch import matmul_op

    if backend == "inductor" and importlib.util.find_spec("triton") is None:
        pytest.skip("inductor needs Triton for CUDA, which is not installed")
    kernel = loaded(artifact())
    gemm, given = matmul_op(kernel), operands(kernel.gemm)
    compiled = torch.compile(lambda a, b: torch.relu(gemm(a, b)) * 2, fullgraph=True, backend=backend)
    with patch.dict(os.environ):  # Inductor leaves variables for Triton
        computed = compiled(given["a"], given["b"])
    assert torch.equal(computed.double(), 2 * expected(kernel.gemm, given).clamp(min=0))


def test_it_is_captured_in_a_cuda_graph_and_replayed_on_new_input() -> None:
    from tirgemm.torch import matmul_op

    kernel = loaded(artifact())
    gemm, given = matmul_op(kernel), operands(kernel.gemm)
    gemm(given["a"], given["b"])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = gemm(given["a"], given["b"])
    given["a"].copy_(operands(kernel.gemm, seed=7)["a"])
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(result.double(), expected(kernel.gemm, given))


def test_it_runs_on_the_current_stream() -> None:
    from tirgemm.torch import matmul_op

    kernel = loaded(artifact())
    gemm, given, stream = matmul_op(kernel), operands(kernel.gemm), torch.cuda.Stream()
    late = torch.zeros_like(given["a"])
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late.copy_(given["a"])
        result = gemm(late, given["b"])
    stream.synchronize()
    assert torch.equal(result.double(), expected(kernel.gemm, given))


@pytest.mark.parametrize("text", [PLAIN, RANGED, "129x67x35:bf16:nn:align=2"])
def test_the_command_line_calls_and_verifies_a_gpu_kernel(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, data = tmp_path / "kernel.tirgemm", tmp_path / "data"
    made = ["tune", text, "--device", "cuda:0", "--family", "simt", "--effort", "none"]
    assert cli.main([*made, "--data", str(data), "--output", str(path), "--json"]) == 0
    capsys.readouterr()
    trusted = ["--trust", signer(data).public, "--json"]
    assert cli.main(["call", str(path), *trusted]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["passed"]
    assert document["median_us"] > 0
    assert cli.main(["verify", str(path), *trusted]) == 0
    checks = {check["check"]: check["result"] for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["run here"] == "passed"
