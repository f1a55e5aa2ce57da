"""Interface of kernel providers for the PyTorch integration: lookup and background compilation of GEMM kernels.

``KernelSource.lookup`` returns the compiled kernel of a GEMM problem on a device, or None; ``KernelSource.prepare``
compiles kernels in a background thread, as far as a ``Policy`` allows. Implemented by ``LocalKernels`` (local database
and shipped records), ``DependentKernels`` (for programmatic dependent launch) and ``ServiceKernels`` (HTTP client).
"""

from __future__ import annotations

import math
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, get_args, runtime_checkable

from tirgemm.artifact import Kernel
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest, ServiceUnreachable, TirgemmError, one_of
from tirgemm.gemm import Gemm

Policy: TypeAlias = Literal["tuned", "shipped", "default"]
"""Permission to make kernels: none (``tuned`` takes what was tuned before), those of shipped records and for ranges of
m with such records sets of defaults, any default."""
POLICIES: tuple[Policy, ...] = get_args(Policy)
Arrived: TypeAlias = Callable[[Kernel], None]
LookupResult: TypeAlias = "Kernel | TirgemmError | None"
"""The kernel that a lookup returned, None where there is none, or the error that it raised."""


def policy_named(text: str) -> Policy:
    """The policy of that name. Raises InvalidRequest."""
    return one_of("policy", text, POLICIES)


def seconds_of(wait: bool | float) -> float | None:
    """``wait`` as Preparation.wait takes it: None where it has no end, as True has none. Raises InvalidRequest."""
    if wait is True:
        return None
    try:
        seconds = float(wait)
    except (TypeError, ValueError):
        seconds = math.nan
    if not seconds >= 0:
        raise InvalidRequest(f"wait is {wait!r:.80}; it must be True, False or a number of seconds from 0")
    return seconds if seconds <= threading.TIMEOUT_MAX else None


@dataclass
class Preparation:
    """Kernels that are being made in the background: ``failures`` says by problem what became of those that are not,
    ``away`` why a service was given up that was waited for in vain.

    ``wait`` and ``cancel`` may be called from any thread.
    """

    wanted: tuple[Gemm, ...]
    failures: dict[Gemm, str] = field(default_factory=dict)
    away: str = ""
    cancelled: threading.Event = field(default_factory=threading.Event)
    finished: threading.Event = field(default_factory=threading.Event)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until nothing is made any more, at most so long; whether that is so."""
        return self.finished.wait(seconds)

    def cancel(self) -> None:
        """Make no more; what has arrived stays."""
        self.cancelled.set()

    def fail(self, gemms: Sequence[Gemm], reason: str) -> None:
        """Say of these problems why they have no kernel, or no better one."""
        for gemm in gemms:
            self.failures[gemm] = reason


@runtime_checkable
class KernelSource(Protocol):
    """A provider of compiled kernels: it looks up the kernel of a problem, and makes those that are missing.

    A kernel may serve a range of m. Safe from several threads. ``tunes``: whether what it makes was searched for, so
    that it is worth asking for where there is a default.
    """

    tunes: bool

    def lookup(self, gemm: Gemm, device: Device) -> Kernel | None:
        """The kernel that is there; nothing is made, and nothing asked for. Raises TirgemmError."""
        ...

    def refusal(self, gemm: Gemm, device: Device, policy: Policy) -> str | None:
        """Why this source will not make a kernel of a problem, or None."""
        ...

    def prepare(self, gemms: Sequence[Gemm], device: Device, policy: Policy, arrived: Arrived) -> Preparation:
        """Make kernels for all of ``gemms``, as one group, and return at once.

        ``arrived`` is called in a thread of the source with every kernel that is there, a better one after the first.
        """
        ...


def checked_source(source: KernelSource) -> KernelSource:
    """``source``, if it is one. Raises InvalidRequest."""
    if isinstance(source, type) or not isinstance(source, KernelSource):
        raise InvalidRequest(
            f"source is {source!r:.80}; give an object with the methods of tirgemm.kernel_source.KernelSource, for a "
            "service tirgemm.torch.ServiceKernels(client)"
        )
    return source


@runtime_checkable
class BatchLookup(Protocol):
    """A KernelSource that knows better than ``lookup_all`` how to look up many problems."""

    def lookup_all(self, gemms: Sequence[Gemm], device: Device) -> dict[Gemm, LookupResult]:
        """What ``lookup`` says of each of ``gemms``."""
        ...


def lookup_all(source: KernelSource, gemms: Sequence[Gemm], device: Device) -> dict[Gemm, LookupResult]:
    """What ``source`` has for each of ``gemms``, or the error of its lookup. A service that is away is waited for once:
    its ServiceUnreachable is the answer for all that come after."""
    if isinstance(source, BatchLookup):
        return source.lookup_all(gemms, device)
    results: dict[Gemm, LookupResult] = {}
    away: ServiceUnreachable | None = None
    for gemm in gemms:
        try:
            results[gemm] = source.lookup(gemm, device) if away is None else away
        except TirgemmError as error:
            results[gemm] = error
            away = error if isinstance(error, ServiceUnreachable) else None
    return results


class MakesInBackground(ABC):
    """What sources have in common that make the kernels of a group in a thread of their own, by ``_make``."""

    def prepare(self, gemms: Sequence[Gemm], device: Device, policy: Policy, arrived: Arrived) -> Preparation:
        """As ``KernelSource`` says it."""
        preparation = Preparation(tuple(gemms))
        return run_in_background(preparation, lambda: self._make(preparation, device, policy, arrived), str)

    @abstractmethod
    def _make(self, preparation: Preparation, device: Device, policy: Policy, arrived: Arrived) -> None:
        """Make the kernels of a group, each handed to ``arrived``."""


def run_in_background(
    preparation: Preparation, work: Callable[[], None], failed: Callable[[Exception], str]
) -> Preparation:
    """Do ``work`` in a thread of its own; of an error that ends it, what ``failed`` says is kept for every problem.

    A process that is forked meanwhile has no such thread: ``preparation`` has failed there.
    """

    def run() -> None:
        try:
            work()
        except Exception as error:  # nobody else would hear of it
            preparation.fail(preparation.wanted, failed(error))
        finally:
            preparation.finished.set()
            _running.pop(id(preparation), None)

    _running[id(preparation)] = preparation
    threading.Thread(target=run, name="tirgemm-prepare", daemon=True).start()
    return preparation


_running: dict[int, Preparation] = {}


def _fail_after_fork() -> None:
    for preparation in _running.values():
        preparation.fail(preparation.wanted, "it was being made in the process that this one was forked from")
        preparation.finished = threading.Event()  # of the other a thread may have held the lock
        preparation.finished.set()
    _running.clear()


os.register_at_fork(after_in_child=_fail_after_fork)
