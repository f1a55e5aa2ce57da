"""Race of a model's linears together: which kernels slow down what runs before and after them.

A kernel that wins alone may lose in a model, whose layers share its clocks and its L2 cache, and where the library's
products begin before the ones ahead of them end. So a call that runs many linears is timed with all kernels, without
each of them, and with none; kernels without which it is faster are dropped, the worst first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from tirgemm.artifact import Kernel
from tirgemm.gemm import Range
from tirgemm.torch import linear_race
from tirgemm.torch.alternation import PairedRatio, alternating, captured, paired_ratio
from tirgemm.torch.linear_module import use_kernels

LOG = logging.getLogger("tirgemm.torch")
ALL, NONE = "all", "none"


@dataclass(frozen=True, eq=False)
class RacedKernel:
    """A kernel for some rows, and the linears that it computes."""

    kernel: Kernel
    rows: Range
    modules: tuple[nn.Linear, ...]


def dropped(call: Callable[[], Any], raced: Sequence[RacedKernel], *, graph: bool) -> dict[RacedKernel, float]:
    """The kernels without which ``call``, which runs their modules, is faster, with its time over that without them.

    On a GPU with ``graph`` it is captured in CUDA graphs. Where ``call`` is not faster with those that are left than
    with none, all are dropped. A race that cannot be run is logged, and drops none.
    """
    try:
        with torch.no_grad(), _restored(raced):
            return _dropped(call, raced, graph)
    except RuntimeError as error:
        LOG.warning("kernels were not raced together: %s", error)
        return {}


def chain(rows: int, modules: Sequence[nn.Linear]) -> Callable[[], None]:
    """A call of the linears of a model in their order, each with random input."""
    few = linear_race.enough(modules)
    inputs = {_kind_of_input(module): linear_race.random_input(rows, module.weight) for module in few}

    def call() -> None:
        for module in few:
            module.forward(inputs[_kind_of_input(module)])

    return call


def observed_rows(call: Callable[[], Any], modules: Sequence[nn.Linear]) -> list[tuple[nn.Linear, int]]:
    """The modules that ``call`` runs, with their rows of input."""
    seen: dict[tuple[nn.Linear, int], None] = {}

    def note(module: nn.Linear, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        x = given[0] if given else named["input"]
        seen[module, x.numel() // module.in_features] = None

    hooks = [module.register_forward_pre_hook(note, with_kwargs=True) for module in modules]
    try:
        with torch.no_grad():
            call()
    finally:
        for hook in hooks:
            hook.remove()
    return list(seen)


def _kind_of_input(module: nn.Linear) -> tuple[int, torch.dtype]:
    return module.in_features, module.weight.dtype


def _dropped(call: Callable[[], Any], raced: Sequence[RacedKernel], graph: bool) -> dict[RacedKernel, float]:
    kept, lost = list(raced), dict[RacedKernel, float]()
    while kept:
        without, of_all = _ratios(call, raced, kept, graph)
        worst = max(kept, key=lambda each: without[each].median)
        if without[worst].low <= 1:
            if of_all.median >= 1:
                lost |= dict.fromkeys(kept, of_all.median)
            break
        kept.remove(worst)
        lost[worst] = without[worst].median
    return lost


def _ratios(
    call: Callable[[], Any], raced: Sequence[RacedKernel], kept: Sequence[RacedKernel], graph: bool
) -> tuple[dict[RacedKernel, PairedRatio], PairedRatio]:
    """The time of ``call`` with all that are kept, over that without each of them, and over that with none."""
    states: dict[str, list[RacedKernel]] = {ALL: list(kept), NONE: []}
    for number, left_out in enumerate(kept):
        if len(kept) > 1:
            states[f"without {number}"] = [each for each in kept if each is not left_out]

    def switch(way: str) -> None:
        on = {id(module) for each in states[way] for module in each.modules}
        for module in {id(module): module for each in raced for module in each.modules}.values():
            use_kernels(module, id(module) in on)

    places = {module.weight.device for each in raced for module in each.modules if module.weight.is_cuda}
    turns, turn_s = linear_race.TURNS, linear_race.TURN_S
    with torch.cuda.device(min(places, key=str)) if places else nullcontext():
        if graph and places:
            graphs = {way: _replay(call, way, switch) for way in states}
            samples = alternating(graphs, turns, turn_s, torch.cuda.synchronize)
        else:

            def synchronise() -> None:
                for place in places:
                    torch.cuda.synchronize(place)

            samples = alternating(dict.fromkeys(states, call), turns, turn_s, synchronise, switch)
    ratio = partial(paired_ratio, samples[ALL])
    without = {each: ratio(samples.get(f"without {number}", samples[NONE])) for number, each in enumerate(kept)}
    return without, ratio(samples[NONE])


def _replay(call: Callable[[], Any], way: str, switch: Callable[[str], None]) -> Callable[[], Any]:
    switch(way)
    replay: Callable[[], Any] = captured(call)[0].replay
    return replay


@contextmanager
def _restored(raced: Sequence[RacedKernel]) -> Iterator[None]:
    """Whatever happens, kernels compute the modules again afterwards."""
    try:
        yield
    finally:
        for each in raced:
            for module in each.modules:
                use_kernels(module, True)
