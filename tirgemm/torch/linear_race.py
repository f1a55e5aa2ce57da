"""Race of a layer's kernel against PyTorch's own product, on the device and the weights of a model: for which rows
the kernel is not clearly faster.

On a GPU each side is a CUDA graph. It runs all layers of one kind in turn, as a model does, so that no weight waits in
a cache that it would not wait in there. What wins here is raced among the model's other layers (``model_race``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tirgemm.artifact import Kernel
from tirgemm.device import Device
from tirgemm.gemm import Range
from tirgemm.torch.alternation import PairedRatio, Turns, alternating, captured, ended, paired_ratio
from tirgemm.torch.linear_call import LOG, activation, linear_choice
from tirgemm.torch.prepared_call import NO_KERNEL, SLOWER, PreparedCall

TURNS = Turns()
# A kernel is kept that takes so much less than PyTorch's time: less is within what its place in a model changes.
MARGIN = 0.01
# Weights of so many bytes are in no cache.
ENOUGH_BYTES = 1 << 28
# Below, a kernel's range is raced at its ends alone.
FIRST_STEP = 16


def raced_in_graphs(device: Device) -> bool:
    """Whether ``lost_rows`` races kernels of a device in CUDA graphs, where launches cost the host nothing."""
    return device.kind == "cuda"


def raced_rows(kernel: Kernel) -> list[Range]:
    """The rows that ``kernel`` serves in ranges, each raced at its largest: the members of a set, cut at powers of two,
    and the smallest number alone."""
    low, high = kernel.gemm.m_min, kernel.gemm.m_max
    powers = [1 << bit for bit in range(FIRST_STEP.bit_length() - 1, high.bit_length())]
    ends = {low, high, *(member.gemm.m_max for member in kernel.manifest.kernels), *powers}
    ranges = []
    for end in sorted(end for end in ends if low <= end <= high):
        ranges.append(Range(low, end))
        low = end + 1
    return ranges


def nearest_rows(kernel: Kernel, counts: Collection[int]) -> dict[int, Range]:
    """The rows for which ``kernel`` follows each of ``counts``, the numbers of rows that it was raced for: between two
    of them the nearer one, by their ratio to it; beyond the smallest and the largest those that ``raced_rows`` takes
    together with it."""
    ordered, pieces = sorted(set(counts)), raced_rows(kernel)
    lowest = next(piece.low for piece in pieces if piece.low <= ordered[0] <= piece.high)
    highest = next(piece.high for piece in pieces if piece.low <= ordered[-1] <= piece.high)
    borders = [math.isqrt(below * above) for below, above in itertools.pairwise(ordered)]
    lows, highs = [lowest, *(border + 1 for border in borders)], [*borders, highest]
    return {count: Range(low, high) for count, low, high in zip(ordered, lows, highs, strict=True)}


def excluded_at(m: int, excluded: Mapping[Range, float]) -> tuple[Range, float] | None:
    """Of rows that are left to PyTorch those with this number, and our time over its; None where none are."""
    return next((each for each in excluded.items() if each[0].low <= m <= each[0].high), None)


def why_unserved(module: nn.Linear, x: Tensor) -> str:
    """Why no kernel may compute a linear's call with ``x`` as things are now, or "": under autocast, say. Neither that
    there is none nor that PyTorch was left its rows is a reason, as a race may decide otherwise."""
    act, invariant = getattr(module, "act", "none"), getattr(module, "invariant", False)
    dependent_launch = getattr(module, "dependent_launch", False)
    choice = linear_choice(x, module.weight, module.bias, act, invariant, dependent_launch)
    return "" if isinstance(choice, PreparedCall) or choice.reason in (SLOWER, NO_KERNEL) else choice.reason


def served_modules(kernel: Kernel, modules: Sequence[nn.Linear]) -> list[nn.Linear]:
    """Those of these modules of one problem whose calls ``kernel`` computes as things are now; that there is none is
    logged."""
    with torch.no_grad():
        x = random_input(kernel.gemm.m_min, modules[0].weight)
        reasons = {module: why_unserved(module, x) for module in modules}
    served = [module for module in modules if not reasons[module]]
    if not served:
        LOG.warning("%s was not raced, as PyTorch computes its calls now: %s", kernel.gemm, reasons[modules[0]])
    return served


def lost_rows(kernel: Kernel, modules: Sequence[nn.Linear]) -> dict[Range, float]:
    """The rows for which ``kernel``, which computes these modules of one problem, is not known to be faster than
    PyTorch, by the margin and in all turns but one, and our time over PyTorch's: not a number where they cannot be
    raced, for want of memory, say, which is logged."""
    few, lost = enough(modules), dict[Range, float]()
    for rows in raced_rows(kernel):
        try:
            with torch.no_grad():
                ratio = _ratio(rows.high, few)
        except RuntimeError as error:
            LOG.warning("%s was not raced against PyTorch with %s rows: %s", kernel.gemm, rows.high, error)
            lost[rows] = math.nan
            continue
        if ratio.median > 1 - MARGIN or ratio.high >= 1:
            lost[rows] = ratio.median
    return lost


def enough(modules: Sequence[nn.Linear]) -> list[nn.Linear]:
    """The first module of each kind, and as many of the others, from the first on, that all their weights are in no
    cache when they come round again; in their order."""
    first: dict[tuple[object, ...], int] = {}
    for place, module in enumerate(modules):
        own = (getattr(module, "act", "none"), getattr(module, "_invariant", False))
        first.setdefault((module.weight.shape, module.weight.dtype, module.bias is None, *own), place)
    chosen = set(first.values())
    nbytes = sum(modules[place].weight.nbytes for place in chosen)
    for place, module in enumerate(modules):
        if nbytes >= ENOUGH_BYTES:
            break
        if place not in chosen:
            chosen.add(place)
            nbytes += module.weight.nbytes
    return [modules[place] for place in sorted(chosen)]


def random_input(rows: int, weight: Tensor) -> Tensor:
    """Random rows for a weight, the same each time."""
    generator = torch.Generator(weight.device).manual_seed(0)
    x = torch.randn(rows, weight.shape[1], device=weight.device, dtype=torch.float32, generator=generator)
    return x.to(weight.dtype)


def _ratio(rows: int, modules: Sequence[nn.Linear]) -> PairedRatio:
    """Our time over PyTorch's."""
    weight = modules[0].weight
    x = random_input(rows, weight)
    acts = [(module, getattr(module, "act", "none")) for module in modules]

    def ours() -> None:
        for module in modules:
            module.forward(x)

    def pytorch() -> None:
        for module, act in acts:
            y = functional.linear(x, module.weight, module.bias)
            if act != "none":
                activation(act)(y)

    contenders: Mapping[str, Callable[[], Any]] = {"ours": ours, "pytorch": pytorch}
    if weight.is_cuda:
        with torch.cuda.device(weight.device):
            pool = torch.cuda.graph_pool_handle()
            graphs = {name: captured(call, pool)[0] for name, call in contenders.items()}
            contenders = {name: graph.replay for name, graph in graphs.items()}
            samples = alternating(contenders, TURNS, torch.cuda.synchronize)
    else:
        samples = alternating(contenders, TURNS, ended)
    return paired_ratio(samples["ours"], samples["pytorch"])
