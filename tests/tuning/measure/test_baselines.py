"""The GPU's baselines as far as they go without a GPU: the choice among candidates, cuBLASLt's operands, Triton's
configs."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.helpers.fake_cublaslt import FakeCublasLt
from tirgemm.detect import device as detect
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.reference.numbers import BITS, decode, encode
from tirgemm.tuning.driver.tensors import View
from tirgemm.tuning.evaluate import Evaluator
from tirgemm.tuning.measure import measurer as measurer_module
from tirgemm.tuning.measure.baselines import cublaslt, cublaslt_baseline, triton_baseline
from tirgemm.tuning.measure.baselines.cublaslt import CublasLt, CublasLtError, Descriptor
from tirgemm.tuning.measure.baselines.cublaslt_baseline import CublasLtBaseline, CublasLtUnsplitBaseline, alignment
from tirgemm.tuning.measure.baselines.numpy_baseline import BaselineUnavailable
from tirgemm.tuning.measure.baselines.triton_baseline import by_tma, configs
from tirgemm.tuning.measure.baselines.tuned_baseline import FINALISTS, Refused, choose
from tirgemm.tuning.measure.measurer import BASELINES, Measurer
from tirgemm.tuning.verify.plan import layout_of, tensor_shape

# -- the choice ------------------------------------------------------------------------------------


def test_the_finals_decide_between_the_fastest_at_first_sight() -> None:
    first = [9.0, 3.0, 2.0, 4.0, 8.0]
    later = {1: 2.5, 2: 2.7, 3: 2.6}
    seen: list[float] = []

    def screen(i: int, best: float) -> float:
        seen.append(best)
        return first[i]

    chosen = choose(5, screen, lambda indices: {i: later[i] for i in indices})
    assert chosen.index == 1
    assert set(chosen.finals_us) == set(later)
    assert len(chosen.finals_us) == FINALISTS
    assert seen == [float("inf"), 9.0, 3.0, 2.0, 2.0]


def test_candidates_that_refuse_are_reported_and_never_chosen() -> None:
    def screen(i: int, _: float) -> float:
        if i != 1:
            raise Refused(f"no {i}")
        return 5.0

    labels = [{"number": i} for i in range(6)]
    actual = choose(6, screen, lambda _: pytest.fail("one candidate needs no finals")).to_json(labels)
    assert actual["chosen"] == 1
    assert actual["label"] == {"number": 1}
    assert actual["screened_us"] == [None, 5.0, None, None, None, None]
    assert actual["refused"] == {"0": "no 0", "2": "no 2", "3": "no 3"}


def test_a_baseline_whose_candidates_all_refuse_is_absent_with_a_reason() -> None:
    def screen(i: int, _: float) -> float:
        raise Refused(f"no {i}")

    with pytest.raises(BaselineUnavailable, match="none of 4 candidates runs: no 0"):
        choose(4, screen, lambda _: {})


# -- cuBLASLt --------------------------------------------------------------------------------------


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeCublasLt:
    fake = FakeCublasLt()
    monkeypatch.setattr(cublaslt_baseline, "cublaslt", lambda: CublasLt(fake))
    monkeypatch.setattr(cublaslt_baseline, "Memory", lambda nbytes: SimpleNamespace(address=4096, nbytes=nbytes))
    return fake


class Operand:
    """An operand in host memory of random normal numbers; D of NaN."""

    def __init__(self, gemm: Gemm, name: str, seed: int) -> None:
        self.layout = layout_of(gemm, name, gemm.m_max)
        values = np.random.default_rng([seed, len(name), ord(name[0])]).standard_normal(self.layout.span)
        self.bits = encode((values if name != "d" else values * np.nan).astype(np.float32), self.layout.dtype)
        self.shape, strides = tensor_shape(self.layout)
        self.view = View(self.bits.ctypes.data, self.layout.dtype, self.shape, strides)
        steps = [np.dtype(BITS[self.layout.dtype]).itemsize * s for s in strides]
        self._window = np.lib.stride_tricks.as_strided(self.bits, self.shape, steps)

    @property
    def values(self) -> Any:
        return decode(np.ascontiguousarray(self._window), self.layout.dtype)


def operand_set(gemm: Gemm, seed: int = 0) -> dict[str, Operand]:
    return {name: Operand(gemm, name, seed) for name in (*gemm.inputs, "d")}


def expected(gemm: Gemm, operands: dict[str, Operand]) -> Any:
    a, b = operands["a"].values, operands["b"].values
    actual = (a.swapaxes(-1, -2) if gemm.trans_a else a) @ (b.swapaxes(-1, -2) if gemm.trans_b else b)
    actual = actual + (operands["c"].values if gemm.beta else 0) + (operands["bias"].values if gemm.bias else 0)
    return np.maximum(actual, 0) if gemm.act == "relu" else actual


@pytest.mark.parametrize(
    "text",
    [
        *(f"17x13x11:f16:{layout}:align=2" for layout in ("nn", "nt", "tn", "tt")),
        "17x13x11:bf16:tn:out=f32:lda=19:ldb=14:ldd=16",
        "5x7x9:f16:nn:batch=3:stride_a=64:ldd=9:stride_d=70",
        "5x7x9:f16:tt:batch=2:alpha:beta:ldc=10:stride_c=64:bias",
        "17x13x11:f16:nt:beta:bias:act=relu",
        "17x13x11:f16:nt:act=relu",
        "17x13x11:f16:nt:acc=f16:alpha:beta",
        "3..17x13x11:f32:tn",
        "1x1x1:f16:tt",
    ],
)
def test_cublaslt_gets_the_problem_that_is_meant(library: FakeCublasLt, text: str) -> None:
    gemm = Gemm.parse(text)
    baseline = CublasLtBaseline(gemm, 0, 5)
    sets = [operand_set(gemm, seed) for seed in range(2)]
    candidates = baseline.candidates([{name: o.view for name, o in one.items()} for one in sets])
    assert len(candidates) == 2  # the second of three has a state that says no
    assert [c.label["id"] for c in candidates] == [0, 20]
    assert candidates[1].label["cluster"] == 28
    for i, operands in enumerate(sets):
        with baseline.context():
            candidates[1].call(i)()
        unit = {"f16": 2**-10, "bf16": 2**-7, "f32": 2**-20}[gemm.out]
        assert np.allclose(operands["d"].values, expected(gemm, operands), rtol=unit, atol=unit / 100)
    assert library.ran == [2, 2]


def test_the_heuristics_are_told_the_true_alignment_and_the_workspace(library: FakeCublasLt) -> None:
    gemm = Gemm.parse("16x16x16:f16:nn:beta")
    memory = np.zeros(8192, np.uint8)
    base = memory.ctypes.data + -memory.ctypes.data % 512
    offsets = {"a": 256, "b": 1024 + 32, "c": 2048 + 8, "d": 4096 + 2}
    views = {name: View(base + at, "f16", (16, 16), (16, 1)) for name, at in offsets.items()}
    CublasLtBaseline(gemm, 0, 5).candidates([views])
    # The library's A is our B.
    assert [library.preference[i] for i in (1, 5, 6, 7, 8)] == [32 << 20, 32, 256, 8, 2]


@pytest.mark.parametrize(("kind", "schemes"), [(CublasLtBaseline, None), (CublasLtUnsplitBaseline, 0)])
def test_only_the_unsplit_baseline_forbids_reductions(
    library: FakeCublasLt, kind: type[CublasLtBaseline], schemes: int | None
) -> None:
    gemm = Gemm.parse("16x16x16:f16:nn:invariant")
    kind(gemm, 0, 5).candidates([{n: o.view for n, o in operand_set(gemm).items()}])
    assert library.preference.get(3) == schemes


def test_an_unsplit_cublaslt_is_beside_invariant_problems_alone(library: FakeCublasLt) -> None:
    with pytest.raises(BaselineUnavailable, match="this problem is not invariant"):
        CublasLtUnsplitBaseline(Gemm.parse("16x16x16:f16:nn"), 0, 5)
    assert not library.objects


def test_alignment_is_the_worst_of_all_sets_and_at_most_256() -> None:
    assert alignment([4096, 8192]) == 256
    assert alignment([4096, 8192 + 48]) == 16
    assert alignment([4097]) == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("8x8x8:f16:nt:act=silu", "no epilogue silu"),
        ("8x8x8:f16:nt:act=gelu", "no epilogue gelu;"),
        ("8x8x8:f16:nt:acc=f16:out=f32", "only where it writes fp16, not f32"),
    ],
)
def test_what_cublaslt_cannot_do_in_one_call_is_absent(library: FakeCublasLt, text: str, reason: str) -> None:
    with pytest.raises(BaselineUnavailable, match=reason):
        CublasLtBaseline(Gemm.parse(text), 0, 5)
    assert not library.objects


def test_a_problem_without_heuristics_is_absent(library: FakeCublasLt) -> None:
    library.offered = 0
    gemm = Gemm.parse("8x8x8:f16:nt")
    with pytest.raises(BaselineUnavailable, match=r"does not offer this problem: .*CUBLAS_STATUS_NOT_SUPPORTED"):
        CublasLtBaseline(gemm, 0, 5).candidates([{n: o.view for n, o in operand_set(gemm).items()}])


def test_an_algorithm_that_does_not_run_refuses(library: FakeCublasLt) -> None:
    library.broken = frozenset({2})
    gemm = Gemm.parse("8x8x8:f16:nt")
    operands = operand_set(gemm)
    candidates = CublasLtBaseline(gemm, 0, 5).candidates([{n: o.view for n, o in operands.items()}])
    candidates[0].call(0)()
    with pytest.raises(Refused, match="cublasLtMatmul answers"):
        candidates[1].call(0)()


def test_descriptors_are_freed_with_their_objects() -> None:
    fake = FakeCublasLt()
    made = Descriptor(CublasLt(fake), "MatmulPreference")
    assert fake.objects[1]["kind"] == "MatmulPreference"
    del made
    assert fake.objects == {-1: {}}


def test_structures_have_the_sizes_of_the_header() -> None:
    result = cublaslt.HeuristicResult
    assert ctypes.sizeof(cublaslt.Algo) == 64
    assert ctypes.sizeof(result) == 96
    assert [getattr(result, name).offset for name in ("workspace_bytes", "state", "waves", "reserved")] == [
        64,
        72,
        76,
        80,
    ]


def test_the_installed_library_knows_every_attribute() -> None:
    try:
        library = cublaslt.cublaslt()
    except OSError:
        pytest.skip("libcublasLt is not installed")
    gemm = Gemm.parse("33x40x50:bf16:tn:bias:act=relu:batch=3:out=f32")
    problem = cublaslt_baseline.CublasProblem.of(library, gemm)
    problem.description.set(cublaslt.BIAS_POINTER, 256)
    preference = Descriptor(library, "MatmulPreference")
    for attribute in (cublaslt.MAX_WORKSPACE_BYTES, cublaslt.REDUCTION_SCHEMES, *cublaslt.MIN_ALIGNMENT_BYTES.values()):
        preference.set(attribute, 64)
    assert set(library.config(cublaslt.Algo())) == set(cublaslt.ALGO_CONFIG)
    with pytest.raises(CublasLtError, match="SetAttribute answers CUBLAS_STATUS_INVALID_VALUE"):
        preference.set((99, ctypes.c_uint32), 1)


# -- Triton ----------------------------------------------------------------------------------------

SHARED_BYTES = 227 * 1024


@pytest.mark.parametrize("m", [1, 16, 17, 64, 65, 512, 8192])
@pytest.mark.parametrize("n", [64, 4096])
def test_triton_configs_are_few_and_fit_into_shared_memory(m: int, n: int) -> None:
    tried = configs(m, n, 132)
    assert 4 <= len(set(tried)) == len(tried) <= 6
    for config in tried:
        for size in (config.tile_m, config.tile_n, config.tile_k):
            assert size & (size - 1) == 0
        loads = 2 * config.stages * config.tile_k * (config.tile_m + config.tile_n)
        store = 2 * config.tile_m * config.tile_n // 2
        assert loads + store <= SHARED_BYTES
        assert config.tile_n // 2 * 2 >= 16  # a row of half a tile of D is a TMA box
        sums = config.tile_m * config.tile_n / (32 * config.warps)
        assert sums <= 128  # registers of a thread


def test_triton_tries_wide_tiles_where_there_are_many_and_short_ones_for_few_rows() -> None:
    assert max(c.tile_m for c in configs(4, 8192, 132)) <= 64
    assert max(c.tile_m * c.tile_n for c in configs(8192, 8192, 132)) == 128 * 256
    assert max(c.tile_m * c.tile_n for c in configs(512, 512, 132)) < 128 * 256


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("8x8x8:f32:nt", "16-bit inputs"),
        ("8x8x8:f16:nt:batch=2", "not a batch of 2"),
        ("8x8x8:f16:nt:alpha:bias:act=relu", "without alpha, bias, relu"),
    ],
)
def test_what_triton_does_not_compute_is_absent(text: str, reason: str) -> None:
    with pytest.raises(BaselineUnavailable, match=reason):
        triton_baseline.TritonBaseline(Gemm.parse(text), 0, 0)


@pytest.mark.skipif(importlib.util.find_spec("triton") is not None, reason="Triton is installed")
def test_triton_is_absent_where_it_is_not_installed() -> None:
    with pytest.raises(BaselineUnavailable, match="is missing: No module named"):
        triton_baseline.TritonBaseline(Gemm.parse("8x8x8:f16:nt"), 0, 0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("8x8x8:f16:nt", "this problem is not invariant"),
        ("8x8x8:f32:nt:invariant", "16-bit inputs"),
        ("8x8x8:bf16:nt:bias:invariant", "without bias"),
    ],
)
def test_what_triton_with_fixed_tiles_does_not_compute_is_absent(text: str, reason: str) -> None:
    with pytest.raises(BaselineUnavailable, match=reason):
        triton_baseline.TritonInvariantBaseline(Gemm.parse(text), 0, 0)


@pytest.mark.skipif(importlib.util.find_spec("triton") is not None, reason="Triton is installed")
def test_triton_with_fixed_tiles_is_absent_where_triton_is_not_installed() -> None:
    with pytest.raises(BaselineUnavailable, match="is missing: No module named"):
        triton_baseline.TritonInvariantBaseline(Gemm.parse("8x8x8:f16:nt:invariant"), 0, 0)


def test_triton_with_fixed_tiles_has_one_config_whatever_the_sizes_are() -> None:
    class Stub(triton_baseline.TritonInvariantBaseline):
        def __init__(self, gemm: Gemm) -> None:
            self._gemm, self._version = gemm, "3"

    labels = [
        [option.label for option in Stub(Gemm.parse(f"{m}x576x7168:{dtype}:nt:invariant")).candidates([])]
        for dtype in ("f16", "bf16")
        for m in (1, 8192)
    ]
    assert labels[0] == labels[1] != labels[2] == labels[3]
    assert all(len(tried) == 1 and tried[0]["tma"] == "" for tried in labels)


def test_tma_needs_rows_and_bases_on_multiples_of_16_bytes() -> None:
    def of(text: str, *addresses: int) -> bool:
        return by_tma(layout_of(Gemm.parse(text), "a", 16), addresses)

    assert of("16x16x24:f16:nt", 256, 512)
    assert not of("16x16x20:f16:nt", 256)
    assert of("16x16x20:f16:nt:lda=24", 256)
    assert not of("16x16x24:f16:nt", 256, 520)


# -- who uses which --------------------------------------------------------------------------------


def test_a_gpu_offers_the_baselines_whose_packages_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: set[str] = set()
    finder = SimpleNamespace(find_spec=lambda name: name if name in installed else None)
    monkeypatch.setattr(measurer_module, "PathFinder", finder)
    measurer: Any = SimpleNamespace(device=named_device("sm_90a"))
    assert Measurer.baselines(measurer) == ("cublaslt_best", "cublaslt_unsplit")
    installed.add("torch")
    assert Measurer.baselines(measurer) == ("torch.matmul", "cublaslt_best", "cublaslt_unsplit")
    installed.add("triton")
    with_triton = (
        *("torch.matmul", "torch.compile", "cublaslt_best", "cublaslt_unsplit"),
        *("triton", "triton_invariant"),
    )
    assert Measurer.baselines(measurer) == with_triton
    installed.add("cutlass_library")
    assert Measurer.baselines(measurer) == BASELINES["cuda"] == (*with_triton, "cutlass")


def test_a_cpu_offers_pytorch_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: set[str] = set()
    finder = SimpleNamespace(find_spec=lambda name: name if name in installed else None)
    monkeypatch.setattr(measurer_module, "PathFinder", finder)
    measurer: Any = SimpleNamespace(device=detect("cpu"))
    assert Measurer.baselines(measurer) == ("numpy_f32",)
    installed.add("torch")
    assert Measurer.baselines(measurer) == BASELINES["cpu"] == ("numpy_f32", "torch.matmul")


def test_pytorch_is_offered_while_this_process_keeps_it_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As a worker does until TVM is imported; the measuring process imports it."""
    (tmp_path / "torch.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    measurer: Any = SimpleNamespace(device=detect("cpu"))
    assert "torch.matmul" in Measurer.baselines(measurer)


def test_tuning_leaves_the_baselines_out_that_are_tuned_themselves() -> None:
    measurer = SimpleNamespace(baselines=lambda: BASELINES["cuda"])
    workbench: Any = SimpleNamespace(measurer=measurer)
    evaluator = Evaluator(Gemm.parse("8x8x8:f16:nt"), workbench, "sustained", seed=0, cancel=threading.Event())
    assert evaluator.baselines == ("torch.matmul",)
