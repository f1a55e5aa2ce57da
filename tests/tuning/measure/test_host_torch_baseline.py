"""The CPU's baseline torch.matmul: every way computes the problem, the fastest is taken, slow ways cost little,
processes that are not asked for it do without."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.helpers.artifact_samples import SIGNER, packed
from tirgemm.artifact import native
from tirgemm.detect import device as detect
from tirgemm.gemm import Gemm
from tirgemm.reference.numbers import activate, decode, encode
from tirgemm.rounds import SampleBlock
from tirgemm.tuning.driver.tensors import View
from tirgemm.tuning.measure import Measurer, host_torch_baseline
from tirgemm.tuning.measure.baselines.numpy_baseline import BaselineUnavailable
from tirgemm.tuning.measure.baselines.torch_baseline import PINNED, PLAIN, careful_call
from tirgemm.tuning.measure.baselines.torch_compiled_baseline import compiled_epilogue, epilogue, matmul_and
from tirgemm.tuning.measure.baselines.tuned_baseline import Refused
from tirgemm.tuning.measure.host_torch_baseline import HostTorchBaseline, TorchCall
from tirgemm.tuning.measure.requests import RaceOptions
from tirgemm.tuning.process.child_rpc import ChildProcess, allow_torch, without_torch
from tirgemm.tuning.verify.plan import layout_of, tensor_shape

pytestmark = pytest.mark.torch
torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

GEMM = Gemm.parse("33x17x19:f16:nt")


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """PyTorch's settings as they were."""
    threads, gradients = torch.get_num_threads(), torch.is_grad_enabled()
    yield
    torch.set_num_threads(threads)
    torch.set_grad_enabled(gradients)


def nothing() -> None:
    pass


class Operands:
    """Random operands of a gemm in memory of their own, with the strides of the gemm."""

    def __init__(self, gemm: Gemm, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.bits: dict[str, Any] = {}
        self.views: dict[str, View] = {}
        self.gemm = gemm
        for name in (*gemm.inputs, "d"):
            layout = layout_of(gemm, name, gemm.m_max)
            bits = encode(rng.standard_normal(layout.span, dtype=np.float32), layout.dtype)
            shape, strides = tensor_shape(layout)
            self.views[name] = View(bits.ctypes.data, layout.dtype, shape, strides)
            steps = [bits.itemsize * s for s in strides]
            self.bits[name] = np.lib.stride_tricks.as_strided(bits, shape, steps)

    def value(self, name: str) -> Any:
        return decode(np.ascontiguousarray(self.bits[name]), self.gemm.dtype).astype(np.float64)

    @property
    def expected(self) -> Any:
        a, b = self.value("a"), self.value("b")
        x = (np.swapaxes(a, -1, -2) if self.gemm.trans_a else a) @ (np.swapaxes(b, -1, -2) if self.gemm.trans_b else b)
        for name in self.gemm.inputs[2:]:
            x = x + self.value(name)
        return activate(x, self.gemm.act)


@pytest.mark.parametrize("text", ["9x11x13:f32:tt:alpha:beta:bias:act=relu", "9x11x13:f32:nt:bias:act=gelu_tanh"])
def test_the_epilogue_that_a_gpu_compiles_computes_the_problem(text: str) -> None:
    gemm = Gemm.parse(text)
    operands = Operands(gemm, 0)
    tensors = {name: torch.from_dlpack(view) for name, view in operands.views.items()}
    for name, transposed in (("a", gemm.trans_a), ("b", gemm.trans_b)):
        tensors[name] = tensors[name].mT if transposed else tensors[name]
    matmul_and(torch, epilogue(torch, gemm), **tensors)()
    np.testing.assert_allclose(operands.value("d"), operands.expected, rtol=1e-4, atol=1e-4)


def test_the_epilogues_of_many_problems_are_compiled_one_after_the_other() -> None:
    compiled: list[Gemm] = []
    gemms = [Gemm(9, n, 13, dtype="f32", bias=True, act="relu") for n in range(11, 23)]
    for gemm in gemms:

        def backend(graph: Any, _inputs: Any, gemm: Gemm = gemm) -> Any:
            compiled.append(gemm)
            return graph.forward

        finish = compiled_epilogue(torch, gemm, backend=backend)
        for _ in range(2):
            finish(torch.zeros(9, gemm.n), None, torch.zeros(gemm.n))
    assert compiled == gemms


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("16x8x24:f16:nt", ["matmul in fp32", "matmul", "linear"]),
        ("9x11x13:f16:nt", ["matmul in fp32", "matmul", "padded", "linear"]),
        ("9x11x13:bf16:nn:bias:act=silu", ["matmul in fp32", "matmul", "padded", "addmm"]),
        ("1x11x13:f16:nt:bias:act=gelu", ["matmul in fp32", "matmul", "padded", "addmm", "linear"]),
        ("9x11x13:f32:tt:alpha:beta:bias:act=relu", ["matmul", "padded", "addmm"]),
        ("9x11x13:f32:nt:alpha:ldd=16:lda=14", ["matmul", "padded", "linear"]),
        ("9x11x13:f32:tn:batch=3:beta:act=gelu_tanh", ["matmul", "padded"]),
        ("9x16x13:f16:nn", ["matmul in fp32", "matmul", "padded"]),
        ("5..9x11x13:bf16:tt:batch=2:bias", ["matmul in fp32", "matmul", "padded"]),
        ("16x8x24:f16:nt:align=2", ["matmul in fp32", "matmul", "copied", "linear"]),
        ("16x8x24:f16:tn:lda=18:ldb=9:ldd=9", ["matmul in fp32", "matmul", "copied"]),
        ("16x8x24:f32:nn:batch=2:ldd=9:stride_d=145:bias", ["matmul", "copied"]),
        ("16x8x24:f16:nt:batch=2:stride_a=391", ["matmul in fp32", "matmul", "copied"]),
        ("9x11x13:f16:tt:lda=16:ldb=16:ldd=16:align=2", ["matmul in fp32", "matmul", "padded", "linear"]),
        ("9x8x13:bf16:tt:align=2", ["matmul in fp32", "matmul", "padded", "linear"]),
    ],
)
def test_every_way_computes_the_problem(text: str, calls: list[str]) -> None:
    gemm = Gemm.parse(text)
    baseline = HostTorchBaseline(gemm, 1, nothing)
    names = {
        "torch.matmul(a.float()": "matmul in fp32",
        "torch.matmul(a, b": "matmul",
        "torch.addmm(": "addmm",
        "torch.nn.functional.linear(": "linear",
    }

    def named(call: str) -> str:
        careful = "padded" if "F.pad" in call else "copied" if "clone" in call or call.startswith("d.copy_") else ""
        return careful or next(name for start, name in names.items() if call.startswith(start))

    assert [named(way.call) for way in baseline.ways] == calls
    unit = {"f16": 2**-9, "bf16": 2**-6, "f32": 2**-19}[gemm.dtype]
    for index, way in enumerate(baseline.ways):
        operands = Operands(gemm, index)
        (call,) = baseline.chosen({"chosen": index}, [operands.views])
        returned: Any = call()
        actual = operands.value("d") if returned is None else returned.double().numpy()
        assert np.allclose(actual, operands.expected, rtol=4 * unit, atol=4 * unit), way.call


def test_it_is_timed_on_our_threads_and_on_its_own_number_where_that_is_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_torch_baseline, "_threads_at_start", [1])
    baseline = HostTorchBaseline(GEMM, 2, nothing)
    assert [way.threads for way in baseline.ways] == [2, 1] * 4
    monkeypatch.setattr(host_torch_baseline, "_threads_at_start", [64])
    assert {way.threads for way in HostTorchBaseline(GEMM, 2, nothing).ways} == {2}
    baseline.chosen({"chosen": 1}, [Operands(GEMM).views])
    assert torch.get_num_threads() == 1
    baseline.chosen({"chosen": 0}, [Operands(GEMM).views])
    assert torch.get_num_threads() == 2


def test_its_settings_are_pinned() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        HostTorchBaseline(GEMM, 1, nothing)
        assert torch.get_float32_matmul_precision() == PINNED["float32_matmul_precision"]
        assert torch.backends.cuda.matmul.allow_tf32 is PINNED["allow_tf32"]
    finally:
        torch.set_float32_matmul_precision(before)


def made_of(*taking_us: float) -> tuple[HostTorchBaseline, Callable[[Iterator[Any]], SampleBlock], list[int]]:
    """A baseline of ways whose calls are said to take so long, how to time them, and which of them were called."""
    baseline = HostTorchBaseline(GEMM, 1, nothing)
    called: list[int] = []
    ways = range(len(taking_us))

    def prepared(way: int, _operands: object) -> Callable[[], object]:
        return partial(called.append, way)

    baseline.ways = [TorchCall(f"way {i}", 1, partial(prepared, i)) for i in ways]

    def block_of(calls: Iterator[Any]) -> SampleBlock:
        def block() -> list[float]:
            next(calls)()
            return [taking_us[called[-1]]]

        return block

    return baseline, block_of, called


def test_the_fastest_way_is_taken_and_told_with_the_others() -> None:
    baseline, block_of, called = made_of(300.0, 100.0, 200.0)
    choice = baseline.choose([Operands(GEMM, i).views for i in range(2)], block_of)
    assert (choice["chosen"], choice["label"]) == (1, {"call": "way 1", "threads": 1})
    assert choice["screened_us"] == [300.0, 100.0, 200.0]
    assert set(called) == {0, 1, 2}
    called.clear()
    for call in baseline.chosen(choice, [Operands(GEMM, i).views for i in range(2)]):
        call()
    assert called == [1, 1]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of what screens ways: one number, the seconds, which calls add to."""
    now = [0.0]
    fake = SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: now[0])
    monkeypatch.setattr(host_torch_baseline, "time", fake)
    return now


def test_a_way_that_is_slow_for_few_rows_is_not_tried_on_all(clock: list[float]) -> None:
    baseline, block_of, _ = made_of(1000.0, 0.0)
    seen: list[int] = []

    def slow(tensors: dict[str, Any]) -> Callable[[], None]:
        def call() -> None:
            seen.append(tensors["a"].shape[-2])
            assert tensors["d"].shape[-2] == seen[-1]
            clock[0] += 0.003 * seen[-1]

        return call

    baseline.ways[1] = TorchCall("slow", 1, slow)
    choice = baseline.choose([Operands(GEMM).views], block_of)
    assert choice["chosen"] == 0
    assert choice["screened_us"] == [1000.0, None]
    assert "of 33 rows took" in choice["refused"]["1"]
    assert max(seen) <= 2, "3 ms a row against 1 ms for all rows"


def test_a_way_that_stumbles_once_is_tried_on(clock: list[float]) -> None:
    baseline, block_of, _ = made_of(30_000.0, 20_000.0)
    stumbles = itertools.chain([0.15], itertools.repeat(0.0))
    way = baseline.ways[1]
    called = way.prepare({})

    def prepare(_: dict[str, Any]) -> Callable[[], object]:
        def call() -> object:
            clock[0] += next(stumbles)
            return called()

        return call

    baseline.ways[1] = TorchCall("stumbles", 1, prepare)
    assert baseline.choose([Operands(GEMM).views], block_of)["chosen"] == 1


def test_what_takes_too_long_is_refused_by_name(clock: list[float]) -> None:
    baseline = HostTorchBaseline(GEMM, 1, nothing)

    def call() -> None:
        clock[0] += 0.01

    slow = TorchCall("slow", 1, lambda _: call)
    with pytest.raises(Refused, match=r"^1 of 33 rows took \d+ us, all of them 5 us another way$"):
        baseline._require_hopeful(slow, Operands(GEMM).views, 5.0)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ModuleNotFoundError("No module named 'torch'", name="torch"), "^PyTorch is not installed$"),
        (
            ModuleNotFoundError("No module named 'sympy'", name="sympy"),
            "PyTorch does not import: No module named 'sympy'",
        ),
        (OSError("libgomp.so.1: cannot open"), "PyTorch does not import: libgomp"),
    ],
)
def test_where_pytorch_cannot_be_imported_it_is_absent_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, error: Exception, says: str
) -> None:
    def fail(_: str) -> Any:
        raise error

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(BaselineUnavailable, match=says):
        HostTorchBaseline(GEMM, 1, nothing)


def test_what_pytorch_does_not_write_is_absent() -> None:
    with pytest.raises(BaselineUnavailable, match=r"torch\.matmul writes f16, its inputs' dtype, not f32"):
        HostTorchBaseline(Gemm.parse("8x8x8:f16:nt:out=f32"), 1, nothing)


def test_a_process_without_pytorch_may_have_it_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    without_torch()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("torch")
    allow_torch()
    assert "torch" not in sys.modules
    monkeypatch.setitem(sys.modules, "torch", torch)
    without_torch()
    allow_torch()
    assert sys.modules["torch"] is torch, "what is loaded stays"


def test_the_measuring_process_imports_it_when_it_is_asked_for_and_not_before(tmp_path: Path) -> None:
    gemm = Gemm.parse("33x17x19:f32:nt")
    package = packed(gemm)
    with Measurer(detect("cpu"), SIGNER.public, lock_dir=tmp_path) as measurer:
        assert measurer.baselines() == ("numpy_f32", "torch.matmul")
        options: dict[str, Any] = {"min_samples": 3, "budget_s": 0.05}
        assert measurer.evaluate(package, "sustained")[0].passed
        measurer.time(package, RaceOptions("sustained", **options), baselines=("numpy_f32",))
        assert not torch_libraries(measurer)
        for regime in ("sustained", "isolated"):
            samples = measurer.time(package, RaceOptions(regime, **options), baselines=("numpy_f32", "torch.matmul"))
            assert set(samples.baselines) == {"numpy_f32", "torch.matmul"}
            assert len(samples.baselines["torch.matmul"]) >= 3
            choice = samples.conditions["torch.matmul"]
            assert choice["label"]["threads"] <= native.host_threads()
            assert choice["label"]["call"] in (PLAIN, careful_call(GEMM), "torch.nn.functional.linear(a, b)")
        assert torch_libraries(measurer)
        other = packed(Gemm.parse("33x17x19:f32:nt:bias"))
        assert measurer.evaluate(other, "sustained")[0].passed, "and it goes on"


def torch_libraries(measurer: Measurer) -> set[str]:
    """The libraries of PyTorch that the measuring process has loaded."""
    assert isinstance(measurer._child, ChildProcess)
    lines = Path(f"/proc/{measurer._child._process.pid}/maps").read_text().splitlines()
    return {name for line in lines if (name := Path(line.split()[-1]).name).startswith("libtorch")}
