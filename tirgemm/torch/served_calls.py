"""``ServedCalls``: the kernels of calls of ``linear`` that were served, by weight, bias and the shape of x."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tirgemm.artifact import tensor_calls
from tirgemm.torch.kernel_table import TABLE
from tirgemm.torch.prepared_call import PreparedCall
from tirgemm.torch.private_interfaces import LEVEL, QUESTIONS, empty_on

_Layer: TypeAlias = "tuple[int, int, str, bool]"
# Of x, weight and bias (or None): the result, or None where the call must be looked at in full.
ServedCall: TypeAlias = "Callable[[Tensor, Tensor, Tensor | None], Tensor | None]"
# Shapes of x that are kept for layers of one kind.
_MOST_SHAPES = 4096


class ServedCalls:
    """What was served, until the table of kernels changes. Safe from several threads.

    ``known`` has for the ids of a weight and a bias, the activation and whether the call is invariant the calls by the
    shape of x; it may be read without a lock. Layers of one kind share them. Entries go with their weight and their
    bias, before another tensor can have the id. What else a call must be, the launcher checks; x must be a plain
    Tensor, and dynamo must not be tracing. Only that the ``data`` of a weight was set to a lazily negated view, which
    takes a private function of PyTorch, nobody sees.
    """

    def __init__(self) -> None:
        self.known: dict[_Layer, dict[torch.Size, ServedCall]] = {}
        self.generation = 0
        self._kinds: dict[Any, dict[torch.Size, ServedCall]] = {}
        self._alive: dict[int, weakref.ref[Tensor]] = {}
        # Entered again where memory is collected while it is held.
        self._lock = threading.RLock()
        TABLE.on_change(self.clear)
        tensor_calls.set_questions(QUESTIONS, LEVEL)

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self.generation += 1
            self.known.clear()
            self._kinds.clear()
            self._alive.clear()

    def keep(
        self,
        tensors: tuple[Tensor, Tensor, Tensor | None],
        how: tuple[str, bool],
        call: ServedCall,
        generation: int,
    ) -> None:
        """Keep what computes x, weight and bias, chosen in that generation, unless the table has changed since."""
        x, weight, bias = tensors
        kind = (weight.shape, weight.stride(), weight.dtype, weight.device, bias is None, how)
        with self._lock:
            if generation != self.generation:
                return
            calls = self._kinds.setdefault(kind, {})
            if len(calls) >= _MOST_SHAPES:
                calls.clear()
            calls[x.shape] = call
            for tensor in (weight, bias):
                if tensor is not None and id(tensor) not in self._alive:
                    self._alive[id(tensor)] = weakref.ref(tensor, self._gone(id(tensor)))
            self.known[id(weight), id(bias), *how] = calls

    def _gone(self, key: int) -> Any:
        """What forgets a tensor that is no more."""

        def forget(_: weakref.ref[Tensor]) -> None:
            with self._lock:
                self._alive.pop(key, None)
                # Collecting garbage may come back here from anywhere.
                for layer in [layer for layer in list(self.known) if key in layer[:2]]:
                    self.known.pop(layer, None)

        return forget


def served_call(x: Tensor, weight: Tensor, choice: PreparedCall) -> ServedCall | None:
    """The launcher's function for calls as this one; None where PyTorch offers no exchange functions."""
    shape, strides, rows = choice.shape, choice.strides, x.dim() != 2
    if rows:
        shape = (*x.shape[:-1], choice.shape[-1])
        strides = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    empty, functions = empty_on(weight.device), choice.kernel.functions
    return tensor_calls.call_new(functions, empty, shape, strides, choice.dtype, rows=rows)
