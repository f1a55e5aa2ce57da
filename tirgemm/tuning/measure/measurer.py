"""``Measurer``: verification and timing of packaged kernels, in a child process that may crash or hang without harm."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tirgemm.artifact import Trust
from tirgemm.artifact.closing import Closing
from tirgemm.device import Device
from tirgemm.errors import AlreadyRunning, Cancelled, DeviceUnavailable, DoesNotFit, InvalidRequest, MeasurementFailed
from tirgemm.gemm import Regime, regime_named
from tirgemm.tuning.measure.baselines.cutlass_build import PACKAGE as CUTLASS
from tirgemm.tuning.measure.conditions import timed_cache_bytes
from tirgemm.tuning.measure.errors import MeasurementCrashed, MeasurementTimedOut
from tirgemm.tuning.measure.requests import Open, RaceOptions, ReadBandwidth, Request, Time, Verify
from tirgemm.tuning.process.child_rpc import START_S, ChildDied, ChildProcess, ChildTimedOut
from tirgemm.tuning.process.interrupts import Delayed, Flag
from tirgemm.tuning.process.locks import DeviceLock, OnWait, default_lock_dir
from tirgemm.tuning.process.spans import spanned
from tirgemm.tuning.records import SampleSet
from tirgemm.tuning.verify.result import Verification

if TYPE_CHECKING:
    Answer = tuple[Verification | None, SampleSet | None]

T = TypeVar("T")
BASELINES = {
    "cpu": ("numpy_f32", "torch.matmul"),
    "cuda": (
        *("torch.matmul", "torch.compile", "cublaslt_best", "cublaslt_unsplit"),
        *("triton", "triton_invariant", "cutlass"),
    ),
}
# Those that choose among candidates of their own first: a fraction of a second or more, which the tuner does not spend.
SLOW_BASELINES = frozenset(BASELINES["cuda"]) - {"torch.matmul"}
# Those whose library the measuring process imports when they are first asked for, in seconds.
LATE_BASELINES = frozenset({"torch.matmul"})
_TRITON = ("torch", "triton")
_PACKAGES = {
    "torch.matmul": ("torch",),
    "cutlass": (CUTLASS,),
    **dict.fromkeys(("torch.compile", "triton", "triton_invariant"), _TRITON),
}
# For opening a device: a killed kernel may hold it for a while yet.
_OPEN_S = 60.0
SEARCH_SAMPLES = 5
# On a GPU for a candidate and its yardstick together.
SEARCH_SECONDS = {"cpu": 0.1, "cuda": 0.05}


class MeasuringProcess(Protocol):
    """A measuring process, as who asks it sees it: ``ChildProcess``, or one of another host."""

    busy_s: float

    @property
    def alive(self) -> bool: ...

    def request(
        self, message: Any, *, timeout_s: float, cancel: Flag | None = None, on_wait: OnWait | None = None
    ) -> Any:
        """As ``ChildProcess.request``."""
        ...

    def kill(self) -> None: ...


StartMeasuring = Callable[[Device, Path], MeasuringProcess]


def measuring_child(device: Device, lock_dir: Path) -> MeasuringProcess:
    """The measuring process of a device of this host, as a child of this process; on a GPU it makes its context at
    once."""
    ahead = [json.dumps(device.to_json()), str(lock_dir)] if device.kind == "cuda" else []
    # A baseline is to use what the device has, as a kernel does, whatever this process may (Ray sets the variable).
    threads = {"OMP_NUM_THREADS": None, "OPENBLAS_NUM_THREADS": str(device.units) if device.kind == "cpu" else None}
    return ChildProcess("tirgemm.tuning.measure.child", ahead, threads)


class _MeasuringKilled(DoesNotFit):
    """The measuring process was killed by SIGKILL, as where a machine is short of memory; no kernel does that."""


class Measurer(Closing):
    """The one measuring process of a device. Packages are loaded there as users load them, trusting ``trust``.

    The process holds the device's host-wide lock while it works on a request, does not import TVM, and dies with this
    process. One that crashes, gives no sign of life for ``timeout_s`` or cannot open the device is replaced at the next
    request. Methods may be called from any thread; requests are served one after the other. Where ``cancel`` is set
    during a call, and for ``grace_s`` longer, the process is killed and Cancelled is raised within a tenth of a second;
    what ends before that is answered. ``on_wait`` is told what a call waits for (the device's lock), and "" when it
    goes on and at its end. ``start`` starts the process, of a device and with the folder of its lock.
    """

    def __init__(
        self,
        device: Device,
        trust: Trust | str,
        *,
        lock_dir: Path | None = None,
        timeout_s: float = 60.0,
        on_wait: OnWait | None = None,
        start: StartMeasuring = measuring_child,
        grace_s: float = 0.0,
    ) -> None:
        self.device = device
        self.trust = Trust.of(trust) if isinstance(trust, str) else trust
        self.lock_dir = lock_dir or default_lock_dir()
        self.timeout_s = timeout_s
        self._on_wait = on_wait
        self._start = start
        self.grace_s = grace_s
        self._child: MeasuringProcess | None = None
        self._closed = False
        self._one_at_a_time = threading.Lock()
        self.seconds = 0.0
        """For how long it has measured or verified, all in all, while it held the device's lock."""
        self.unusable = False
        """Whether the device could not be opened when it was last asked."""
        # Refuses a device that is only named and, of a process of this host, a folder of locks that cannot be used: now
        # rather than at the first request.
        lock = DeviceLock(device.lock_key, self.lock_dir)
        if start is measuring_child:
            lock.make_files()
        if device.kind == "cpu":
            timed_cache_bytes()  # as it refuses a variable that cannot be

    def baselines(self) -> tuple[str, ...]:
        """The opponents that can be measured on this device, by the packages that are installed."""
        return tuple(name for name in BASELINES[self.device.kind] if all(map(_installed, _PACKAGES.get(name, ()))))

    def warm(self) -> None:
        """Start the process and its imports in the background, where there is none or it is dead; returns at once."""
        if self._one_at_a_time.acquire(blocking=False):
            try:
                # What keeps a process from starting the first request meets again, and says.
                with contextlib.suppress(OSError, RuntimeError, Cancelled):
                    if not self._closed:
                        self._started()
            finally:
                self._one_at_a_time.release()

    def verify(
        self,
        package: bytes,
        *,
        level: str = "candidate",
        seed: int = 0,
        cancel: Flag | None = None,
    ) -> Verification:
        """Whether the kernel is right. Raises MeasurementTimedOut, MeasurementCrashed, DoesNotFit, ArtifactError,
        Cancelled."""
        return _answered(self._ask(self._request(package, Verify(level, seed), None), cancel)[0])

    def time(
        self,
        package: bytes,
        options: RaceOptions,
        *,
        against: Mapping[str, bytes] | None = None,
        baselines: tuple[str, ...] = (),
        cancel: Flag | None = None,
    ) -> SampleSet:
        """Samples in microseconds a call; ``against`` and ``baselines`` ran interleaved with it and are in
        ``.baselines``.

        One run, which any of them may end; ``Race.run`` is the same for contenders of which each may fail for itself.

        A baseline that cannot run this problem is left out; ``conditions["absent"]`` says why. Of one that chose among
        candidates, ``conditions`` has under its name which it took and what each was timed at. Problems whose m is a
        range are timed at its high end, or at the options' ``m``. Raises as ``verify``, and InvalidRequest for an
        unknown regime or baseline.
        """
        request = Time(options, dict(against or {}), baselines)
        return _answered(self._ask(self._request(package, None, request), cancel)[1])

    def evaluate(
        self,
        package: bytes,
        regime: Regime,
        seed: int = 0,
        *,
        against: Mapping[str, bytes] | None = None,
        cancel: Flag | None = None,
    ) -> tuple[Verification, SampleSet | None]:
        """Verify and, where it is right, time a candidate of the search, in one round trip; ``against`` ran interleaved
        with it, on the same operands. Raises as ``time``."""
        seconds = SEARCH_SECONDS[self.device.kind]
        options = RaceOptions(regime, SEARCH_SAMPLES, seconds, "search", seed, shared=bool(against))
        request = Time(options, dict(against or {}))
        verification, samples = self._ask(self._request(package, Verify("candidate", seed), request), cancel)
        return _answered(verification), samples

    def stream(self) -> SampleSet:
        """Microseconds of reading ``conditions["bytes"]`` bytes of the device's memory, once each: its read
        bandwidth."""
        return _answered(self._ask(ReadBandwidth(self.device, self.lock_dir), None)[1])

    def require_usable(self, cancel: Flag | None = None) -> None:
        """Open the device in the measuring process, in a new one where the last has died or could not. Raises
        DeviceUnavailable where it cannot be opened: then no failure before this says anything of a kernel. Raises
        Cancelled and AlreadyRunning, too."""
        try:
            self._ask(Open(self.device, self.lock_dir), cancel, max(self.timeout_s, _OPEN_S))
        except (MeasurementFailed, DoesNotFit) as error:
            raise DeviceUnavailable(f"device {self.device.name} cannot be opened any more: {error}") from error
        except (OSError, RuntimeError) as error:  # no memory, process or descriptor for it, say
            raise DeviceUnavailable(f"the measuring process of {self.device.name} does not start: {error}") from error

    def close(self) -> None:
        """Stop the measuring process."""
        with self._one_at_a_time:
            self._closed = True
            if self._child is not None:
                self._child.kill()
                self._child = None

    def _started(self) -> MeasuringProcess:
        """The process, a new one where there is none or it is dead; the caller holds ``_one_at_a_time``."""
        if self._child is None or not self._child.alive:
            if self._child is not None:
                self._child.kill()
            self._child = self._start(self.device, self.lock_dir)
        return self._child

    def _request(self, package: bytes, verify: Verify | None, time: Time | None) -> Request:
        if time is not None:
            known = BASELINES[self.device.kind]
            unknown = [name for name in time.baselines if name not in known]
            regime_named(time.options.regime)
            if unknown:
                raise InvalidRequest(
                    f"baseline {unknown[0]!r} is unknown on {self.device.kind}; it must be one of {', '.join(known)}"
                )
            if time.options.min_samples < 1:
                raise InvalidRequest(f"min_samples is {time.options.min_samples}; at least one sample is taken")
        return Request(self.device, self.trust, self.lock_dir, package, verify, time)

    @spanned("measure")
    def _ask(
        self, request: Request | ReadBandwidth | Open, cancel: Flag | None, timeout_s: float | None = None
    ) -> Answer:
        try:
            return self._ask_once(request, cancel, timeout_s or self.timeout_s)
        except _MeasuringKilled:  # the machine may have more memory by now
            return self._ask_once(request, cancel, timeout_s or self.timeout_s)

    def _ask_once(self, request: Request | ReadBandwidth | Open, cancel: Flag | None, timeout_s: float) -> Answer:
        with self._one_at_a_time:
            if cancel is not None:
                if cancel.is_set():
                    raise Cancelled("cancelled before the measuring process was asked")
                cancel = Delayed(cancel, self.grace_s)
            child = self._started()
            before = child.busy_s
            try:
                answer: Answer = child.request(request, timeout_s=timeout_s, cancel=cancel, on_wait=self._on_wait)
            except DeviceUnavailable:
                self.unusable = True
                child.kill()  # a process may keep what the driver answered when it was first asked
                raise
            except ChildDied as error:
                reason = error.output.splitlines()[-1:]  # of a traceback the line that says what happened
                words = f": {reason[0]}" if reason else ""
                words = f"the measuring process died: {error.cause}{words}"
                if error.killed:
                    words = f"{words}: where memory is short end what else uses it, or take a smaller problem"
                    raise _MeasuringKilled(words) from error
                raise MeasurementCrashed(words) from error
            except ChildTimedOut as error:
                if not error.started:
                    raise AlreadyRunning(
                        f"device {self.device.name} did not become free within {START_S:g} s: another process measures "
                        f"on it (lock folder {self.lock_dir})"
                    ) from error
                raise MeasurementTimedOut(
                    f"the kernel gave no sign of life for {timeout_s:g} s on {self.device.name} and was stopped"
                ) from error
            finally:
                self.seconds += child.busy_s - before
                if self._on_wait is not None:
                    self._on_wait("")
            self.unusable = False
        return answer


def _answered(part: T | None) -> T:
    if part is None:
        raise MeasurementFailed("the measuring process answered without what it was asked for")
    return part


def _installed(package: str) -> bool:
    """Whether it is there, also while this process keeps it out (``without_torch``)."""
    return PathFinder.find_spec(package) is not None
