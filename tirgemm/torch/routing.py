"""``routed``: PyTorch's own ``mm``, ``addmm``, ``bmm`` and ``baddbmm`` by kernels, and by PyTorch with the reason."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from tirgemm.artifact.arrays import dense, span
from tirgemm.artifact.private_torch import deterministic
from tirgemm.device import Device
from tirgemm.errors import check_flags
from tirgemm.gemm import Gemm
from tirgemm.kernel_source import KernelSource, Policy, Preparation, checked_source, policy_named
from tirgemm.torch.aten_overrides import HANDLER, ProductCall, install
from tirgemm.torch.kernel_table import TABLE
from tirgemm.torch.prepared_call import REFUSED, PreparedCall, ProductOperands, Unserved, choose
from tirgemm.torch.problems import NotServed, layout_of

SERVED = "served"
_MOST = torch.finfo(torch.float32).max
# Reasons for which a dense copy of the operands is tried.
_COPIED = ("strides", "batch stride")


@dataclass
class RoutedCalls:
    """What became of the calls within ``routed``: how many of each operator were ``served``, and how many PyTorch
    computed, by reason. ``missing`` are the problems without a kernel, in the order in which they came; ``failures``
    says why a source made none of them."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    missing: dict[Gemm, Device] = field(default_factory=dict)
    failures: dict[Gemm, str] = field(default_factory=dict)

    @property
    def served(self) -> int:
        """Calls that kernels computed."""
        return sum(count for (_, outcome), count in self.counts.items() if outcome == SERVED)

    @property
    def total(self) -> int:
        """All calls."""
        return sum(self.counts.values())

    @property
    def reasons(self) -> Counter[str]:
        """Calls that PyTorch computed, by reason."""
        reasons: Counter[str] = Counter()
        for (_, outcome), count in self.counts.items():
            if outcome != SERVED:
                reasons[outcome] += count
        return reasons

    def prepare(self, source: KernelSource, policy: Policy = "default") -> dict[Gemm, str]:
        """Have ``source`` look up and make the kernels that are ``missing``, side by side, register them, and wait.

        Returns why some were not made, by problem. Raises InvalidRequest for an unknown policy and for no source.
        """
        checked, policy = checked_source(source), policy_named(policy)
        groups: dict[Device, list[Gemm]] = {}
        for gemm, device in self.missing.items():
            groups.setdefault(device, []).append(gemm)
        preparations = [checked.prepare(gemms, device, policy, TABLE.add) for device, gemms in groups.items()]
        for preparation in preparations:
            preparation.wait()
        failures = {gemm: why for preparation in preparations for gemm, why in preparation.failures.items()}
        for gemm in self.missing:
            self.failures.pop(gemm, None)
        self.failures.update(failures)
        return failures

    def __str__(self) -> str:
        lines = [f"{self.served} of {self.total} products by kernels"]
        lines += [f"  {operator}: {outcome}: {count}" for (operator, outcome), count in sorted(self.counts.items())]
        lines += [f"  no kernel for {gemm}: {why}" for gemm, why in tuple(self.failures.items())]
        return "\n".join(lines)


@contextmanager
def routed(
    policy: Policy = "tuned", *, source: KernelSource | None = None, wait: bool = False
) -> Iterator[RoutedCalls]:
    """Within the block, have kernels compute this thread's products of matrices, and PyTorch all others.

    They are the calls of ``aten::mm``, ``addmm``, ``bmm`` and ``baddbmm`` on the CPU and on CUDA that PyTorch's
    functions come down to, with ``out=`` too; those of a backward pass where it runs in this thread. ``policy``: take
    tuned kernels alone, those of shipped records too, or any default. ``source`` looks up and makes the kernels that
    are missing, in the background, each at its first call; with ``wait`` that call waits, but for a service that is
    away only the first one. Without a source kernels are those that are registered. Blocks nest, the inner one counts.

    The first block of a process installs the override, which costs every later product two microseconds; let no other
    thread compute meanwhile. Raises InvalidRequest for an unknown policy, for what is no source or no flag, and for a
    PyTorch that is too old.
    """
    policy_named(policy)
    check_flags(wait=wait)
    calls = RoutedCalls()
    router = _Router(policy, source, wait, calls)
    install()
    token = HANDLER.set(router.handle)
    try:
        yield calls
    finally:
        router.closed = True
        with suppress(ValueError):  # a generator that is closed in another context than the one that it began in
            HANDLER.reset(token)


class _Router:
    """One ``routed`` block."""

    def __init__(self, policy: Policy, source: KernelSource | None, wait: bool, calls: RoutedCalls) -> None:
        self.tuned, self.calls = policy != "default", calls
        # Set once the block is over. Its handler may stay where a generator was closed elsewhere or out of turn.
        self.closed = False
        self._requests = None if source is None else _Requests(checked_source(source), policy, wait, calls.failures)

    def handle(self, call: ProductCall) -> Tensor | None:
        """The result, or None where PyTorch is to compute it."""
        if self.closed:
            return None
        result, outcome = self._computed(call)
        self.calls.counts[call.operator, outcome] += 1
        return result

    def _computed(self, call: ProductCall) -> tuple[Tensor | None, str]:
        if call.in_place:
            return None, "in place"
        if deterministic():
            return None, "deterministic algorithms"
        try:
            operands, scalars = operands_of(call)
        except NotServed as error:
            return None, str(error)
        choice = choose(operands, tuned=self.tuned)
        if isinstance(choice, Unserved) and choice.reason in _COPIED:
            operands = with_copies(operands)
            choice = choose(operands, tuned=self.tuned)
        if isinstance(choice, Unserved) and choice.gemm is not None and choice.device is not None:
            self.calls.missing.setdefault(choice.gemm, choice.device)
            if self._requests is not None and self._requests.ask(choice.gemm, choice.device):
                choice = choose(operands, tuned=self.tuned)
        if not isinstance(choice, PreparedCall):
            return None, choice.reason
        if call.out is not None and any(_overlap(call.out, tensor) for tensor in _unseen(call, operands)):
            return None, "output over an input"  # of which PyTorch raises an error, or has results of its own
        operands = made_dense(operands)
        try:
            return choice.run(operands.a, operands.b, operands.c, operands.bias, scalars, operands.out), SERVED
        except REFUSED:  # an output that overlaps an input, say
            return None, "refused by the launcher"


class _Requests:
    """What a source was asked for: each problem once, those that come while it is at work as the next group. A service
    that is away is waited for once, then asked in the background."""

    def __init__(self, source: KernelSource, policy: Policy, wait: bool, failures: dict[Gemm, str]) -> None:
        self._source, self._policy, self._wait, self._failures = source, policy, wait, failures
        self._lock = threading.Lock()
        self._asked: set[tuple[Gemm, Device]] = set()
        self._queued: list[tuple[Gemm, Device]] = []
        self._working = False
        self._worker = threading.current_thread()

    def ask(self, gemm: Gemm, device: Device) -> bool:
        """Ask for a kernel, unless that was done; whether it was waited for."""
        with self._lock:
            if (gemm, device) in self._asked:
                return False
            self._asked.add((gemm, device))
            if not self._wait:
                self._queued.append((gemm, device))
                if not (self._working and self._worker.is_alive()):  # a forked process has no thread of its parent
                    self._working = True
                    self._worker = threading.Thread(target=self._work, name="tirgemm-routed", daemon=True)
                    self._worker.start()
                return False
        self._wait = not self._make([gemm], device).away
        return True

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._queued:
                    self._working = False
                    return
                device = self._queued[0][1]
                group = [gemm for gemm, place in self._queued if place == device]
                self._queued = [(gemm, place) for gemm, place in self._queued if place != device]
            self._make(group, device)

    def _make(self, gemms: list[Gemm], device: Device) -> Preparation:
        preparation = self._source.prepare(gemms, device, self._policy, TABLE.add)
        preparation.wait()
        self._failures.update(preparation.failures)
        return preparation


def operands_of(call: ProductCall) -> tuple[ProductOperands, tuple[float, ...]]:
    """The tensors and scalars that a kernel is called with. Raises NotServed."""
    a, b, c = call.a, call.b, call.c
    # Of those that are no finite fp32 PyTorch raises an error, or has results of its own.
    if not all(isinstance(scalar, (int, float)) and abs(scalar) <= _MOST for scalar in (call.alpha, call.beta)):
        raise NotServed("scalars")
    if call.alpha == 0:
        raise NotServed("alpha of 0")  # of which PyTorch makes 0, and a kernel NaN where an operand is infinite
    if a.dim() != b.dim() or a.dim() not in (2, 3):
        raise NotServed("shapes")
    scaled = call.alpha != 1
    if c is not None:
        if c.dtype != a.dtype or c.device != a.device:
            raise NotServed("dtypes or devices that differ")
        try:
            whole = c.expand(*a.shape[:-1], b.shape[-1])
        except RuntimeError as error:
            raise NotServed("shapes") from error
        if call.beta != 0:
            if c.dim() == 1 and a.dim() == 2 and c.shape[0] == b.shape[-1] and call.beta == 1 and not scaled:
                return ProductOperands(a, b, bias=c.contiguous(), out=call.out), ()
            return (
                ProductOperands(a, b, c=whole, out=call.out, alpha=True),
                (float(call.alpha), float(call.beta)),
            )
    return ProductOperands(a, b, out=call.out, alpha=scaled), (float(call.alpha),) if scaled else ()


@dataclass(frozen=True, slots=True)
class DenseCopy:
    """A dense copy of ``source`` that is yet to be made: what ``choose`` looks at of a tensor, which but for how it
    lies is that of ``source``."""

    source: Tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    def stride(self) -> tuple[int, ...]:
        return dense(self.source.shape)

    def data_ptr(self) -> int:
        return 0  # as aligned as PyTorch's allocators

    def is_neg(self) -> bool:
        return False

    def is_conj(self) -> bool:
        return False

    def made(self) -> Tensor:
        """The copy."""
        return self.source.contiguous()


def with_copies(operands: ProductOperands) -> ProductOperands:
    """The same with a ``DenseCopy`` of A, B and C where no kernel reads them as they lie: that one computes the copies
    is known before they are made."""
    c = operands.c
    return replace(
        operands,
        a=operands.a if _letter(operands.a) else DenseCopy(operands.a),
        b=operands.b if _letter(operands.b) else DenseCopy(operands.b),
        c=c if c is None or _letter(c) == "n" else DenseCopy(c),
    )


def made_dense(operands: ProductOperands) -> ProductOperands:
    """The same with the copies made."""
    given = {"a": operands.a, "b": operands.b, "c": operands.c}
    copies = {name: tensor.made() for name, tensor in given.items() if isinstance(tensor, DenseCopy)}
    return replace(operands, **copies) if copies else operands


def _unseen(call: ProductCall, operands: ProductOperands) -> list[Tensor]:
    """The inputs of a call that the launcher, which refuses an output that overlaps an input, is not given as they
    are."""
    given = (operands.a, operands.b, operands.c)
    copied = [tensor.source for tensor in given if isinstance(tensor, DenseCopy)]
    return [*copied, call.c] if call.c is not None and operands.c is None else copied


def _overlap(out: Tensor, tensor: Tensor) -> bool:
    """Whether an output lies within the same addresses as an input that is not the output itself."""
    if (tensor.data_ptr(), tensor.shape, tensor.stride()) == (out.data_ptr(), out.shape, out.stride()):
        return False
    (first, end), (other_first, other_end) = _addresses(out), _addresses(tensor)
    return first < other_end and other_first < end


def _addresses(tensor: Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.data_ptr() + span(tensor.shape, tensor.stride()) * tensor.element_size()


def _letter(tensor: Tensor) -> str:
    """The layout in which a kernel reads a tensor, or ""."""
    try:
        return layout_of(tensor.shape, tensor.stride()).letter
    except NotServed:
        return ""
