"""``PackedWeights``: weights on a CPU in the order in which kernels read them, kept until they change."""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from tirgemm.artifact import Kernel
from tirgemm.artifact.private_torch import CompiledRun, compiled_run
from tirgemm.torch import linear_call
from tirgemm.torch.kernel_table import TABLE
from tirgemm.torch.operator_definition import records_gradients
from tirgemm.torch.prepared_call import REFUSED, PreparedCall

# Where packed bytes begin: a line of the cache.
_ALIGN = 64
# So many elements of a weight are compared with those that were packed.
_SAMPLES = 16
_BITS = {2: torch.int16, 4: torch.int32}
# Where a weight lies, and how often PyTorch has counted a change of it.
_State: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Packed:
    """The bytes that ``kernel`` reads of a weight in this state. Its ``memory`` is held, so that no other one can have
    the address. ``samples`` are some elements there, ``bits`` what they were when they were packed."""

    kernel: Kernel
    state: _State
    memory: Tensor
    data: Tensor
    samples: Tensor
    bits: Tensor

    def packs(self, state: _State) -> bool:
        """Whether this is the weight in that state, as far as its samples tell: PyTorch does not count all writes."""
        return self.state == state and torch.equal(self.samples, self.bits)


def _samples(weight: Tensor) -> Tensor:
    """A view of elements along a diagonal of a weight from its first element to its last rows and columns, as bits."""
    rows, columns = weight.shape
    count = min(_SAMPLES, max(rows, columns))
    down, right = ((size - 1) // max(1, count - 1) for size in (rows, columns))
    bits = weight.view(_BITS[weight.element_size()])
    return bits.as_strided((count,), (down * weight.stride(0) + right * weight.stride(1),))


class PackedWeight:
    """The packed copies of one weight, one a kernel, of a kernel set one a member that ran.

    A graph of torch.compile that changes a parameter counts the change before it runs, when the old values are still
    there. So a state that is seen first in such a run is not packed before that run is over: each run that changes the
    weight begins with a state of its own.
    """

    def __init__(self) -> None:
        self.packed: dict[tuple[str, int], _Packed] = {}
        self._lock = threading.Lock()
        self._seen: tuple[_State, weakref.ref[CompiledRun] | None] | None = None

    def data(self, weight: Tensor, kernel: Kernel, member: int) -> Tensor | None:
        """What a member of ``kernel`` reads of ``weight``, packed now unless it is as it was; None where it packs
        nothing, or not yet."""
        key, state = (kernel.kernel_sha256, member), (weight.data_ptr(), weight._version)
        known = self.packed.get(key)
        if known is not None and known.packs(state):
            return known.data
        size = int(kernel.functions.packed_bytes(member))
        if size == 0 or not self._lasts(state):
            return None
        memory = torch.empty(size + _ALIGN, dtype=torch.uint8)
        start = -memory.data_ptr() % _ALIGN
        held, data = weight.detach(), memory[start : start + size]
        samples = _samples(held)
        bits = samples.clone()  # before the weight is read: what is written meanwhile is seen at the next call
        kernel.functions.pack(held, data, member)
        with self._lock:
            # Of the weight as it was, or of kernels that were replaced.
            stale = [name for name, each in self.packed.items() if each.state != state or not TABLE.offers(each.kernel)]
            for name in stale:
                del self.packed[name]
            self.packed[key] = _Packed(kernel, (held.data_ptr(), state[1]), held, data, samples, bits)
        return data

    def _lasts(self, state: _State) -> bool:
        """Whether the weight stays as it is until PyTorch counts a change."""
        seen = self._seen
        if seen is None or seen[0] != state:
            run = compiled_run()
            self._seen = state, None if run is None else weakref.ref(run)
            return run is None
        return seen[1] is None or seen[1]() is None

    def unlock_in_child(self) -> None:
        """The thread that holds the lock is the parent's."""
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Drop all copies."""
        with self._lock:
            self.packed.clear()

    @property
    def memories(self) -> list[Tensor]:
        """The memory of what is packed."""
        with self._lock:
            return [each.memory for each in self.packed.values()]


class PackedWeights:
    """The packed weights of this process, each until it is no more. Safe from several threads.

    A weight is packed again when it has other memory or its version counter has changed; after a call that records its
    gradients, and after a step of an optimizer that has its memory: fused optimizers do not count. Of other writes that
    do not count those are seen that change one of some samples, as one of the whole weight does. A tensor made in
    inference mode has no counter and is not kept. The memory of a weight that was moved is freed once it is packed
    again, as is the copy for a kernel that was replaced.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Tensor], PackedWeight]] = {}
        # Entered again where memory is collected while it is held.
        self._lock = threading.RLock()
        os.register_at_fork(after_in_child=self._unlock_in_child)

    def _unlock_in_child(self) -> None:
        """The thread that holds a lock is the parent's."""
        self._lock = threading.RLock()
        for _, packed in self._known.values():
            packed.unlock_in_child()

    def linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, act: str, invariant: bool, dependent_launch: bool
    ) -> Tensor:
        """As ``tirgemm.torch.linear``, with the packed weight where the kernel takes one."""
        choice = linear_call.linear_choice(x, weight, bias, act, invariant, dependent_launch)
        if not isinstance(choice, PreparedCall) or choice.kernel.device.kind != "cpu":
            if self._known and records_gradients(weight):
                self.forget(weight)
            return linear_call.linear(x, weight, bias, act, invariant, dependent_launch)
        if weight.is_inference() or choice.columns_a or not choice.columns_b:
            return linear_call.linear(x, weight, bias, act, invariant, dependent_launch)
        try:
            rows = x if x.dim() == 2 else x.view(-1, x.shape[-1])
            functions = choice.kernel.functions
            packed = self._of(weight).data(weight, choice.kernel, int(functions.member(rows.shape[0])))
            if packed is None:
                return linear_call.linear(x, weight, bias, act, invariant, dependent_launch)
            # Whole: a view of a result could not be changed in place where gradients are recorded.
            out = torch.empty((*x.shape[:-1], choice.shape[-1]), dtype=choice.dtype, device=x.device)
            given = (rows, weight) if bias is None else (rows, weight, bias)
            functions.call_packed(*given, out if rows is x else out.view(choice.shape), packed)
        except REFUSED:
            return linear_call.linear(x, weight, bias, act, invariant, dependent_launch)
        return out

    def nbytes(self, weight: Tensor | None) -> int:
        """Bytes of all copies of a weight."""
        _, packed = self._known.get(id(weight), (None, None))
        return 0 if packed is None else sum(each.data.numel() for each in list(packed.packed.values()))

    def forget(self, weight: Tensor | None) -> None:
        """Drop the copies of a weight, and refer to it no more: PyTorch swaps a parameter with another only where
        nobody has a weak reference to it."""
        with self._lock:
            self._known.pop(id(weight), None)

    def forget_memory_of(self, optimizer: Optimizer) -> None:
        """Drop the copies of weights in the memory of an optimizer's parameters."""
        with self._lock:
            weights = [packed for _, packed in self._known.values()]
        packed = {each: addresses for each in weights if (addresses := set(map(_address, each.memories)))}
        if packed:
            changed = {_address(tensor) for group in optimizer.param_groups for tensor in group["params"]}
            for each, addresses in packed.items():
                if addresses & changed or None in changed:
                    each.forget()

    def _of(self, weight: Tensor) -> PackedWeight:
        reference, packed = self._known.get(id(weight), (None, None))
        if packed is not None and reference is not None and reference() is weight:
            return packed
        _watch_optimizers()
        packed = PackedWeight()
        with self._lock:
            self._known[id(weight)] = weakref.ref(weight, self._gone(id(weight))), packed
        return packed

    def _gone(self, address: int) -> Any:
        """What forgets a weight that is no more."""

        def forget(reference: weakref.ref[Tensor]) -> None:
            with self._lock:
                known = self._known.get(address)
                if known is not None and known[0] is reference:
                    del self._known[address]

        return forget


PACKED_WEIGHTS = PackedWeights()


@cache
def _watch_optimizers() -> None:
    """Have optimizers forget what they change, from the first packed weight on."""
    register_optimizer_step_post_hook(_forget_changed)


def _forget_changed(optimizer: Optimizer, args: Any, more: Any) -> None:
    """Forget the packed weights whose memory an optimizer has. Dynamo traces this with a compiled step."""
    del args, more
    # Of other compiled steps PyTorch counts the changes; a fused one's is not traced.
    if not torch.compiler.is_dynamo_compiling() or any(group.get("fused") for group in optimizer.param_groups):
        PACKED_WEIGHTS.forget_memory_of(optimizer)


def _address(tensor: Tensor) -> int | None:
    """Where the memory begins in which a tensor lies: a weight may be a slice of what an optimizer has. None where
    PyTorch does not say."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (RuntimeError, ValueError):
        return None
