"""The CPU's baseline ``torch.matmul``: the fastest of what a careful PyTorch user would write, chosen per problem.

``torch.matmul`` and ``addmm`` into a given output, ``F.linear`` where B lies as its weight, ``torch.matmul`` of padded
operands where rows are odd, and for 16-bit operands the product in fp32 with the casts; each on as many threads as our
kernels have and, where that is less, on PyTorch's own number. PyTorch is imported when the first measurement asks for
it, so that processes that only verify do without.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tirgemm.gemm import DTYPE_NAMES, Gemm
from tirgemm.rounds import SampleBlock, StoppingRule, alternate, turn
from tirgemm.tuning.driver.tensors import View
from tirgemm.tuning.measure.baselines.numpy_baseline import BaselineUnavailable
from tirgemm.tuning.measure.baselines.torch_baseline import (
    PLAIN,
    activation,
    careful_call,
    in_given_output,
    operand_tensors,
    pin,
    with_aligned_operands,
)
from tirgemm.tuning.measure.baselines.tuned_baseline import Call, Refused, choose
from tirgemm.tuning.measure.torch_import import imported_torch

# A way that takes so much longer for some of the rows than the fastest for all is not tried on more of them. PyTorch
# has no fast fp16 for some layouts on some CPUs: minutes a call, where fp32 takes a second.
_HOPELESS = 4.0
_TRIES, _TRIES_S = 3, 0.2
_FINAL = StoppingRule(8, 0.1)

Tensors = dict[str, Any]


@dataclass(frozen=True)
class TorchCall:
    """One way to write the problem, on so many threads. ``call`` is how a user would write it."""

    call: str
    threads: int
    prepare: Callable[[Tensors], Call]

    @property
    def label(self) -> dict[str, Any]:
        return {"call": self.call, "threads": self.threads}


class HostTorchBaseline:
    """PyTorch's ways to compute ``gemm`` on the CPU. Raises BaselineUnavailable."""

    def __init__(self, gemm: Gemm, usable_threads: int, alive: Callable[[], None]) -> None:
        if gemm.out != gemm.dtype:
            raise BaselineUnavailable(f"torch.matmul writes {gemm.dtype}, its inputs' dtype, not {gemm.out}")
        self._gemm = gemm
        self._alive = alive
        self._torch = imported_torch(alive)
        self._torch.set_grad_enabled(False)
        pin(self._torch)
        counts = dict.fromkeys((usable_threads, min(_own_threads(self._torch), usable_threads)))
        self.ways = [TorchCall(call, count, prepare) for call, prepare in self._written() for count in counts]

    def choose(self, sets: list[dict[str, View]], block_of: Callable[[Iterator[Call]], SampleBlock]) -> dict[str, Any]:
        """Which way is the fastest, as conditions say it. ``block_of`` makes of endless calls what takes samples of
        them."""

        def block(index: int) -> SampleBlock:
            way = self.ways[index]
            self._on_threads(way)
            calls = itertools.cycle(self._prepared(way, sets))
            taken = turn(calls, block_of(calls))

            def run() -> list[float]:
                self._on_threads(way)
                return taken()

            return run

        def screen(index: int, best_us: float) -> float:
            self._require_hopeful(self.ways[index], sets[0], best_us)
            median_us = statistics.median(block(index)())
            self._alive()
            return median_us

        def final(best: list[int]) -> dict[int, float]:
            samples = alternate({str(index): block(index) for index in best}, _FINAL, self._alive)
            return {int(index): statistics.median(taken) for index, taken in samples.items()}

        return choose(len(self.ways), screen, final).to_json([way.label for way in self.ways])

    def chosen(self, choice: dict[str, Any], sets: list[dict[str, View]]) -> list[Call]:
        """The calls of the way that ``choose`` has chosen, one for each set of operands; PyTorch has its threads from
        here on."""
        way = self.ways[choice["chosen"]]
        self._on_threads(way)
        return self._prepared(way, sets)

    def _prepared(self, way: TorchCall, sets: list[dict[str, View]]) -> list[Call]:
        return [way.prepare(operand_tensors(self._torch, self._gemm, views)) for views in sets]

    def _on_threads(self, way: TorchCall) -> None:
        if self._torch.get_num_threads() != way.threads:
            self._torch.set_num_threads(way.threads)

    def _require_hopeful(self, way: TorchCall, views: dict[str, View], best_us: float) -> None:
        """Raise Refused where a part of the rows takes far longer than ``best_us``, which all take another way."""
        self._on_threads(way)
        tensors = operand_tensors(self._torch, self._gemm, views)
        rows, limit_us = 1, _HOPELESS * best_us
        while rows < self._gemm.m_max and limit_us < float("inf"):
            call = way.prepare({name: _first(tensor, rows, name) for name, tensor in tensors.items()})
            us = self._least(call, limit_us)
            if us > limit_us:
                raise Refused(
                    f"{rows} of {self._gemm.m_max} rows took {us:.0f} us, all of them {best_us:.0f} us another way"
                )
            rows *= 2

    def _least(self, call: Call, limit_us: float) -> float:
        """Microseconds of the fastest of a few calls, of which the first loads code; one below the limit is enough."""
        least = float("inf")
        until = time.monotonic() + _TRIES_S
        for _ in range(_TRIES):
            started = time.perf_counter()
            call()
            self._alive()
            least = min(least, (time.perf_counter() - started) * 1e6)
            if least <= limit_us or time.monotonic() > until:
                break
        return least

    def _written(self) -> Iterator[tuple[str, Callable[[Tensors], Call]]]:
        """The ways that apply; of 16-bit operands that in fp32 first, which every CPU is fast at."""
        gemm = self._gemm
        if gemm.dtype != "f32":
            yield f"torch.matmul(a.float(), b.float()).to(torch.{DTYPE_NAMES[gemm.dtype]})", self._in_fp32
        yield PLAIN, lambda tensors: in_given_output(self._torch, gemm, **tensors)
        if (careful := careful_call(gemm)) is not None:
            yield careful, lambda tensors: with_aligned_operands(self._torch, gemm, **tensors)
        if gemm.batch == 1 and (gemm.beta or gemm.bias):
            yield f"torch.addmm({'c' if gemm.beta else 'bias'}, a, b, out=d)", self._addmm
        if gemm.batch == 1 and gemm.trans_b and not gemm.beta and not (gemm.alpha and gemm.bias):
            yield f"torch.nn.functional.linear(a, b{', bias' if gemm.bias else ''})", self._linear

    def _in_fp32(self, tensors: Tensors) -> Call:
        torch, gemm, act = self._torch, self._gemm, activation(self._torch, self._gemm.act)
        a, b, d, c, bias = tensors["a"], tensors["b"], tensors["d"], tensors.get("c"), tensors.get("bias")

        def run() -> None:
            x = torch.matmul(a.float(), b.float())
            if gemm.alpha:
                x.mul_(1.0)
            if c is not None:
                x.add_(c, alpha=1.0)
            if bias is not None:
                x.add_(bias)
            d.copy_(x if act is None else act(x))

        return run

    def _addmm(self, tensors: Tensors) -> Call:
        torch, gemm, act = self._torch, self._gemm, activation(self._torch, self._gemm.act)
        a, b, d, c, bias = tensors["a"], tensors["b"], tensors["d"], tensors.get("c"), tensors.get("bias")

        def run() -> None:
            torch.addmm(bias if c is None else c, a, b, beta=1.0, alpha=1.0, out=d)
            if gemm.beta and bias is not None:
                d.add_(bias)
            if act is not None:
                d.copy_(act(d))

        return run

    def _linear(self, tensors: Tensors) -> Call:
        torch, gemm, act = self._torch, self._gemm, activation(self._torch, self._gemm.act)
        a, weight, bias = tensors["a"], tensors["b"].mT, tensors.get("bias")
        linear = torch.nn.functional.linear

        def run() -> Any:
            d = linear(a, weight, bias)
            if gemm.alpha:
                d.mul_(1.0)
            return d if act is None else act(d)

        return run


def _first(tensor: Any, rows: int, name: str) -> Any:
    """The part of an operand that the first rows of D need."""
    return tensor if name in ("b", "bias") else tensor[..., :rows, :]


_threads_at_start: list[int] = []


def _own_threads(torch: Any) -> int:
    """The threads that PyTorch takes where nobody says: with two threads a core it may be the cores."""
    if not _threads_at_start:
        _threads_at_start.append(int(torch.get_num_threads()))
    return _threads_at_start[0]
