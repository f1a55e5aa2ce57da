"""``DependentKernels``: the kernels of another source, built again for programmatic dependent launch and certified.

Each is kept in the data folder under the hash of the kernel that it was made of, not in the database, whose answers are
launched as ever.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from tirgemm.artifact import Kernel, Trust, load
from tirgemm.artifact.manifest import Manifest
from tirgemm.artifact.private_file import replace
from tirgemm.device import Device
from tirgemm.errors import ArtifactError, Cancelled, TirgemmError, VerificationFailed
from tirgemm.gemm import REGIMES, Gemm, Regime
from tirgemm.hardware import dependent_launch_refusal
from tirgemm.kernel_source import (
    Arrived,
    KernelSource,
    LookupResult,
    MakesInBackground,
    Policy,
    Preparation,
    lookup_all,
)
from tirgemm.status import Role
from tirgemm.timings import NotTimed, SelectionReason, Timings
from tirgemm.tuning.build import dependent_launch
from tirgemm.tuning.evaluate import Evaluator
from tirgemm.tuning.process.interrupts import Flag
from tirgemm.tuning.records import Certificate
from tirgemm.tuning.records.memory_store import MemoryStore
from tirgemm.tuning.records.row_signatures import row_signature
from tirgemm.tuning.verify.chain import chain_refusal
from tirgemm.tuning.workbench import SetMember, Workbench
from tirgemm.tuning_db import data_folder
from tirgemm.tuning_db.local_kernels import LocalKernels

if TYPE_CHECKING:
    from tirgemm.tuning.build.binary import Binary

LOG = logging.getLogger("tirgemm.tuning_db")
UNTIMED = "not measured alone: each call would overlap the one before it, which in a model is another kernel's"
# Seconds between two looks at whether the other source has ended, or all is cancelled.
_POLL_S = 0.1


@dataclass(frozen=True)
class _Certified:
    """A kernel of a call or of a set, rebuilt, with its evidence."""

    made_of: Manifest
    binary: Binary
    certificate: Certificate


class DependentKernels(MakesInBackground):
    """A KernelSource of the kernels of ``inner``: the same configs, which wait at their entry and are launched while
    the kernel ahead of them ends.

    Whatever ``inner`` has may be rebuilt, whatever the policy; what it makes, it makes as the policy says. Certificates
    hold all tests of a kernel, and the chain test. Kernels of ``inner`` that are launched and certified so already are
    taken as they are. ``data_dir``: the data folder, by default that of ``inner`` where it has one, else the user's.
    """

    def __init__(self, inner: KernelSource, data_dir: Path | None = None) -> None:
        if data_dir is None and isinstance(inner, LocalKernels):
            data_dir = inner.data_dir
        self.inner, self.data_dir, self.tunes = inner, data_dir, inner.tunes
        # Of these ``inner`` had a kernel when it was asked about several.
        self._makeable: set[tuple[Gemm, str]] = set()

    def lookup(self, gemm: Gemm, device: Device) -> Kernel | None:
        """What was made of the kernel that ``inner`` has now."""
        plain = self.inner.lookup(gemm, device)
        return None if plain is None else self._kept(plain)

    def lookup_all(self, gemms: Sequence[Gemm], device: Device) -> dict[Gemm, LookupResult]:
        """What ``lookup`` says of each; ``refusal`` then asks ``inner`` about none again of which it has a kernel."""
        answers: dict[Gemm, LookupResult] = {}
        for gemm, plain in lookup_all(self.inner, gemms, device).items():
            answers[gemm] = plain
            if plain is not None and not isinstance(plain, TirgemmError):
                self._makeable.add((gemm, device.key))
                try:
                    answers[gemm] = self._kept(plain)
                except TirgemmError as error:
                    answers[gemm] = error
        return answers

    def refusal(self, gemm: Gemm, device: Device, policy: Policy) -> str | None:
        """Why none is made: the device, the problem, or why ``inner`` makes none."""
        reason = dependent_launch_refusal(device) or chain_refusal(gemm)
        if reason:
            return reason
        if (gemm, device.key) in self._makeable or self.inner.lookup(gemm, device) is not None:
            return None
        return self.inner.refusal(gemm, device, policy)

    def _make(self, preparation: Preparation, device: Device, policy: Policy, arrived: Arrived) -> None:
        """Have ``inner`` make what it has not, and rebuild and certify each kernel as it comes."""
        plains: SimpleQueue[Kernel] = SimpleQueue()
        known = lookup_all(self.inner, preparation.wanted, device)
        missing = [
            gemm
            for gemm in preparation.wanted
            if self._is_missing(gemm, known[gemm], device, policy, preparation, plains)
        ]
        made = self.inner.prepare(missing, device, policy, plains.put) if missing else None
        with ExitStack() as stack:
            if made is not None:
                stack.callback(made.cancel)
            bench: Workbench | None = None
            while not preparation.cancelled.is_set():
                ended = made is None or made.finished.is_set()
                group = _taken(plains)
                fresh = [plain for plain in group if not self._arrives_kept(plain, arrived)]
                if fresh and bench is None:
                    signer = data_folder.signer(self.data_dir)
                    bench = Workbench(device, MemoryStore(), signer, builder=dependent_launch.BUILDER)
                    stack.callback(bench.close)
                if bench is not None:
                    self._rebuild(fresh, bench, preparation, arrived)
                if ended and not group:
                    break
        if made is not None:
            preparation.failures.update(made.failures)

    def _is_missing(
        self,
        gemm: Gemm,
        known: LookupResult,
        device: Device,
        policy: Policy,
        preparation: Preparation,
        plains: SimpleQueue[Kernel],
    ) -> bool:
        """Whether ``inner`` is to make a problem's kernel; the ``known`` one that it has goes into ``plains``."""
        reason: str | None = dependent_launch_refusal(device) or chain_refusal(gemm)
        plain = None
        try:
            if not reason:
                if isinstance(known, TirgemmError):
                    raise known
                plain = known
                if plain is not None:
                    plains.put(plain)
                    if not self.tunes or plain.manifest.role != "fallback":
                        return False
                reason = self.inner.refusal(gemm, device, policy)
        except TirgemmError as error:
            reason = str(error)
        if reason and plain is None:
            preparation.fail([gemm], reason)
        return not reason

    def _arrives_kept(self, plain: Kernel, arrived: Arrived) -> bool:
        """Whether there is a kernel that was made of this one before; then it has arrived."""
        kernel = self._kept(plain)
        if kernel is not None:
            arrived(kernel)
        return kernel is not None

    def _rebuild(self, plains: Sequence[Kernel], bench: Workbench, preparation: Preparation, arrived: Arrived) -> None:
        """Build side by side, then certify one after the other."""
        for plain in plains:
            for member in plain.manifest.kernels:
                bench.build_ahead(member.gemm, member.config)
        for plain in plains:
            if preparation.cancelled.is_set():
                return
            try:
                arrived(self._made(plain, bench, preparation.cancelled))
            except Cancelled:
                return
            except TirgemmError as error:
                asked = [gemm for gemm in preparation.wanted if _serves(plain.gemm, gemm)]
                preparation.fail(asked, f"its kernel for dependent launches: {error}")

    def _made(self, plain: Kernel, bench: Workbench, cancel: Flag) -> Kernel:
        """Rebuild, certify and keep. Raises what ends it."""
        regime: Regime = plain.manifest.regime or "sustained"
        certified = [_certified(member, bench, regime, cancel) for member in plain.manifest.kernels]
        if plain.gemm.invariant:
            before = [Certificate.from_json(each.certificate) for each in plain.manifest.kernels if each.certificate]
            if len({row_signature(each) for each in [*before, *(each.certificate for each in certified)]}) > 1:
                raise VerificationFailed(f"{plain.gemm} is invariant, and rebuilt it gives a row other bits")
        package = _package(plain, certified, bench, regime)
        kernel = load(package, trust=Trust.of_signer(bench.signer))
        if fault := _fault(kernel):
            raise VerificationFailed(fault)
        try:
            replace(self._file(plain), package)
        except OSError as error:
            LOG.warning("the kernel of %s for dependent launches is not kept: %s", plain.gemm, error)
        return kernel

    def _kept(self, plain: Kernel) -> Kernel | None:
        """What was made of a kernel before."""
        if not _fault(plain):
            return plain
        file = self._file(plain)
        if not file.is_file():
            return None
        try:
            kernel = load(file, trust=Trust.of_signer(data_folder.signer(self.data_dir)))
        except ArtifactError:
            return None  # signed with another key, or damaged
        return kernel if kernel.gemm == plain.gemm and not _fault(kernel) else None

    def _file(self, plain: Kernel) -> Path:
        return data_folder.dependent_file(self.data_dir, plain.kernel_sha256)


def _fault(kernel: Kernel) -> str:
    """Why a kernel is no evidence of dependent launches; empty where it is."""
    if not all(member.dependent_launch for member in kernel.manifest.kernels):
        return "its calls are not all launched dependently"
    return kernel.manifest.certificate_fault


def _serves(one: Gemm, wanted: Gemm) -> bool:
    """Whether a kernel of ``one`` serves all of another problem, which differs in m and alignment at most."""
    within = one.m_min <= wanted.m_min and wanted.m_max <= one.m_max and one.align <= wanted.align
    return within and wanted.with_(m=one.m, align=one.align) == one


def _taken(plains: SimpleQueue[Kernel]) -> list[Kernel]:
    """All that has come, waiting a little for the first."""
    try:
        group = [plains.get(timeout=_POLL_S)]
    except Empty:
        return []
    while not plains.empty():
        group.append(plains.get())
    return group


def _certified(made_of: Manifest, bench: Workbench, regime: Regime, cancel: Flag) -> _Certified:
    """A kernel, built and certified as it will be launched. Raises what ends it."""
    evaluator = Evaluator(made_of.gemm, bench, regime, seed=0, cancel=cancel)
    binary = evaluator.built(bench.build(made_of.gemm, made_of.config))
    certificate = evaluator.certify(bench.package(made_of.gemm, made_of.config, binary))
    return _Certified(made_of, binary, certificate)


def _package(plain: Kernel, certified: Sequence[_Certified], bench: Workbench, regime: Regime) -> bytes:
    """The signed artifact, of a set as its members follow one another."""
    role: Role = "tuned" if plain.manifest.role == "tuned" else "fallback"
    why = SelectionReason(f"the config of kernel {plain.kernel_sha256[:16]}, built for dependent launches")
    timings = Timings({each: NotTimed(UNTIMED) for each in REGIMES}, selection=why)
    members = [
        SetMember(each.made_of.gemm, each.made_of.config, each.binary, each.certificate.to_json(), timings)
        for each in certified
    ]
    if plain.manifest.members:
        return bench.package_set(plain.gemm, members, timings, (regime, role))
    (only,) = members
    return bench.package(
        only.gemm, only.config, only.binary, certificate=only.certificate, timings=timings, selected=(regime, role)
    )
