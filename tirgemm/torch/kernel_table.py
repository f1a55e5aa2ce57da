"""``KernelTable``: the loaded kernels of this process by the problems that they serve, for calls to choose from."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

import torch

from tirgemm import detect
from tirgemm.device import Device
from tirgemm.errors import DeviceUnavailable, InvalidRequest
from tirgemm.gemm import Gemm, Range
from tirgemm.hardware import arch_of

if TYPE_CHECKING:
    from tirgemm.artifact import Kernel

_FIELDS = tuple(f.name for f in fields(Gemm) if f.init and f.name not in ("m", "align"))
# One element of the smallest dtype, in bytes.
_LEAST_ALIGN = 2
_Key: TypeAlias = "tuple[object, ...]"
# Kernels that differ in m alone, by that.
_Entry: TypeAlias = "dict[int | Range, Kernel]"


class KernelTable:
    """Which kernel serves a problem. Safe from several threads.

    A kernel that was replaced stays loaded: a CUDA graph that captured it may be replayed as before. Those for
    dependent launches are only in a table for these.
    """

    def __init__(self, *, dependent_launch: bool = False) -> None:
        self._dependent_launch = dependent_launch
        self._lock = threading.Lock()
        self._entries: dict[_Key, _Entry] = {}
        self._by_name: dict[str, Kernel] = {}
        # By kernel_sha256 the kernel's time over PyTorch's, where that is left the calls.
        self._excluded: dict[str, dict[Range, float]] = {}
        # The same of what races of graphs left to PyTorch, some of which another race may have decided since.
        self.lost_in_graphs: dict[str, dict[Range, float]] = {}
        self._listeners: list[Callable[[], None]] = []

    def name(self, kernel: Kernel) -> str:
        """Make ``kernel`` known by its SHA-256 alone, and return that."""
        self._by_name[kernel.kernel_sha256] = kernel
        return kernel.kernel_sha256

    def copy(self) -> KernelTable:
        """A table of the same kernels, from which no call chooses."""
        copied = KernelTable(dependent_launch=self._dependent_launch)
        with self._lock:
            copied._entries = {key: {**entry} for key, entry in self._entries.items()}
            copied._excluded = {**self._excluded}
        return copied

    def add(self, kernel: Kernel) -> None:
        """Offer ``kernel`` to all calls that it serves. It replaces one of its problem, but a default no tuned one.

        Raises InvalidRequest for one for dependent launches that these calls did not ask for.
        """
        gemm = kernel.gemm
        if kernel.manifest.dependent_launch and not self._dependent_launch:
            raise InvalidRequest(
                f"the kernel of {gemm} is for dependent launches: calls with dependent_launch=True alone use it"
            )
        self.name(kernel)
        with self._lock:
            self._excluded.pop(kernel.kernel_sha256, None)
            entry = self._entries.setdefault(_key(gemm, kernel.device.key), {})
            known = entry.get(gemm.m)
            if known is not None and is_tuned(known) and not is_tuned(kernel):
                return
            entry[gemm.m] = kernel
        self._tell()

    def remove(self, kernel: Kernel) -> None:
        """Offer ``kernel`` to no call any more. Graphs that name it go on."""
        with self._lock:
            if self.offers(kernel):
                del self._entries[_key(kernel.gemm, kernel.device.key)][kernel.gemm.m]
        self._tell()

    def offers(self, kernel: Kernel) -> bool:
        """Whether calls may choose ``kernel``: it was neither replaced nor removed."""
        return self._entries.get(_key(kernel.gemm, kernel.device.key), {}).get(kernel.gemm.m) is kernel

    def offers_same(self, kernel: Kernel) -> bool:
        """Whether calls may choose ``kernel``, or what was loaded of another artifact of it with the same role."""
        known = self._entries.get(_key(kernel.gemm, kernel.device.key), {}).get(kernel.gemm.m)
        same = kernel.kernel_sha256, is_tuned(kernel)
        return known is not None and (known.kernel_sha256, is_tuned(known)) == same

    def exclude_rows(self, kernel: Kernel, rows: Mapping[Range, float]) -> None:
        """Leave to PyTorch the calls with these rows that ``kernel`` would serve, until the kernel is added again; each
        with its time over PyTorch's."""
        with self._lock:
            self._excluded[kernel.kernel_sha256] = dict(rows)
        self._tell()

    def find(self, gemm: Gemm, device: Device, *, tuned: bool = False) -> Kernel | None:
        """The kernel of this very problem, else that of the narrowest range of m around it, else one for addresses that
        are aligned to less; only ``tuned`` ones, where that is asked for. None where PyTorch is left all of its m."""
        kernel = self.offered(gemm, device, tuned=tuned)
        if kernel is None or _covered(gemm, self._excluded.get(kernel.kernel_sha256, {})):
            return None
        return kernel

    def excluded_rows(self, gemm: Gemm, device: Device) -> dict[Range, float]:
        """The rows that the problem's kernel leaves to PyTorch, with its time over PyTorch's."""
        kernel = self.offered(gemm, device)
        left = {} if kernel is None else self._excluded.get(kernel.kernel_sha256, {})
        return {rows: ratio for rows, ratio in left.items() if gemm.m_min <= rows.high and rows.low <= gemm.m_max}

    def excludes(self, gemm: Gemm, device: Device) -> bool:
        """Whether all m of the problem are excluded, so that PyTorch computes them."""
        return _covered(gemm, self.excluded_rows(gemm, device))

    def offered(self, gemm: Gemm, device: Device, *, tuned: bool = False) -> Kernel | None:
        """``find`` as if no rows were left to PyTorch."""
        aligns = [gemm.align >> bits for bits in range(gemm.align.bit_length()) if gemm.align >> bits >= _LEAST_ALIGN]
        with self._lock:
            entries = [self._entries.get(_key(gemm, device.key, align)) for align in aligns]
            offered = [kernel for entry in entries if entry is not None for kernel in _serving(entry, gemm)]
        return next((kernel for kernel in offered if is_tuned(kernel) or not tuned), None)

    def named(self, kernel_sha256: str) -> Kernel:
        """The kernel of that SHA-256. Raises InvalidRequest."""
        try:
            return self._by_name[kernel_sha256]
        except KeyError:
            raise InvalidRequest(
                f"no kernel {kernel_sha256!r} is registered with tirgemm::gemm; load it and call "
                "tirgemm.torch.register(kernel) first"
            ) from None

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever calls may choose another kernel."""
        self._listeners.append(listener)

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()


def is_tuned(kernel: Kernel) -> bool:
    """Whether a search selected it; a kernel that does not say what it was selected for is taken for one."""
    return kernel.manifest.role in ("tuned", None)


def _covered(gemm: Gemm, left: Mapping[Range, float]) -> bool:
    """Whether every m of the problem is in one of these ranges."""
    m = gemm.m_min
    for rows in sorted(left, key=lambda r: r.low):
        if rows.low <= m <= rows.high:
            m = rows.high + 1
    return m > gemm.m_max


def _serving(entry: _Entry, gemm: Gemm) -> list[Kernel]:
    """Those of an entry that serve m, the narrowest first."""
    around = [m for m in entry if isinstance(m, Range) and m.low <= gemm.m_min and gemm.m_max <= m.high]
    exact = [entry[gemm.m]] if isinstance(gemm.m, int) and gemm.m in entry else []
    return [*exact, *(entry[m] for m in sorted(around, key=lambda m: m.high - m.low))]


def _key(gemm: Gemm, device_key: str, align: int | None = None) -> _Key:
    return (device_key, align or gemm.align, *(getattr(gemm, name) for name in _FIELDS))


@cache
def device_of(place: torch.device) -> Device:
    """The device on which tensors of ``place`` lie. Raises InvalidDevice, DeviceUnavailable.

    Where kernels are only called, the packages that ask the driver need not be there: then PyTorch says what a GPU is.
    """
    if place.type != "cuda":
        return detect.device(place.type)
    index = place.index if place.index is not None else torch.cuda.current_device()
    try:
        return detect.device(f"cuda:{index}")
    except DeviceUnavailable:
        shown = torch.cuda.get_device_properties(index)
    return Device(
        kind="cuda",
        arch=arch_of((shown.major, shown.minor)),
        model=shown.name,
        units=shown.multi_processor_count,
        memory_bytes=shown.total_memory,
        uuid=f"GPU-{getattr(shown, 'uuid', index)}",
        index=index,
    )


TABLE = KernelTable()
"""The table of this process."""
DEPENDENT_TABLE = KernelTable(dependent_launch=True)
"""That of its kernels for dependent launches, from which only those calls choose that ask for such ones."""


def _unlock_in_child() -> None:
    """The thread that holds a lock is the parent's."""
    for table in (TABLE, DEPENDENT_TABLE):
        table._lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock_in_child)


def table_of(dependent_launch: bool) -> KernelTable:
    """The table that calls choose from which ask for dependent launches, or do not."""
    return DEPENDENT_TABLE if dependent_launch else TABLE
