"""The GPU's reference kernels against NumPy: the same operands, the same D, the same bound, the same verdicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tirgemm.detect import devices
from tirgemm.gemm import Gemm
from tirgemm.reference.numbers import POISON, decode
from tirgemm.tuning.verify import flow as flow_module
from tirgemm.tuning.verify.flow import verify
from tirgemm.tuning.verify.host import GUARD_BYTES, HostBackend, HostCase, HostOperand
from tirgemm.tuning.verify.plan import GemmTest, Test, exact_plan
from tirgemm.tuning.verify.result import ComparedElements

GPUS = [device for device in devices() if device.kind == "cuda"]
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="this machine has no NVIDIA GPU")]

GEMMS = [
    "129x67x1023:f16:nt",
    "65x131x95:bf16:tn:alpha:beta:bias:act=gelu",
    "31x29x5300:f16:nn:batch=3:lda=5301:ldb=33:ldc=37:ldd=40:stride_d=1301:align=2:beta:act=relu",
    "33x47x95:f32:tt:batch=2:align=4:bias:act=silu",
    "70x35x77:f16:nn:acc=f16:act=gelu_tanh:alpha",
    "1x300x4104:bf16:nt:out=f32",
]


@pytest.fixture(scope="module")
def backend() -> Any:
    from tirgemm.tuning.driver.cuda import Gpu
    from tirgemm.tuning.verify.cuda import CudaBackend

    return CudaBackend(Gpu(GPUS[0]))


def downloaded(backend: Any, case: Any) -> HostCase:
    """The same case on the host, bit for bit, guard bands included."""
    operands = {}
    for name, operand in case.operands.items():
        host = HostOperand(operand.layout)
        backend._gpu.to_host(operand.argument.base, host.flat)
        operands[name] = host
    return HostCase(case.problem, operands)


def write(backend: Any, case: Any, values: np.ndarray[Any, Any], host: HostCase, change: Callable[[Any], None]) -> None:
    """Upload ``values`` as D, spoiled by ``change``, between the poison."""
    from tirgemm.reference.numbers import encode

    d = host.operands["d"]
    d.poison()
    d.inside[...] = encode(values.astype(np.float32), d.layout.dtype)
    change(d)
    backend._gpu.to_device(case.operands["d"].argument.base, d.flat)


@pytest.mark.parametrize("test", ["exact", "normal"])
@pytest.mark.parametrize("text", GEMMS)
def test_operands_and_reference_agree_with_numpy(backend: Any, text: str, test: Test) -> None:
    gemm = Gemm.parse(text)
    m, n = gemm.m_max, gemm.n
    case = backend.prepare(GemmTest(gemm, m, test, 5))
    host = downloaded(backend, case)
    for name, operand in host.operands.items():
        outside = operand.flat.copy()
        first = outside[GUARD_BYTES // outside.itemsize :]
        inside = np.lib.stride_tricks.as_strided(first, operand.inside.shape, operand.inside.strides)
        inside[...] = POISON[operand.layout.dtype]
        assert (outside == POISON[operand.layout.dtype]).all(), name
        if name != "d":
            values = decode(np.ascontiguousarray(operand.product), operand.layout.dtype)
            assert np.isfinite(values).all()
            check_values(values, gemm, name, test)
    want = [HostBackend()._expected(host, i, slice(0, m), slice(0, n)) for i in range(gemm.batch)]
    y = np.stack([w[0] for w in want])
    write(backend, case, y, host, lambda _: None)
    assert backend.disturbed(case) == []
    actual = backend.compare(case, slice(0, m), slice(0, n))
    assert (actual.failures, actual.checked) == (0, y.size)
    assert actual.worst < 1
    kept = np.empty(y.shape)
    backend._gpu.to_host(case.y.address, kept)
    assert np.allclose(kept, y, rtol=1e-11, atol=1e-11)
    bounds = np.empty(y.shape, np.float32)
    backend._gpu.to_host(case.bounds.address, bounds)
    expected = [np.zeros((m, n)) if w[1] is None else w[1] for w in want]
    assert np.allclose(bounds, np.stack(expected), rtol=1e-5)
    again = backend.compare(case, slice(0, m), slice(0, n))
    assert (again.failures, again.worst) == (actual.failures, pytest.approx(actual.worst, rel=1e-4))
    assert backend.compare_random(case, 500).failures == 0
    assert backend.compare(case, slice(m // 2, m), slice(n // 3, n)).failures == 0


def check_values(values: np.ndarray[Any, Any], gemm: Gemm, name: str, test: str) -> None:
    if test == "exact":
        plan = exact_plan(gemm)
        assert (values == np.round(values)).all()
        assert np.abs(values).max() <= {"a": plan.a_max, "b": plan.b_max}.get(name, plan.addend)
        assert values.size < 2000 or abs(values.mean()) < 0.5
        if name == "a":
            most = plan.tail + -(-(gemm.k - plan.tail) // plan.period)
            assert (np.count_nonzero(values, axis=-1) <= most).all()
            assert (values[..., -min(plan.tail, gemm.k) :] != 0).all()
        else:
            assert (values != 0).all()
    elif values.size > 2000:
        assert abs(values.mean()) < 0.1
        assert abs(values.std() - 1) < 0.1
        assert len(np.unique(values)) > 500


@pytest.mark.parametrize("test", ["exact", "normal"])
def test_one_wrong_element_is_found_and_named(backend: Any, test: Test) -> None:
    gemm = Gemm.parse("129x67x1023:f16:nt:batch=2:ldd=80")
    case = backend.prepare(GemmTest(gemm, 129, test, 6))
    host = downloaded(backend, case)
    y = np.stack([HostBackend()._expected(host, i, slice(0, 129), slice(0, 67))[0] for i in range(2)])

    def spoil(d: Any) -> None:
        d.inside[1, 97, 61] += 200

    write(backend, case, y, host, spoil)
    for _ in range(2):  # computed, then kept
        actual = backend.compare(case, slice(0, 129), slice(0, 67))
        assert (actual.failures, actual.at) == (1, (1, 97, 61))
        assert actual.want == pytest.approx(y[1, 97, 61])
        assert actual.worst > 1
    assert backend.compare(case, slice(0, 97), slice(0, 67)).failures == 0
    assert backend.compare(case, slice(97, 98), slice(60, 67)).failures == 1

    def unwritten(d: Any) -> None:
        d.inside[0, 128, 66] = POISON["f16"]

    write(backend, case, y, host, unwritten)
    assert backend.compare(case, slice(0, 129), slice(0, 67)).at == (0, 128, 66)

    def gap(d: Any) -> None:
        d.flat[GUARD_BYTES // 2 + 67] = 0

    write(backend, case, y, host, gap)
    assert backend.disturbed(case) == ["d"]


@pytest.mark.parametrize("wrong", [False, True])
def test_random_vectors_catch_one_wrong_element(backend: Any, monkeypatch: pytest.MonkeyPatch, wrong: bool) -> None:
    monkeypatch.setattr(flow_module, "EDGE", 16)
    monkeypatch.setattr(flow_module, "compares_in_full", lambda *_: False)
    monkeypatch.setattr(type(backend), "compare_random", lambda *_: ComparedElements(0))
    gemm = Gemm.parse("129x67x1023:f16:nt:batch=2:beta:bias:alpha")
    host_backend = HostBackend()

    def run(case: Any, _: Any) -> None:
        host = downloaded(backend, case)
        y = np.stack([host_backend._expected(host, i, slice(0, 129), slice(0, 67))[0] for i in range(2)])
        write(backend, case, y, host, lambda d: d.inside.__setitem__((1, 3, 5), d.inside[1, 3, 5] + 300 * wrong))

    monkeypatch.setattr(type(backend), "run", lambda _, case, function: run(case, function))
    verification = verify(backend, gemm, print, kernel_sha256="0" * 64, level="candidate", seed=9)
    assert verification.passed is not wrong
    assert verification.tests[-1]["method"] == "edges, sampled, freivalds"
