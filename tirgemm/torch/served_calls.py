"""``ServedCalls``: cache of prepared ``linear`` calls by weight, bias and the shape of x."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

from torch import Tensor

from tirgemm.artifact import tensor_calls
from tirgemm.artifact.arrays import dense
from tirgemm.artifact.private_torch import empty_on
from tirgemm.gemm import USUAL_ALIGN
from tirgemm.torch.prepared_call import NO_KERNEL, SLOWER, PreparedCall, TableCache

# Of x, weight and bias (or None): the result, or None where the call must be looked at in full.
ServedCall: TypeAlias = "Callable[[Tensor, Tensor, Tensor | None], Tensor | None]"


class ServedCalls(TableCache):
    """What computes calls of ``linear`` that were chosen.

    The launcher keeps them, by the weight and the bias, the activation and which kernels may serve the call, all by
    identity, and by the shape of x and whether it is dense. Layers of one kind share them, and a weight that is no
    parameter, as a slice that is made for one call, has those of its kind. Entries go with their weight and their bias,
    before another tensor can have the address. What else a call must be, the launcher checks; only
    dynamo must not be tracing. Nobody sees that the ``data`` of a weight was set to a lazily negated view, which takes
    a private function of PyTorch, nor that a storage was shrunk. All is forgotten where there would be more than
    ``LIMIT`` kinds: weights may be slices of ever another length.
    """

    def __init__(self) -> None:
        self._kinds: dict[Any, int] = {}
        self._alive: dict[int, weakref.ref[Tensor]] = {}
        super().__init__()

    def _forget_all(self) -> None:
        tensor_calls.forget_all()
        self._kinds.clear()
        self._alive.clear()

    def forget(self, *tensors: Tensor | None) -> None:
        """Forget what was kept of these weights and biases, and refer to them no more: PyTorch swaps a parameter with
        another only where nobody has a weak reference to it."""
        with self._lock:
            for tensor in tensors:
                if tensor is not None:
                    self._alive.pop(id(tensor), None)
                    tensor_calls.forget(id(tensor))

    def keep(
        self,
        tensors: tuple[Tensor, Tensor, Tensor | None],
        how: tuple[str, object],
        call: ServedCall,
        generation: int,
    ) -> None:
        """Keep what computes x, weight and bias, chosen in that generation, unless the table has changed since."""
        weight, bias = tensors[1:]
        lies = weight.stride(), weight.data_ptr() % USUAL_ALIGN
        kind = (weight.shape, lies, weight.dtype, weight.device, bias is None, how)
        with self._lock:
            if generation != self.generation:
                return
            if kind not in self._kinds and len(self._kinds) >= self.LIMIT:
                self._forget_all()
            for tensor in (weight, bias):
                if tensor is not None and id(tensor) not in self._alive:
                    self._alive[id(tensor)] = weakref.ref(tensor, self._gone(id(tensor)))
            tensor_calls.keep(self._kinds.setdefault(kind, len(self._kinds)), tensors, how, call)

    def _gone(self, address: int) -> Any:
        """What forgets a tensor that is no more."""

        def forget(_: weakref.ref[Tensor]) -> None:
            with self._lock:
                self._alive.pop(address, None)
                tensor_calls.forget(address)

        return forget


SERVED = ServedCalls()
"""The served calls of this process, whose launcher has one cache."""


def lasts(reason: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether PyTorch computes every x of this shape, these strides and this dtype for this reason, wherever it lies
    and whatever the memory of the weight becomes."""
    if reason == "strides":
        return bool(weight.is_contiguous())
    if reason == NO_KERNEL:  # which none has for tensors that every kernel could read
        return not any(tensor.data_ptr() % USUAL_ALIGN for tensor in (x, weight, bias) if tensor is not None)
    return reason in (SLOWER, "empty operand")


def served_call(x: Tensor, weight: Tensor, choice: PreparedCall, *, rows: bool) -> ServedCall | None:
    """The launcher's function for calls as this one, in which all dimensions of x before the last are one where they
    are ``rows``; None where PyTorch offers no exchange functions."""
    shape, strides = choice.shape, choice.strides
    if rows:
        shape = (*x.shape[:-1], choice.shape[-1])
        strides = dense(shape)
    empty, functions = empty_on(weight.device), choice.kernel.functions
    return tensor_calls.call_new(functions, empty, shape, strides, choice.dtype, rows=rows)
