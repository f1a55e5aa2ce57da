"""The GPU's baselines ``triton`` and ``triton_invariant``: Triton's persistent matmul (``triton_matmul``) with the best
of a short list of configs, or with fixed tiles.

Fixed tiles are what Thinking Machines Lab describes for batch-invariant inference ("Defeating Nondeterminism in LLM
Inference", 2025) and publishes as batch_invariant_ops: one config a dtype whatever the sizes, operands by pointers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

from tirgemm.gemm import DTYPE_BYTES, Gemm
from tirgemm.tuning.driver.tensors import View
from tirgemm.tuning.measure.baselines.numpy_baseline import BaselineUnavailable
from tirgemm.tuning.measure.baselines.tuned_baseline import BaselineOption, Call, Refused
from tirgemm.tuning.verify.plan import OperandPlacement, layout_of

_OPERANDS = ("a", "b", "d")
_TMA_BYTES = 16
_INT32_MAX = 2**31 - 1
_TMA_SINCE = 9
_WARP_SPECIALIZE_SINCE = 10
# How far from PyTorch's a result may be, as a share of its norm, by accumulator: rounding stays below. What is not
# written is NaN and caught at any size.
_FAR = {"f32": 1e-2, "f16": 5e-2}
_ROWS_AT_ONCE = 2048


@dataclass(frozen=True, slots=True)
class TritonConfig:
    """What is tuned: the tile and how its loads are pipelined. Tiles are powers of two, as Triton wants them."""

    tile_m: int
    tile_n: int
    tile_k: int
    warps: int
    stages: int
    group: int = 8


# Few rows: what counts is to read B from many SMs at once. Below 64 rows Triton uses mma.sync instead of wgmma.
_FEW_ROWS = (
    TritonConfig(16, 64, 256, 4, 4, 1),
    TritonConfig(16, 128, 128, 4, 5, 1),
    TritonConfig(64, 32, 128, 4, 6, 1),
    TritonConfig(64, 64, 128, 4, 5, 1),
    TritonConfig(64, 128, 128, 4, 4, 1),
)
# Not a tile of 128 x 128 for every SM.
_FEW_TILES = (
    TritonConfig(64, 64, 128, 4, 5),
    TritonConfig(64, 128, 64, 4, 6),
    TritonConfig(128, 64, 128, 4, 4),
    TritonConfig(64, 256, 64, 4, 4),
    TritonConfig(128, 128, 64, 8, 5),
    TritonConfig(128, 128, 128, 8, 3),
)
_MANY_TILES = (
    TritonConfig(128, 256, 64, 8, 3),
    TritonConfig(128, 256, 64, 8, 4),
    TritonConfig(256, 128, 64, 8, 4),
    TritonConfig(128, 128, 64, 4, 4),
    TritonConfig(128, 128, 64, 8, 5),
    TritonConfig(128, 128, 128, 8, 3),
)

# dtype -> the one config of the invariant kernel.
_FIXED = {"f16": TritonConfig(128, 256, 64, 8, 3), "bf16": TritonConfig(128, 128, 64, 8, 3)}


def configs(m: int, n: int, units: int) -> tuple[TritonConfig, ...]:
    """The configs that are tried for D of m x n on a GPU of ``units`` SMs."""
    if m <= 64:
        return _FEW_ROWS if m <= 16 else _FEW_ROWS[2:] + _FEW_TILES[1:2]
    return _FEW_TILES if math.ceil(m / 128) * math.ceil(n / 128) < units else _MANY_TILES


def unsupported(gemm: Gemm) -> str:
    """Why this baseline does not compute a problem; empty where it does."""
    if gemm.dtype == "f32":
        return "Triton multiplies fp32 as TF32 or without tensor cores; the matmul here takes 16-bit inputs"
    if gemm.batch > 1:
        return f"Triton's persistent matmul computes one product, not a batch of {gemm.batch}"
    extra = [name for name in ("alpha", "beta", "bias") if getattr(gemm, name)]
    extra += [] if gemm.act == "none" else [gemm.act]
    if extra:
        return f"Triton's persistent matmul is the plain product, without {', '.join(extra)}"
    return ""


def by_tma(layout: OperandPlacement, addresses: Iterable[int]) -> bool:
    """Whether TMA can load or store these matrices: base and rows lie on multiples of 16 bytes."""
    return not any(at % _TMA_BYTES for at in (layout.ld * DTYPE_BYTES[layout.dtype], *addresses))


class TritonBaseline:
    """``triton_matmul`` in every config that fits. Raises BaselineUnavailable where the problem or the machine is none
    for it."""

    def __init__(self, gemm: Gemm, ordinal: int, stream: int) -> None:
        if reason := unsupported(gemm):
            raise BaselineUnavailable(reason)
        try:
            import torch
            import triton
            from triton.language import float16, float32
            from triton.tools.tensor_descriptor import TensorDescriptor

            from tirgemm.tuning.measure.baselines.triton_matmul import matmul
        except ImportError as error:
            raise BaselineUnavailable(
                f"Triton with tensor descriptors, or the PyTorch that it needs, is missing: {error}"
            ) from error
        if not torch.cuda.is_available():
            raise BaselineUnavailable("this PyTorch has no CUDA, or none that fits the driver")
        self._torch, self._descriptor, self._matmul = torch, TensorDescriptor, matmul
        self._gemm = gemm
        self._sums = {"f16": float16, "f32": float32}[gemm.acc]
        self._version = str(triton.__version__)
        self._stream = torch.cuda.ExternalStream(stream, device=ordinal)
        self._units = torch.cuda.get_device_properties(ordinal).multi_processor_count
        self._capability = torch.cuda.get_device_capability(ordinal)[0]
        self._layouts = {name: layout_of(gemm, name, gemm.m_max) for name in _OPERANDS}

    def context(self) -> AbstractContextManager[Any]:
        """Triton launches on PyTorch's current stream: ours within it."""
        context: AbstractContextManager[Any] = self._torch.cuda.stream(self._stream)
        return context

    def candidates(self, sets: list[dict[str, View]]) -> list[BaselineOption]:
        """One for each config; its first use compiles it and compares its result with ``torch.matmul``."""
        tma = {
            name: self._capability >= _TMA_SINCE and by_tma(layout, (one[name].address for one in sets))
            for name, layout in self._layouts.items()
        }
        tried = configs(self._gemm.m_max, self._gemm.n, self._units)
        return [self._candidate(config, sets, tma) for config in tried]

    def _candidate(self, config: TritonConfig, sets: list[dict[str, View]], tma: dict[str, bool]) -> BaselineOption:
        checked = False

        def call(i: int) -> Call:
            nonlocal checked
            if not checked:
                self._check(config, sets[0], tma)
                checked = True
            return self._launch(config, self._tensors(sets[i]), tma)

        label = asdict(config) | {"tma": "".join(name for name in _OPERANDS if tma[name]), "version": self._version}
        return BaselineOption(label, call)

    def _tensors(self, views: dict[str, View]) -> dict[str, Any]:
        return {name: self._torch.from_dlpack(views[name]) for name in _OPERANDS}

    def _launch(self, config: TritonConfig, tensors: dict[str, Any], tma: dict[str, bool]) -> Call:
        gemm, m, n, k = self._gemm, self._gemm.m_max, self._gemm.n, self._gemm.k
        programs = min(self._units, math.ceil(m / config.tile_m) * math.ceil(n / config.tile_n))
        blocks = {
            "a": [config.tile_k, config.tile_m] if gemm.trans_a else [config.tile_m, config.tile_k],
            "b": [config.tile_n, config.tile_k] if gemm.trans_b else [config.tile_k, config.tile_n],
            "d": [config.tile_m, config.tile_n // 2],
        }
        matrices = [
            self._descriptor(tensors[name], [at.rows, at.cols], [at.ld, 1], blocks[name])
            if tma[name]
            else tensors[name]
            for name, at in self._layouts.items()
        ]
        arguments = (*matrices, m, n, k, *(at.ld for at in self._layouts.values()), programs)
        options: dict[str, Any] = {
            "WIDE": any(at.rows * at.ld > _INT32_MAX for at in self._layouts.values()),
            "TRANS_A": gemm.trans_a,
            "TRANS_B": gemm.trans_b,
            "A_BY_TMA": tma["a"],
            "B_BY_TMA": tma["b"],
            "D_BY_TMA": tma["d"],
            "SUMS": self._sums,
            "TILE_M": config.tile_m,
            "TILE_N": config.tile_n,
            "TILE_K": config.tile_k,
            "GROUP": config.group,
            "WARP_SPECIALIZE": self._capability >= _WARP_SPECIALIZE_SINCE and all(tma.values()),
            "num_warps": config.warps,
            "num_stages": config.stages,
        }
        matmul = self._matmul[(programs,)]
        return lambda: matmul(*arguments, **options)

    def _check(self, config: TritonConfig, views: dict[str, View], tma: dict[str, bool]) -> None:
        """Compile and run once; refuse what does not compile, does not fit, or computes something else."""
        tensors = self._tensors(views)
        d = tensors["d"].fill_(math.nan)
        try:
            self._launch(config, tensors, tma)()
        except Exception as error:  # a compiler, an assembler and a driver stand behind it, each with errors of its own
            words = str(error).splitlines() or [""]
            raise Refused(f"Triton: {type(error).__name__}: {words[0]}") from error
        a = tensors["a"].mT if self._gemm.trans_a else tensors["a"]
        b = tensors["b"].mT if self._gemm.trans_b else tensors["b"]
        difference = total = 0.0
        for first in range(0, self._gemm.m_max, _ROWS_AT_ONCE):
            rows = slice(first, first + _ROWS_AT_ONCE)
            expected = self._torch.matmul(a[rows], b).float()
            difference += float((d[rows].float() - expected).square().sum())
            total += float(expected.square().sum())
        self._torch.cuda.empty_cache()
        if not difference <= _FAR[self._gemm.acc] ** 2 * total:
            raise Refused(
                f"its result is {math.sqrt(difference / total):.2g} of the product's norm away from torch.matmul"
            )


class TritonInvariantBaseline(TritonBaseline):
    """``triton_matmul`` in the config of its dtype, without TMA. Raises BaselineUnavailable, also for problems that are
    not invariant."""

    def __init__(self, gemm: Gemm, ordinal: int, stream: int) -> None:
        if not gemm.invariant:
            raise BaselineUnavailable(
                "Triton's matmul with fixed tiles is beside invariant kernels; this problem is not invariant"
            )
        super().__init__(gemm, ordinal, stream)

    def candidates(self, sets: list[dict[str, View]]) -> list[BaselineOption]:
        return [self._candidate(_FIXED[self._gemm.dtype], sets, dict.fromkeys(_OPERANDS, False))]
