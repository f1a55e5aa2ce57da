"""``Workbench``: what tuning on one device needs to hold: the build pool, the measuring process, the signer, the store.

Building and measuring cost seconds to start, so a worker keeps one workbench for all its jobs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tirgemm._extras import require
from tirgemm.artifact import SetContents, Signer, Trust, pack
from tirgemm.artifact.closing import Closing
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.gemm import Gemm, Regime
from tirgemm.status import Role
from tirgemm.timings import Timings
from tirgemm.tuning.build.pool import BuildPool
from tirgemm.tuning.build.prepared import PreparedBuilds
from tirgemm.tuning.build.processes import BUILDER, Builders
from tirgemm.tuning.measure import Measurer
from tirgemm.tuning.measure.measurer import StartMeasuring, measuring_child
from tirgemm.tuning.measure.yardstick import Yardsticks
from tirgemm.tuning.process.locks import OnWait
from tirgemm.tuning.records.store import Store

if TYPE_CHECKING:
    from tirgemm.tuning.build.binary import Binary


@dataclass(frozen=True)
class SetMember:
    """A kernel of a set: its problem, a part of the set's range of m, its build, its evidence and its times."""

    gemm: Gemm
    config: Config
    binary: Binary
    certificate: dict[str, Any] | None
    timings: Timings


class Workbench(Closing):
    """The long-lived means of tuning on one device.

    ``processes`` is the number of build processes (default: the usable hardware threads), or those that it shares with
    other workbenches; ``builder`` as that of BuildProcesses, for processes of its own. ``lock_dir`` is where the
    host-wide device locks lie. The measuring process exists only where the device is present; ``start_measuring``
    starts it.
    """

    helpers: Callable[[], Sequence[Measurer]] = staticmethod(tuple)
    """Measuring processes of idle devices of the same key, which a search may use beside its own now."""
    prepared: PreparedBuilds | None = None
    """Builds that were begun while the job that asks for them waited."""
    _on_wait: OnWait | None = None
    _wait_told = ""

    def __init__(
        self,
        device: Device,
        store: Store,
        signer: Signer | None = None,
        *,
        lock_dir: Path | None = None,
        processes: int | Builders | None = None,
        timeout_s: float = 60.0,
        start_measuring: StartMeasuring = measuring_child,
        builder: str = BUILDER,
    ) -> None:
        require("tuning", "tune")
        self.device = device
        self.store = store
        self.signer = signer or Signer.generate()
        self._ahead: dict[tuple[Gemm, Config], Future[Binary]] = {}
        self.yardsticks = Yardsticks()
        self.pool = BuildPool(device, processes=processes, lock_dir=lock_dir, builder=builder)
        self.measurer = (
            Measurer(
                device,
                Trust.of_signer(self.signer),
                lock_dir=lock_dir,
                timeout_s=timeout_s,
                on_wait=self._tell_wait,
                start=start_measuring,
            )
            if device.present
            else None
        )
        self._describe_device()

    def warm(self) -> None:
        """Start a build process and the measuring process in the background, each with its imports, so that the first
        build and the first measurement find them ready."""
        self.pool.warm()
        if self.measurer is not None:
            self.measurer.warm()

    def build(self, gemm: Gemm, config: Config, *, urgent: bool = False) -> Future[Binary]:
        """Instantiate and compile one config in a build process, unless that was begun ahead; before what else is to be
        built where it is ``urgent``. The future raises BuildFailed."""
        begun = self._ahead.pop((gemm, config), None)
        if begun is None and self.prepared is not None:
            begun = self.prepared.take(gemm, config)
        return begun or self.pool.submit(gemm, config, urgent=urgent)

    def build_ahead(self, gemm: Gemm, config: Config, begun: Future[Binary] | None = None) -> None:
        """Begin the build that will be asked for, or take one that was ``begun``."""
        if (gemm, config) not in self._ahead:
            self._ahead[gemm, config] = begun or self.build(gemm, config)

    def keep_built(self, gemm: Gemm, config: Config, build: Future[Binary]) -> None:
        """Keep a build that has ended for who asks for it again, on whichever device of the kind that is."""
        if self.prepared is not None:
            self.prepared.keep(gemm, config, build)

    def forget_ahead(self, gemm: Gemm) -> None:
        """Give up the builds of a problem that nobody has asked for."""
        for key in [key for key in self._ahead if key[0] == gemm]:
            self._ahead.pop(key).cancel()

    def on(self, store: Store) -> Workbench:
        """This workbench, its processes and its key, with another store."""
        other = copy.copy(self)
        other.store, other.yardsticks = store, Yardsticks()
        other._describe_device()
        return other

    def _describe_device(self) -> None:
        """Store what the device is, to which records will refer; of one that is only named a kernel may be stored,
        which brings it along."""
        if self.device.present:
            self.store.put_device(self.device)

    def ended(self, builds: Collection[Future[Binary]], timeout_s: float = 0.1) -> set[Future[Binary]]:
        """Those of ``builds`` that have ended, once one has or ``timeout_s`` is over."""
        done = wait(builds, timeout=timeout_s, return_when=FIRST_COMPLETED).done
        self._tell_wait(self.pool.waiting)
        return done

    def abandon_builds(self) -> None:
        """Cancel the builds that wait and kill those that run; their futures end without a binary, and none of them is
        a build ahead any more."""
        self._ahead = {key: build for key, build in self._ahead.items() if build.done()}
        self.pool.abandon()

    def package(
        self,
        gemm: Gemm,
        config: Config,
        binary: Binary,
        *,
        certificate: dict[str, Any] | None = None,
        timings: Timings | None = None,
        selected: tuple[Regime, Role] | tuple[None, None] = (None, None),
    ) -> bytes:
        """The signed artifact of a build, with or without its evidence; the kernel part hashes the same either way.

        ``selected``: the regime and the role of a kernel that is to be served.
        """
        return pack(binary.contents(gemm, config, self._class, certificate, timings, selected), self.signer)

    def package_set(
        self, gemm: Gemm, members: Sequence[SetMember], timings: Timings, selected: tuple[Regime, Role]
    ) -> bytes:
        """The signed artifact of a kernel set; each member's kernel part hashes as that of its own package."""
        regime, role = selected
        contents = tuple(
            member.binary.contents(member.gemm, member.config, self._class, member.certificate, member.timings)
            for member in members
        )
        return pack(
            SetContents(gemm=gemm, members=contents, timings=timings, regime=regime, role=role),
            self.signer,
        )

    @property
    def _class(self) -> Device:
        """The class of devices that a kernel runs on, not the one that it was built beside: one kernel has one hash."""
        return self.device.device_class

    @contextmanager
    def waits_told(self, on_wait: OnWait) -> Iterator[None]:
        """Within the block ``on_wait`` is told what building or measuring waits for, then "" when it goes on.

        It is called in the thread that uses this workbench, and by the innermost block alone.
        """
        before = self._on_wait, self._wait_told
        self._on_wait, self._wait_told = on_wait, ""
        try:
            yield
        finally:
            self._on_wait, self._wait_told = before

    def _tell_wait(self, reason: str) -> None:
        if reason != self._wait_told and self._on_wait is not None:
            self._wait_told = reason
            self._on_wait(reason)

    def close(self) -> None:
        """Stop the measuring process and the build processes, but for those that others share."""
        self.pool.close()
        if self.measurer is not None:
            self.measurer.close()
