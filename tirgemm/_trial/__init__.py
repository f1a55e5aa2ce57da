"""One trial of a kernel on this machine: run it on random or given operands, compare with NumPy, time some calls."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from tirgemm._trial import reference
from tirgemm.artifact import Kernel, native
from tirgemm.detect import why_no_gpu
from tirgemm.errors import DeviceUnavailable, InvalidRequest
from tirgemm.gemm import Gemm, Range
from tirgemm.reference.result import expected

CALLS_PER_SAMPLE = 5
SAMPLES = 20
TIMED_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Trial:
    """What one trial found. ``median_us`` is timed from the host around whole calls, warm: no benchmark; NaN of one
    that is not timed."""

    m: int
    result: reference.Array
    error: float
    median_us: float

    @property
    def passed(self) -> bool:
        return self.error <= 1.0


def run(
    kernel: Kernel,
    *,
    m: int | None = None,
    given: dict[str, reference.Array] | None = None,
    alpha: float | None = None,
    beta: float | None = None,
    seed: int = 0,
    timed: bool = True,
) -> Trial:
    """Call ``kernel`` on ``given`` arrays and random ones for the rest; a scalar that is not given is 1. Raises
    InvalidRequest, CallError."""
    gemm = kernel.gemm
    rows = _rows(gemm, m, given or {})
    scalars = _scalars(gemm, {"alpha": alpha, "beta": beta})
    operands = reference.random_operands(gemm, rows, seed)
    for name, values in (given or {}).items():
        operands[name] = _checked(gemm, name, values, rows)
    wanted, bound = _expected(gemm, operands, scalars)
    place = _place(kernel)
    tensors = {name: place.put(reference.stored, operands[name], gemm, name, rows) for name in gemm.inputs}
    out = place.put(reference.stored, np.full(reference.shape(gemm, "d", rows), np.nan, np.float32), gemm, "d", rows)

    def call() -> Any:
        return kernel(**tensors, **scalars, out=out)

    result = place.get(call())
    median_us = _median_us(call, place.wait) if timed else math.nan
    return Trial(rows, result, reference.error_over_bound(result, wanted, bound), median_us)


def _rows(gemm: Gemm, m: int | None, given: dict[str, reference.Array]) -> int:
    """The m of the trial: what was asked for, else that of a given A or C, else the largest."""
    unknown = sorted(set(given) - set(gemm.inputs))
    if unknown:
        raise InvalidRequest(f"{gemm} takes {', '.join(gemm.inputs)}; {unknown[0]} was given")
    if m is None and isinstance(gemm.m, Range):
        for name, axis in (("a", -1 if gemm.trans_a else -2), ("c", -2)):
            if name in given and given[name].ndim >= 2:
                m = given[name].shape[axis]
    rows = gemm.m_max if m is None else m
    if not gemm.m_min <= rows <= gemm.m_max:
        raise InvalidRequest(f"m is {rows}; {gemm} takes {gemm.m}")
    return rows


def _scalars(gemm: Gemm, given: dict[str, float | None]) -> dict[str, float]:
    """The scalars that the kernel takes. Raises InvalidRequest where another one is given."""
    for name, value in given.items():
        if value is not None and name not in gemm.scalars:
            raise InvalidRequest(f"{gemm} takes no {name}; {name} {value:g} was given")
    return {name: 1.0 if (value := given[name]) is None else value for name in gemm.scalars}


def _expected(
    gemm: Gemm, operands: dict[str, reference.Array], scalars: dict[str, float]
) -> tuple[reference.Array, reference.Array]:
    """NumPy's result and the bound. Raises InvalidRequest where the result is not finite in its dtype."""
    with np.errstate(all="ignore"):
        wanted, bound = expected(gemm, operands, scalars.get("alpha", 1.0), scalars.get("beta", 1.0))
    _finite("the result", wanted, reference.dtype_of(gemm, "d"))
    return wanted, bound


def _finite(what: str, values: reference.Array, dtype: str) -> reference.Array:
    """``values`` rounded to ``dtype``. Raises InvalidRequest, which names the first that is infinite or no number."""
    with np.errstate(all="ignore"):
        rounded = reference.rounded(values, dtype)
    wrong = np.argwhere(~(np.isfinite(values) & np.isfinite(rounded)))
    if len(wrong):
        place = tuple(wrong[0].tolist())
        raise InvalidRequest(f"{what} has {values[place]:g} at {list(place)}, which is not finite in {dtype}")
    return rounded


def _checked(gemm: Gemm, name: str, values: reference.Array, m: int) -> reference.Array:
    wanted = reference.shape(gemm, name, m)
    if values.shape != wanted:
        raise InvalidRequest(f"array {name} has shape {values.shape}; {gemm} needs {wanted}")
    if values.dtype.kind not in "fiu":
        raise InvalidRequest(f"array {name} has dtype {values.dtype}; it must hold real numbers")
    return _finite(f"array {name}", values, reference.dtype_of(gemm, name))


def _median_us(call: Callable[[], Any], wait: Callable[[], None]) -> float:
    samples: list[float] = []
    started = time.perf_counter()
    while len(samples) < SAMPLES and (not samples or time.perf_counter() - started < TIMED_SECONDS):
        begun = time.perf_counter()
        for _ in range(CALLS_PER_SAMPLE):
            call()
        wait()
        samples.append(1e6 * (time.perf_counter() - begun) / CALLS_PER_SAMPLE)
    return statistics.median(samples)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where operands live: ``put`` brings them there with their strides, ``get`` brings fp32 back, ``wait`` waits."""

    put: Callable[..., Any]
    get: Callable[[Any], reference.Array]
    wait: Callable[[], None]


def _place(kernel: Kernel) -> _Place:
    """Raises DeviceUnavailable without a GPU for a kernel of one, InvalidRequest without arrays on it."""
    if kernel.device.kind == "cpu":
        return _Place(lambda make, *what: make(*what), lambda x: np.asarray(x).astype(np.float32), lambda: None)
    for name, make in (("torch", _torch), ("cupy", _cupy)):
        try:
            return make(import_module(name))
        except ImportError:
            continue
    if not native.cuda_architectures():
        words = f"the kernel is for a GPU, {kernel.device.arch} ({kernel.device.model})"
        raise DeviceUnavailable(f"{words}, and this machine shows none: {why_no_gpu() or 'the driver shows no device'}")
    raise InvalidRequest(
        "a kernel on a GPU is run on arrays of PyTorch (a build with CUDA) or CuPy, of which neither is installed"
    )


def _torch(torch: Any) -> _Place:
    if not torch.cuda.is_available():
        raise ImportError("this PyTorch has no CUDA")

    def put(_make: Any, values: reference.Array, gemm: Gemm, name: str, m: int) -> Any:
        kind = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[reference.dtype_of(gemm, name)]
        source = torch.from_numpy(np.ascontiguousarray(values, np.float32))
        strides = reference.strides(gemm, name, m)
        tensor = torch.empty_strided(source.shape, strides, dtype=kind, device="cuda")
        return tensor.copy_(source)

    return _Place(put, lambda x: x.float().cpu().numpy(), torch.cuda.synchronize)


def _cupy(cupy: Any) -> _Place:
    def put(make: Any, values: reference.Array, gemm: Gemm, name: str, m: int) -> Any:
        host = make(values, gemm, name, m)
        memory = cupy.zeros(
            sum((n - 1) * s for n, s in zip(host.shape, host.strides, strict=True)) + host.itemsize, "u1"
        )
        array = cupy.ndarray(host.shape, host.dtype, memory.data, host.strides)
        array[...] = cupy.asarray(np.ascontiguousarray(host))
        return array

    def get(x: Any) -> reference.Array:
        return np.asarray(cupy.asnumpy(x)).astype(np.float32)

    return _Place(put, get, lambda: cupy.cuda.get_current_stream().synchronize())
