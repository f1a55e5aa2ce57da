"""The GPU's baseline ``cutlass``: CUTLASS's device templates on mma.sync (those of sm_80), the best of a short list."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tirgemm.gemm import DTYPE_BYTES, Gemm
from tirgemm.hardware import ARCHITECTURES, arch_of
from tirgemm.tuning.driver.cuda import call
from tirgemm.tuning.driver.tensors import View
from tirgemm.tuning.measure.baselines.cutlass_build import DoesNotCompile, compiler, headers, libraries, loaded
from tirgemm.tuning.measure.baselines.numpy_baseline import BaselineUnavailable
from tirgemm.tuning.measure.baselines.tuned_baseline import BaselineOption, Call, Refused
from tirgemm.tuning.verify.plan import OperandPlacement, operand_layouts

_DTYPES = {"f16": "cutlass::half_t", "bf16": "cutlass::bfloat16_t", "f32": "float"}
_SUMS = {"f16": "cutlass::half_t", "f32": "float"}
_ACCESS_BYTES = 16


@dataclass(frozen=True, slots=True)
class Template:
    """A threadblock's tile, a warp's, and the stages of cp.async; the instruction is m16n8k16."""

    tile_m: int
    tile_n: int
    tile_k: int
    warp_m: int
    warp_n: int
    stages: int
    swizzle: int = 8

    @property
    def shared_bytes(self) -> int:
        return self.stages * (self.tile_m + self.tile_n) * self.tile_k * 2


TEMPLATES = (
    Template(128, 256, 32, 64, 64, 3),
    Template(256, 128, 32, 64, 64, 3),
    Template(128, 128, 32, 64, 64, 4),
    Template(128, 256, 64, 64, 64, 3),
    Template(256, 128, 64, 64, 64, 3),
    Template(128, 128, 64, 64, 64, 3),
    Template(64, 128, 64, 32, 64, 4),
    Template(64, 64, 64, 32, 32, 5),
)


def unsupported(gemm: Gemm) -> str:
    """Why this baseline does not compute a problem; empty where it does."""
    if gemm.dtype == "f32":
        return "CUTLASS's tensor-core templates here take 16-bit inputs; fp32 would be TF32"
    extra = ["bias"] if gemm.bias else []
    extra += [] if gemm.act == "none" else [gemm.act]
    if extra:
        return f"CUTLASS's linear combination is alpha A B + beta C, without {', '.join(extra)}"
    least = min(accesses(gemm)[name] for name in ("a", "b"))
    if least < 2:
        return (
            "CUTLASS's pipelined templates copy four bytes or more at a time; the rows here are aligned to one element"
        )
    return ""


def accesses(gemm: Gemm) -> dict[str, int]:
    """Elements of the widest access to A, B, and C and D: what divides rows, their distances and the base."""
    widths = {layout.name: _access(layout) for layout in operand_layouts(gemm)}
    if "c" in widths:
        widths["d"] = min(widths["d"], widths.pop("c"))
    return widths


def macros(gemm: Gemm, template: Template) -> dict[str, str]:
    """The template's arguments for a problem, as ``cutlass_gemm.cu`` names them."""
    width = accesses(gemm)
    words = {
        "ELEMENT": _DTYPES[gemm.dtype],
        "OUTPUT": _DTYPES[gemm.out],
        "SUMS": _SUMS[gemm.acc],
        "LAYOUT_A": "ColumnMajor" if gemm.trans_a else "RowMajor",
        "LAYOUT_B": "ColumnMajor" if gemm.trans_b else "RowMajor",
    }
    words |= {f"ALIGN_{name.upper()}": str(width[name]) for name in ("a", "b", "d")}
    return words | {name.upper(): str(value) for name, value in asdict(template).items()}


class CutlassBaseline:
    """Every template that fits the GPU. Raises BaselineUnavailable where the problem or the machine is none for it."""

    def __init__(self, gemm: Gemm, ordinal: int, stream: int) -> None:
        if reason := unsupported(gemm):
            raise BaselineUnavailable(reason)
        headers()
        compiler()
        device = call("cuDeviceGet", ordinal)
        self._arch = arch_of((_attribute(device, "MAJOR"), _attribute(device, "MINOR")))
        if self._arch not in ARCHITECTURES:
            raise BaselineUnavailable(f"CUTLASS is compiled here for {', '.join(ARCHITECTURES)}, not for {self._arch}")
        self._gemm, self._stream = gemm, stream
        self._layouts = {layout.name: layout for layout in operand_layouts(gemm)}

    def context(self) -> AbstractContextManager[Any]:
        """Nothing: the stream is an argument of every call."""
        return contextlib.nullcontext()

    def candidates(self, sets: list[dict[str, View]]) -> list[BaselineOption]:
        """One for each template; those that nvcc refuses, refuse."""
        room = ARCHITECTURES[self._arch].limits.shared_per_block
        tried = [template for template in TEMPLATES if template.shared_bytes <= room]
        built = libraries(self._arch, [macros(self._gemm, template) for template in tried])
        return [
            BaselineOption(asdict(template), partial(self._call, build, sets))
            for template, build in zip(tried, built, strict=True)
        ]

    def _call(self, build: Path | DoesNotCompile, sets: list[dict[str, View]], number: int) -> Call:
        if isinstance(build, DoesNotCompile):
            raise Refused(f"nvcc: {build}")
        library, gemm, views = loaded(build), self._gemm, sets[number]
        c = "c" if gemm.beta else "d"
        order = ("a", "b", c, "d")
        arguments = (
            gemm.m_max,
            gemm.n,
            gemm.k,
            gemm.batch,
            *(views[name].address for name in order),
            *(self._layouts[name].stride for name in order),
            *(self._layouts[name].ld for name in order),
            1.0 if gemm.beta else 0.0,
            self._stream,
        )

        def run() -> None:
            if status := library.cutlass_gemm(*arguments):
                raise Refused(f"CUTLASS answers {library.cutlass_words(status).decode()} ({status})")

        return run


def _access(at: OperandPlacement) -> int:
    size = DTYPE_BYTES[at.dtype]
    width = _ACCESS_BYTES // size
    while width > 1 and (at.align % (width * size) or any(extent % width for extent in (at.cols, at.ld, at.stride))):
        width //= 2
    return width


def _attribute(device: Any, which: str) -> int:
    from cuda.bindings import driver

    kinds = driver.CUdevice_attribute
    return int(call("cuDeviceGetAttribute", getattr(kinds, f"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{which}"), device))
