"""Race of a model's linears together: which kernels slow down what runs before and after them.

A kernel that wins alone may lose in a model, whose layers share its clocks and its L2 cache, and where the library's
products begin before the ones ahead of them end. So a call that runs many linears is timed with all kernels, without
each of them, and as PyTorch alone; kernels without which it is faster are dropped, the worst first.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from tirgemm.artifact import Kernel
from tirgemm.gemm import Range
from tirgemm.torch import linear_race
from tirgemm.torch.alternation import PairedRatio, Turns, alternating, captured, paired_ratio
from tirgemm.torch.kernel_table import KernelTable
from tirgemm.torch.linear_module import use_kernels
from tirgemm.torch.linear_problems import LinearProblems

LOG = logging.getLogger("tirgemm.torch")
# Of calls of a whole model, which its host disturbs more than a kernel's graph is.
TURNS = Turns(seconds=0.01)
# So many times as many where they do not tell whether a call gains by its kernels: a host's noise is larger than that.
MORE_TURNS = 4
ALL, PYTORCH = "all", "pytorch"


@dataclass(frozen=True, eq=False)
class RacedKernel:
    """A kernel for some rows, and the linears that it computes. ``excluded``: the rows of this number that PyTorch had
    been left before this race, and our time over its."""

    kernel: Kernel
    rows: Range
    modules: tuple[nn.Linear, ...]
    excluded: tuple[Range, float] | None = None


@dataclass(frozen=True, eq=False)
class RacedCall:
    """A call that runs linears, and the kernels that compute them."""

    run: Callable[[], object]
    kernels: tuple[RacedKernel, ...]


def dropped(
    calls: Sequence[RacedCall], linears: Sequence[LinearProblems], table: KernelTable, turns: Turns, *, graph: bool
) -> dict[RacedKernel, float]:
    """The kernels without which one of the calls is faster, with its time over that without them; of what is dropped
    because the call gains nothing, its time over PyTorch's.

    ``linears`` are all of the model that kernels of ``table`` compute. Where a call with what is left of its kernels is
    not faster than PyTorch's in all turns but one, nor in enough of more turns, all of them are dropped: first those
    that had lost before, and the others where these alone are not faster either. A call that shares a kernel with one
    that dropped it is raced again without it. On a GPU with ``graph`` calls are captured in CUDA graphs, all in one
    memory pool. A call that cannot be raced is logged, and drops none; what was left to PyTorch before is so again.
    """
    kept = dict.fromkeys(kernel for call in calls for kernel in call.kernels)
    lost: dict[RacedKernel, float] = {}
    waiting = [call for call in calls if call.kernels]
    if len(waiting) < len(calls):
        LOG.warning("%d of %d calls were not raced, as they use no kernel", len(calls) - len(waiting), len(calls))
    with torch.no_grad(), _switched(linears, table, kept) as switch:
        timer = _CallTimer(switch, turns, graph)
        while waiting:
            call = waiting.pop(0)
            try:
                gone = _dropped(call, kept, timer)
            except RuntimeError as error:
                LOG.warning("kernels were not raced together: %s", error)
                unraced = {each: each.excluded for each in call.kernels if each in kept and each.excluded is not None}
                lost |= {replace(each, rows=rows): ratio for each, (rows, ratio) in unraced.items()}
                gone = dict.fromkeys(unraced, math.nan)
            else:
                lost |= gone
            for kernel in gone:
                del kept[kernel]
            shared = (other for other in calls if any(kernel in gone for kernel in other.kernels))
            waiting += [other for other in shared if other is not call and other not in waiting]
    return lost


def chain(rows: int, modules: Sequence[nn.Linear]) -> Callable[[], None]:
    """A call of the linears of a model in their order, each with random input."""
    few = linear_race.enough(modules)
    inputs = {_kind_of_input(module): linear_race.random_input(rows, module.weight) for module in few}

    def call() -> None:
        for module in few:
            module.forward(inputs[_kind_of_input(module)])

    return call


def observed_rows(call: Callable[[], Any], modules: Sequence[nn.Linear]) -> list[tuple[nn.Linear, int]]:
    """The modules that ``call`` runs in a way that a kernel may serve, with their rows of input. Under autocast, say,
    none may: that is logged."""
    seen: dict[tuple[nn.Linear, int], None] = {}
    reasons: dict[str, None] = {}

    def note(module: nn.Linear, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        x = given[0] if given else named["input"]
        if why := linear_race.why_unserved(module, x):
            reasons[why] = None
        else:
            seen[module, x.numel() // module.in_features] = None

    hooks = [module.register_forward_pre_hook(note, with_kwargs=True) for module in modules]
    try:
        with torch.no_grad():
            call()
    finally:
        for hook in hooks:
            hook.remove()
    if reasons and not seen:
        LOG.warning("a call was not raced, as PyTorch computes all of its linears: %s", ", ".join(reasons))
    return list(seen)


def _kind_of_input(module: nn.Linear) -> tuple[int, torch.dtype]:
    return module.in_features, module.weight.dtype


def _dropped(call: RacedCall, offered: Collection[RacedKernel], timer: _CallTimer) -> dict[RacedKernel, float]:
    """What one call drops of the kernels that are ``offered``, its own and others'."""
    kept = [kernel for kernel in call.kernels if kernel in offered]
    others = frozenset(offered).difference(kept)
    lost: dict[RacedKernel, float] = {}
    while kept:
        without, of_all = _ratios(call, kept, others, timer)
        slower = [each for each in kept if without[each].low > 1]
        if not slower:
            if of_all.median < 1 <= of_all.high:
                samples = timer.samples(call, {ALL: others.union(kept), PYTORCH: None}, MORE_TURNS)
                of_all = paired_ratio(samples[ALL], samples[PYTORCH])
            if of_all.high < 1:
                break
            again = [each for each in kept if each.excluded is not None]
            gone = again if 0 < len(again) < len(kept) else kept
            lost |= dict.fromkeys(gone, of_all.median)
            kept = [each for each in kept if each not in gone]
            continue
        worst = max(slower, key=lambda each: without[each].median)
        kept.remove(worst)
        lost[worst] = without[worst].median
    return lost


def _ratios(
    call: RacedCall, kept: Sequence[RacedKernel], others: frozenset[RacedKernel], timer: _CallTimer
) -> tuple[dict[RacedKernel, PairedRatio], PairedRatio]:
    """The time of ``call`` with all that are kept, over that without each of them, and over PyTorch's."""
    states: dict[str, frozenset[RacedKernel] | None] = {ALL: others.union(kept), PYTORCH: None}
    if len(kept) > 1:
        states |= {f"without {number}": others.union(kept) - {each} for number, each in enumerate(kept)}
    samples = timer.samples(call, states)
    ratios = {way: paired_ratio(samples[ALL], theirs) for way, theirs in samples.items()}
    without = {each: ratios.get(f"without {number}", ratios[PYTORCH]) for number, each in enumerate(kept)}
    return without, ratios[PYTORCH]


Switch = Callable[["Collection[RacedKernel] | None"], None]
"""Has these of the raced kernels compute their rows and PyTorch those of the others; with None PyTorch all."""


@dataclass
class _CallTimer:
    """Times of calls with some of the kernels. Graphs are kept, as another round may want the same."""

    switch: Switch
    turns: Turns
    graph: bool
    _graphs: dict[tuple[RacedCall, frozenset[RacedKernel] | None], Any] = field(default_factory=dict)
    _pool: Any = None

    def samples(
        self, call: RacedCall, states: Mapping[str, frozenset[RacedKernel] | None], times: int = 1
    ) -> dict[str, list[float]]:
        """Milliseconds of ``call``, turn by turn, by the name of what computes it; ``times`` as many turns."""
        turns = replace(self.turns, count=times * self.turns.count)
        places = {module.weight.device for kernel in call.kernels for module in kernel.modules}
        places = {place for place in places if place.type == "cuda"}
        with torch.cuda.device(min(places, key=str)) if places else nullcontext():
            if self.graph and places:
                replays = {way: self._replay(call, state) for way, state in states.items()}
                return alternating(replays, turns, torch.cuda.synchronize)

            def synchronise() -> None:
                for place in places:
                    torch.cuda.synchronize(place)

            def prepare(way: str) -> None:
                self.switch(states[way])
                call.run()  # looks at each kind of call in full, which is not what is timed

            return alternating(dict.fromkeys(states, call.run), turns, synchronise, prepare)

    def _replay(self, call: RacedCall, state: frozenset[RacedKernel] | None) -> Callable[[], Any]:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        if (call, state) not in self._graphs:
            self.switch(state)
            pool, self._pool = self._pool, None  # PyTorch captures nothing more in the pool of a capture that failed
            self._graphs[call, state] = captured(call.run, pool)[0]
            self._pool = pool
        replay: Callable[[], Any] = self._graphs[call, state].replay
        return replay


@contextmanager
def _switched(
    linears: Sequence[LinearProblems], table: KernelTable, raced: Collection[RacedKernel]
) -> Iterator[Switch]:
    """What switches kernels on and off, as calls will find them once they are left to PyTorch. Afterwards all is as it
    was before."""
    raced = tuple(raced)
    kernels = {each.kernel.kernel_sha256: each.kernel for each in raced}
    # One that was a Linear before stays that, with its activation: PyTorch is left its rows.
    linears = [linear for linear in linears if not linear.already]
    left = {sha256: table.excluded_rows(kernel.gemm, kernel.device) for sha256, kernel in kernels.items()}

    def switch(on: Collection[RacedKernel] | None) -> None:
        for sha256, kernel in kernels.items():
            off = [each.rows for each in raced if each.kernel is kernel and (on is None or each not in on)]
            table.exclude_rows(kernel, left[sha256] | dict.fromkeys(off, math.inf))
        for linear in linears:
            use_kernels(linear.module, on is not None and not linear.left_to_pytorch(table))

    try:
        yield switch
    finally:
        for sha256, kernel in kernels.items():
            table.exclude_rows(kernel, left[sha256])
        for linear in linears:
            use_kernels(linear.module, True)
