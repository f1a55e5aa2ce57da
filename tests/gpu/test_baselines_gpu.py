"""The GPU's baselines compute what they claim: every candidate of each against fp64, then both within a measuring
session."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import pytest

from tirgemm.detect import devices
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.measure import Measurer
from tirgemm.tuning.measure.requests import RaceOptions

torch = pytest.importorskip("torch")

from tests.gpu.launcher_samples import TRUST, artifact  # noqa: E402 (it imports torch)
from tirgemm.tuning.driver.cuda import Gpu  # noqa: E402
from tirgemm.tuning.driver.tensors import CUDA, View  # noqa: E402
from tirgemm.tuning.measure.baselines.cublaslt_baseline import CublasLtBaseline  # noqa: E402
from tirgemm.tuning.measure.baselines.cutlass_baseline import CutlassBaseline  # noqa: E402
from tirgemm.tuning.measure.baselines.cutlass_build import PACKAGE  # noqa: E402
from tirgemm.tuning.measure.baselines.numpy_baseline import BaselineUnavailable  # noqa: E402
from tirgemm.tuning.measure.baselines.torch_baseline import TorchBaseline, odd_sizes  # noqa: E402
from tirgemm.tuning.measure.baselines.triton_baseline import TritonBaseline  # noqa: E402
from tirgemm.tuning.measure.baselines.tuned_baseline import Refused  # noqa: E402
from tirgemm.tuning.verify.plan import layout_of, tensor_shape  # noqa: E402

GPUS = [device for device in devices() if device.kind == "cuda"]
pytestmark = [
    pytest.mark.torch,
    pytest.mark.gpu,
    pytest.mark.skipif(not GPUS, reason="this machine has no NVIDIA GPU"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this PyTorch has no CUDA"),
]

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
UNITS = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24}

LAYOUTS = [f"520x392x264:{dtype}:{layout}" for dtype in ("f16", "bf16") for layout in ("nn", "nt", "tn", "tt")]
ODD = [f"131x67x101:{dtype}:{layout}:align=2" for dtype, layout in (("f16", "nn"), ("bf16", "nt"), ("f16", "tt"))]
CUBLASLT = [
    *LAYOUTS,
    *ODD,
    "3x1000x520:f16:nt",
    "1x1x1:f16:tn",
    "136x72x264:f32:nn",
    "136x72x264:f16:nt:acc=f16",
    "136x72x264:bf16:tn:out=f32:lda=144:ldb=80:ldd=80",
    "136x72x264:f16:nn:batch=3",
    "40x24x72:f16:tt:batch=2:stride_a=4096:ldd=32:alpha:beta:ldc=32",
    "136x72x264:f16:nt:bias",
    "136x72x264:f16:nn:bias:act=relu",
    "136x72x264:bf16:nt:beta:bias:act=gelu_tanh",
]
# Every case compiles four to six configs, at a third of a second each.
TRITON = [
    *LAYOUTS[:4],
    "520x392x264:bf16:nt",
    *ODD[:2],
    "3x1000x520:f16:nt",
    "16x264x520:bf16:nn",
    "50x264x520:f16:tn",
    "1x8x8:f16:nt",
    "4104x2056x264:f16:nt",
    "4104x2053x264:bf16:nt:align=2",
    "264x264x264:f16:nt:acc=f16",
    "300x264x72:bf16:nt:out=f32:lda=80:ldb=96:ldd=272",
]
# Every case compiles up to eight templates, ten seconds each, side by side.
CUTLASS = [
    "520x392x264:f16:nt",
    "520x392x264:bf16:tn",
    "524x396x260:f16:nn",
    "130x66x102:f16:tt:acc=f16",
    "136x72x264:bf16:nt:out=f32:lda=272:beta:alpha:batch=2:ldd=80",
    "3x1000x520:f16:nt",
]


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    return Gpu(GPUS[0])


class Operands:
    """Random normal operands on the GPU with rows that may lie apart, and what is beside D's."""

    def __init__(self, gemm: Gemm, ordinal: int, seed: int) -> None:
        self.gemm = gemm
        self.flat: dict[str, Any] = {}
        self.tensors: dict[str, Any] = {}
        self.views: dict[str, View] = {}
        generator = torch.Generator(f"cuda:{ordinal}").manual_seed(seed)
        for name in (*gemm.inputs, "d"):
            layout = layout_of(gemm, name, gemm.m_max)
            shape, strides = tensor_shape(layout)
            kind = DTYPES[layout.dtype]
            self.flat[name] = torch.randn(layout.span, generator=generator, device=f"cuda:{ordinal}").to(kind)
            self.tensors[name] = torch.as_strided(self.flat[name], shape, strides)
            self.views[name] = View(self.flat[name].data_ptr(), layout.dtype, shape, strides, CUDA, ordinal)

    def left(self, convert: Any) -> Any:
        a = convert(self.tensors["a"])
        return a.mT if self.gemm.trans_a else a

    def right(self, convert: Any) -> Any:
        b = convert(self.tensors["b"])
        return b.mT if self.gemm.trans_b else b

    @cached_property
    def expected(self) -> Any:
        """The result in fp64."""
        gemm = self.gemm
        actual = self.left(torch.Tensor.double) @ self.right(torch.Tensor.double)
        for name in gemm.inputs[2:]:  # c, bias
            actual = actual + self.tensors[name].double()
        if gemm.act == "relu":
            return actual.relu()
        return torch.nn.functional.gelu(actual, approximate="tanh") if gemm.act == "gelu_tanh" else actual

    @cached_property
    def bound(self) -> Any:
        """What the error of each element may be: the rounding of the sums, which may be added in D's dtype, and of
        D."""
        rows = self.left(torch.Tensor.double).norm(dim=-1)[..., :, None]
        cols = self.right(torch.Tensor.double).norm(dim=-2)[..., None, :]
        out = UNITS[self.gemm.out]
        return (4 * math.sqrt(self.gemm.k) * UNITS[self.gemm.acc] + out) * rows * cols + 2 * out * self.expected.abs()

    def assert_right(self, what: str) -> None:
        """Every element within its bound; NaN, which D was filled with, is not."""
        error = (self.tensors["d"].double() - self.expected).abs()
        worst = (error / self.bound).nan_to_num(nan=math.inf).max().item()
        assert worst <= 1, f"{what} of {self.gemm}: an error of {worst:.3g} times its bound"


def check(baseline: Any, gemm: Gemm, ordinal: int) -> int:
    """Run every candidate with two sets of operands; how many ran."""
    sets = [Operands(gemm, ordinal, seed) for seed in range(2)]
    torch.cuda.synchronize()
    ran, refused = 0, {}
    with baseline.context():
        for number, candidate in enumerate(baseline.candidates([one.views for one in sets])):
            try:
                calls = [candidate.call(i) for i in range(2)]
                for one in sets:
                    one.flat["d"].fill_(math.nan)
                torch.cuda.synchronize()
                for call in calls:
                    call()
            except Refused as reason:
                refused[number] = str(reason)
                continue
            torch.cuda.synchronize()
            for one in sets:
                one.assert_right(f"candidate {number} {candidate.label}")
            ran += 1
    assert not [reason for reason in refused.values() if "away from torch.matmul" in reason], refused
    return ran


@pytest.mark.parametrize("text", CUBLASLT)
def test_every_algorithm_of_cublaslt_is_right(gpu: Gpu, text: str) -> None:
    gemm = Gemm.parse(text)
    assert check(CublasLtBaseline(gemm, gpu.ordinal, int(gpu.stream)), gemm, gpu.ordinal) >= 1


@pytest.mark.parametrize("text", TRITON)
def test_every_config_of_triton_is_right(gpu: Gpu, text: str) -> None:
    pytest.importorskip("triton")
    gemm = Gemm.parse(text)
    ran = check(TritonBaseline(gemm, gpu.ordinal, int(gpu.stream)), gemm, gpu.ordinal)
    assert ran >= (4 if GPUS[0].arch == "sm_90a" else 1)


@pytest.mark.parametrize("text", CUTLASS)
def test_every_template_of_cutlass_is_right(gpu: Gpu, text: str) -> None:
    pytest.importorskip(PACKAGE)
    gemm = Gemm.parse(text)
    assert check(CutlassBaseline(gemm, gpu.ordinal, int(gpu.stream)), gemm, gpu.ordinal) >= 4


@pytest.mark.parametrize("text", [LAYOUTS[1], ODD[0], "136x72x264:f16:nn:batch=3"])
def test_torch_matmul_is_right(gpu: Gpu, text: str) -> None:
    gemm = Gemm.parse(text)
    plain_and_padded = 1 + bool(odd_sizes(gemm))
    assert check(TorchBaseline(gemm, gpu.ordinal, int(gpu.stream)), gemm, gpu.ordinal) == plain_and_padded


def test_cublaslt_offers_many_algorithms_and_says_which(gpu: Gpu) -> None:
    gemm = Gemm.parse("2048x2048x2048:f16:nt")
    operands = Operands(gemm, gpu.ordinal, 0)
    actual = CublasLtBaseline(gemm, gpu.ordinal, int(gpu.stream)).candidates([operands.views])
    assert len(actual) >= 4
    assert len({tuple(sorted(candidate.label.items())) for candidate in actual}) >= 4


def test_a_problem_that_cublaslt_does_not_offer_is_absent(gpu: Gpu) -> None:
    gemm = Gemm.parse("64x64x64:f32:nt:out=f16")
    operands = Operands(gemm, gpu.ordinal, 0)
    with pytest.raises(BaselineUnavailable, match="cuBLASLt"):
        CublasLtBaseline(gemm, gpu.ordinal, int(gpu.stream)).candidates([operands.views])


@pytest.fixture(scope="module")
def measurer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measurer]:
    with Measurer(GPUS[0], TRUST, lock_dir=tmp_path_factory.mktemp("locks"), timeout_s=60.0) as measurer:
        yield measurer


@pytest.mark.parametrize("regime", ["sustained", "isolated"])
def test_a_session_times_the_best_candidate_of_each_and_reports_the_rest(measurer: Measurer, regime: Regime) -> None:
    package = artifact("1024x1024x1024:f16:nt")
    actual = measurer.time(package, RaceOptions(regime, 20, 0.3), baselines=measurer.baselines())
    beside_others = {"cublaslt_unsplit", "triton_invariant", "torch.compile"} & set(measurer.baselines())
    assert set(actual.conditions.get("absent", {})) == beside_others
    medians = {name: statistics.median(samples) for name, samples in actual.baselines.items()}
    assert set(medians) == set(measurer.baselines()) - beside_others
    for name in ("cublaslt_best", "triton", "cutlass"):
        if name not in medians:
            continue
        chosen = actual.conditions[name]
        screened = [us for us in chosen["screened_us"] if us is not None]
        assert len(chosen["screened_us"]) == chosen["candidates"] >= 4
        assert chosen["finals_us"][str(chosen["chosen"])] == min(chosen["finals_us"].values())
        assert medians[name] == pytest.approx(chosen["finals_us"][str(chosen["chosen"])], rel=0.3)
        assert min(screened) == pytest.approx(medians[name], rel=0.5)
    # The best of the library's own algorithms is not slower than the one that PyTorch takes, up to noise.
    assert medians["cublaslt_best"] < 1.1 * medians["torch.matmul"]


def test_baselines_that_do_not_compute_a_problem_are_left_out_with_reasons(measurer: Measurer) -> None:
    fused = artifact("257x129x65:f16:nt:align=2:alpha:bias:act=silu")
    samples = measurer.time(fused, RaceOptions("isolated", 5, 0.05), baselines=measurer.baselines())
    assert set(samples.baselines) == {"torch.matmul", "torch.compile"} & set(measurer.baselines())
    assert "no epilogue silu" in samples.conditions["absent"]["cublaslt_best"]
    if "triton" in measurer.baselines():
        assert "without alpha, bias, silu" in samples.conditions["absent"]["triton"]
    if "cutlass" in measurer.baselines():
        assert "without bias, silu" in samples.conditions["absent"]["cutlass"]
