"""``PackedWeight``: a weight on a CPU in the order in which a kernel reads it, kept until the weight changes."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from tirgemm.artifact import Kernel
from tirgemm.torch import linear_call
from tirgemm.torch.kernel_table import TABLE
from tirgemm.torch.operator_definition import records_gradients
from tirgemm.torch.prepared_call import REFUSED, PreparedCall

# Where packed bytes begin: a line of the cache.
_ALIGN = 64


@dataclass(frozen=True, slots=True)
class _Packed:
    """The bytes that ``kernel`` reads of ``weight``, as it was in this version in this ``memory``.

    Both are held, so that no other weight can have their place.
    """

    kernel: Kernel
    weight: Tensor
    memory: Tensor
    address: int
    version: int
    data: Tensor

    def is_of(self, weight: Tensor) -> bool:
        """Whether ``weight`` is as it was when it was packed."""
        return self.weight is weight and self.address == weight.data_ptr() and self.version == weight._version


class PackedWeight:
    """The packed copies of one layer's weight, one a kernel, of a kernel set one a member that ran. Safe from several
    threads.

    A weight is packed again when it is another tensor, in other memory, or its version counter has changed; after a
    call that records its gradients, and after a step of an optimizer that has its memory: fused optimizers do not
    count. A tensor made in inference mode has no counter and is not kept. The memory of a weight that was moved is
    freed at the next call, the copy for a kernel that was replaced once that weight is packed for another.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._packed: dict[tuple[str, int], _Packed] = {}
        _watch_optimizers()
        with _all_lock:
            _all.add(self)

    def __reduce__(self) -> tuple[type[PackedWeight], tuple[()]]:
        """What is copied and pickled: nothing, as the weight is packed anew."""
        return PackedWeight, ()

    @property
    def nbytes(self) -> int:
        """Bytes of all copies."""
        return sum(packed.data.numel() for packed in self._packed.values())

    def forget(self) -> None:
        """Drop all copies."""
        with self._lock:
            self._packed.clear()

    @property
    def memories(self) -> list[Tensor]:
        """The weights that are packed, as memory."""
        with self._lock:
            return [packed.memory for packed in self._packed.values()]

    def linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, act: str, invariant: bool, dependent_launch: bool
    ) -> Tensor:
        """As ``tirgemm.torch.linear``, with the packed weight where the kernel takes one."""
        choice = linear_call.linear_choice(x, weight, bias, act, invariant, dependent_launch)
        if not isinstance(choice, PreparedCall) or choice.kernel.device.kind != "cpu":
            if self._packed and records_gradients(weight):
                self.forget()
            return linear_call.linear(x, weight, bias, act, invariant, dependent_launch)
        if weight.is_inference() or choice.columns_a or not choice.columns_b:
            return linear_call.linear(x, weight, bias, act, invariant, dependent_launch)
        try:
            rows = x if x.dim() == 2 else x.view(-1, x.shape[-1])
            packed = self._of(choice.kernel, int(choice.kernel.functions.member(rows.shape[0])), weight)
            if packed is None:
                return linear_call.linear(x, weight, bias, act, invariant, dependent_launch)
            # Whole: a view of a result could not be changed in place where gradients are recorded.
            out = torch.empty((*x.shape[:-1], choice.shape[-1]), dtype=choice.dtype, device=x.device)
            given = (rows, weight) if bias is None else (rows, weight, bias)
            packed.kernel.functions.call_packed(*given, out if rows is x else out.view(choice.shape), packed.data)
        except REFUSED:
            return linear_call.linear(x, weight, bias, act, invariant, dependent_launch)
        return out

    def _of(self, kernel: Kernel, member: int, weight: Tensor) -> _Packed | None:
        """What a member of ``kernel`` reads of ``weight``, packed now unless it is as it was; None where it packs
        nothing."""
        key = kernel.kernel_sha256, member
        known = self._packed.get(key)
        if known is not None and known.is_of(weight):
            return known
        size = int(kernel.functions.packed_bytes(member))
        if size == 0:
            return None
        memory = torch.empty(size + _ALIGN, dtype=torch.uint8)
        start = -memory.data_ptr() % _ALIGN
        data = memory[start : start + size]
        held, version = weight.detach(), weight._version
        kernel.functions.pack(held, data, member)
        packed = _Packed(kernel, weight, held, held.data_ptr(), version, data)
        with self._lock:
            # Of another weight, or of kernels that were replaced.
            stale = [
                name for name, known in self._packed.items() if not (known.is_of(weight) and TABLE.offers(known.kernel))
            ]
            for each in stale:
                del self._packed[each]
            self._packed[key] = packed
        return packed


_all: weakref.WeakSet[PackedWeight] = weakref.WeakSet()
_all_lock = threading.Lock()


@cache
def _watch_optimizers() -> None:
    """Have optimizers forget what they change, from the first packed weight on."""
    register_optimizer_step_post_hook(_forget_changed)


def _forget_changed(optimizer: Optimizer, args: Any, more: Any) -> None:
    """Forget the packed weights whose memory an optimizer has. Dynamo traces this with a compiled step."""
    del args, more
    # Of other compiled steps PyTorch counts the changes; a fused one's is not traced.
    if not torch.compiler.is_dynamo_compiling() or any(group.get("fused") for group in optimizer.param_groups):
        _forget_memory_of(optimizer)


def _forget_memory_of(optimizer: Optimizer) -> None:
    with _all_lock:
        packed = {each: addresses for each in _all if (addresses := set(map(_address, each.memories)))}
    if packed:
        changed = {_address(tensor) for group in optimizer.param_groups for tensor in group["params"]}
        for each, addresses in packed.items():
            if addresses & changed or None in changed:
                each.forget()


def _address(tensor: Tensor) -> int | None:
    """Where the memory begins in which a tensor lies: a weight may be a slice of what an optimizer has. None where
    PyTorch does not say."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (RuntimeError, ValueError):
        return None
