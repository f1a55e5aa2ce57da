"""Kernels written by hand in C with the launcher's CPU ABI, and artifacts made of them: no TVM, compiled in a
moment."""

from __future__ import annotations

import functools
import hashlib
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tirgemm import detect
from tirgemm.artifact import Contents, Kernel, SetContents, Signer, Trust, load, native, pack, read
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.gemm import Gemm, Range
from tirgemm.launch import KernelLaunch, Launch, Param, Pointer, Scalar, Size, scalar_args, tensor_args
from tirgemm.timings import Timing, Timings

SIGNER = Signer.generate()
TRUST = Trust.of(SIGNER.public)
CONFIG = Config("sample", (("rows", 1),))
TIMINGS = Timings({"sustained": Timing(12.5)})

PRELUDE = r"""
#include <stdint.h>
#include <string.h>
#include <unistd.h>
typedef struct { int32_t type_index; uint32_t padding; union { int64_t i; double f; void* p; } v; } Any;
extern void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message);
#define KERNEL(name) int __tvm_ffi_##name(void* self, const Any* args, int32_t count, Any* result)
"""

# Row `block` of every matrix of the batch. GEMM_* are defined for one problem.
ROWS = r"""
#if GEMM_F16
static float get(const void* p, int64_t i) { return (float)((const _Float16*)p)[i]; }
static void put(void* p, int64_t i, float x) { ((_Float16*)p)[i] = (_Float16)x; }
#elif GEMM_BF16
static float get(const void* p, int64_t i) {
  uint32_t x = (uint32_t)((const uint16_t*)p)[i] << 16; float f; memcpy(&f, &x, 4); return f; }
static void put(void* p, int64_t i, float f) {
  uint32_t x; memcpy(&x, &f, 4); ((uint16_t*)p)[i] = (uint16_t)((x + 0x7fff + (x >> 16 & 1)) >> 16); }
#else
static float get(const void* p, int64_t i) { return ((const float*)p)[i]; }
static void put(void* p, int64_t i, float x) { ((float*)p)[i] = x; }
#endif
KERNEL(rows) {
  int next = 0;
  const void *a = args[next++].v.p, *b = args[next++].v.p;
  const void* c = GEMM_BETA ? args[next++].v.p : 0;
  const void* bias = GEMM_BIAS ? args[next++].v.p : 0;
  void* d = args[next++].v.p;
  const float alpha = GEMM_ALPHA ? (float)args[next++].v.f : 1.0f;
  const float beta = GEMM_BETA ? (float)args[next++].v.f : 0.0f;
  const int64_t m = args[next++].v.i, row = args[next++].v.i;
  if (next != count) { TVMFFIErrorSetRaisedFromCStr("TypeError", "wrong argument count"); return -1; }
  const int64_t lda = GEMM_LDA ? GEMM_LDA : m;
  for (int64_t i = 0; i < GEMM_BATCH; ++i) {
    const int64_t a0 = i * (GEMM_TA ? GEMM_K * lda : m * lda), b0 = i * GEMM_STRIDE_B;
    for (int64_t j = 0; j < GEMM_N; ++j) {
      float sum = 0;
      for (int64_t k = 0; k < GEMM_K; ++k)
        sum += get(a, a0 + (GEMM_TA ? k * lda + row : row * lda + k))
               * get(b, b0 + (GEMM_TB ? j * GEMM_LDB + k : k * GEMM_LDB + j));
      sum *= alpha;
      if (c) sum += beta * get(c, i * m * GEMM_LDC + row * GEMM_LDC + j);
      if (bias) sum += get(bias, j);
      put(d, i * m * GEMM_LDD + row * GEMM_LDD + j, sum);
    }
  }
  return 0;
}
"""


@functools.cache
def shared_object(source: str, *defines: str) -> bytes:
    """Compile C text behind the prelude to the bytes of a shared object."""
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder, "kernel.c"), Path(folder, "kernel.so")
        path.write_text(PRELUDE + source)
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-w", *defines, str(path), "-o", str(out)], check=True)
        return out.read_bytes()


def rows_binary(gemm: Gemm) -> bytes:
    """A kernel for any ``gemm`` without activation or batch strides, one row a block."""
    values: dict[str, Any] = {
        "F16": gemm.dtype == "f16",
        "BF16": gemm.dtype == "bf16",
        "N": gemm.n,
        "K": gemm.k,
        "BATCH": gemm.batch,
        "TA": gemm.trans_a,
        "TB": gemm.trans_b,
        "ALPHA": gemm.alpha,
        "BETA": gemm.beta,
        "BIAS": gemm.bias,
        "LDA": gemm.leading("a") if isinstance(gemm.leading("a"), int) else 0,
        "LDB": gemm.leading("b"),
        "STRIDE_B": gemm.batch_stride("b"),
        "LDC": gemm.leading("c"),
        "LDD": gemm.leading("d"),
    }
    return shared_object(ROWS, *(f"-DGEMM_{name}={int(value)}" for name, value in values.items()))


def rows_launch(gemm: Gemm, threads: int = 0) -> Launch:
    params: tuple[Param, ...] = (
        *(Pointer(name) for name in (*gemm.inputs, "d")),
        *(Scalar(name) for name in gemm.scalars),
        Size(gemm.m_dim),
    )
    attributes = (("threads", threads),) if threads else ()
    return Launch(
        tensor_args(gemm), scalar_args(gemm), (KernelLaunch("rows", params, (gemm.m_dim, 1, 1), attributes=attributes),)
    )


def cpu() -> Device:
    return detect.device("cpu")


def packed(gemm: Gemm, *, signer: Any = SIGNER, **changes: Any) -> bytes:
    """A signed artifact of ``gemm``; ``changes`` replace what ``pack`` is given."""
    return pack(contents(gemm, **changes), signer)


def packed_set(
    gemm: Gemm,
    highs: tuple[int, ...],
    *,
    signer: Any = SIGNER,
    members: dict[int, dict[str, Any]] | None = None,
    **about: Any,
) -> bytes:
    """A signed kernel set of ``gemm``, a kernel up to each of ``highs``: row ``i`` of a config says which it is.

    ``members``: changes of what a member is packed of, by its index; ``about`` those of the set.
    """
    kernels = []
    for number, high in enumerate(highs):
        low = highs[number - 1] + 1 if number else gemm.m_min
        changes = {"config": Config("sample", (("rows", number + 1),))} | (members or {}).get(number, {})
        kernels.append(contents(gemm.with_(m=Range(low, high)), **changes))
    values: dict[str, Any] = {"gemm": gemm, "members": tuple(kernels), "timings": TIMINGS}
    return pack(SetContents(**values | about), signer)


def contents(gemm: Gemm, **changes: Any) -> Contents:
    """What a sample kernel of ``gemm`` is packed of, with ``changes``."""
    values: dict[str, Any] = {
        "gemm": gemm,
        "config": CONFIG,
        "device": cpu(),
        "launch": rows_launch(gemm),
        "binary_format": "so",
        "sources": {"kernel.ll": "; text\n", "module.py": "# text\n"},
        "flags": ("-O1",),
        "certificate": None,
        "timings": TIMINGS,
    }
    values |= changes
    if "binary" not in values:
        values["binary"] = rows_binary(gemm)
    return Contents(**values)


def certified(gemm: Gemm, *, regime: str = "sustained", role: str = "tuned", **changes: Any) -> bytes:
    """``packed`` as a service stores it: with regime and role, and a passed certificate of its kernel."""
    sha256 = read(packed(gemm, **changes), Trust.of(changes.get("signer", SIGNER).public)).manifest.kernel_sha256
    evidence = {"kernel_sha256": sha256, "passed": True, "tests": [{"name": "exact", "passed": True}]}
    return packed(gemm, **{"certificate": evidence, "regime": regime, "role": role} | changes)


def kernel(gemm: Gemm | str, **changes: Any) -> Kernel:
    """A loaded sample kernel."""
    gemm = Gemm.parse(gemm) if isinstance(gemm, str) else gemm
    return load(packed(gemm, **changes), trust=TRUST)


def raw_kernel(gemm: Gemm, launch: Launch, binary: bytes, device: Device | None = None) -> Any:
    """The launcher's function for a launch of any kind, without a package around it."""
    import json

    document = {"gemm": gemm.to_json(), "device": (device or cpu()).to_json(), "launch": launch.to_json()}
    return native.load([binary], [json.dumps(document)]).call


def fake_cubin(text: str = "") -> bytes:
    """Bytes that pass for a cubin where nothing looks inside."""
    header = bytearray(64)
    header[:7] = b"\x7fELF\x02\x01\x01"
    header[18:20] = (190).to_bytes(2, "little")
    return bytes(header) + hashlib.sha256(text.encode()).digest()


def operands(gemm: Gemm, m: int | None = None, seed: int = 0) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    """Small-integer arrays by name with the strides of ``gemm``, and the exact product in fp64 (no activation)."""
    import ml_dtypes

    from tirgemm import expr

    rng = np.random.default_rng(seed)
    m = gemm.m_max if m is None else m
    dtypes = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}
    actual: dict[str, Any] = {}
    for spec in tensor_args(gemm)[:-1]:
        shape = tuple(expr.evaluate(d, m) for d in spec.shape)
        strides = tuple(expr.evaluate(s, m) for s in spec.strides)
        size = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
        dtype = np.dtype(dtypes[spec.dtype])
        memory = rng.integers(-3, 4, size).astype(dtype)
        actual[spec.name] = np.ndarray(shape, dtype, memory, 0, tuple(s * dtype.itemsize for s in strides))
    a, b = (actual[name].astype(np.float64) for name in ("a", "b"))
    product = (np.swapaxes(a, -1, -2) if gemm.trans_a else a) @ (np.swapaxes(b, -1, -2) if gemm.trans_b else b)
    return actual, product
