"""Measurement on the CPU with packaged shared objects written by hand: right, wrong in five ways, crashing, hanging.

The kernels are C, so that each goes wrong exactly where it is meant to; what is tuned goes through the same loader.
"""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.waiting import PATIENCE_S, until
from tirgemm import artifact
from tirgemm.artifact import Contents, Signer, Trust, native, pack, read
from tirgemm.config import Config
from tirgemm.detect import device as detect_device
from tirgemm.device import Device
from tirgemm.errors import Cancelled, InvalidDevice, InvalidRequest, UntrustedArtifact
from tirgemm.expr import M, ceildiv
from tirgemm.gemm import Gemm, Regime
from tirgemm.hardware import named_device
from tirgemm.launch import KernelLaunch, Launch, Pointer, Scalar, Size, scalar_args, tensor_args
from tirgemm.timings import Timings
from tirgemm.tuning.measure import MeasurementCrashed, MeasurementTimedOut, Measurer, child
from tirgemm.tuning.measure.conditions import CACHE_VARIABLE
from tirgemm.tuning.measure.host_session import HostSession
from tirgemm.tuning.measure.measurer import measuring_child
from tirgemm.tuning.measure.requests import RaceOptions, Time
from tirgemm.tuning.process.child_rpc import ChildProcess
from tirgemm.tuning.process.locks import DeviceLock
from verification.service.processes import alive

# d = alpha a b + beta c in fp32, 16 rows a block; MUTANT says what is wrong with it.
SOURCE = r"""
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
typedef struct { int32_t type, pad; union { void* p; double f; int64_t i; } v; } Any;
enum { RIGHT, LAST_K, EDGE, BETA, SWAPPED, UNWRITTEN, SEGFAULT, HANG, SLOW, EXIT };
int __tvm_ffi_toy(void* self, const Any* args, int32_t count, Any* ret) {
  const float *a = args[0].v.p, *b = args[1].v.p, *c = args[2].v.p;
  float* d = args[3].v.p;
  float alpha = (float)args[4].v.f, beta = (float)args[5].v.f;
  int m = (int)args[6].v.i, block = (int)args[7].v.i, low = 16 * block, high = low + 16 < m ? low + 16 : m;
  if (MUTANT == SEGFAULT) *(volatile int*)8 = 1;
  if (MUTANT == HANG) for (;;) pause();
  if (MUTANT == SLOW && block == 0) usleep(3000);
  if (MUTANT == EXIT) _exit(3);
  if (MUTANT == EDGE && high == m && m % 16) high -= 1;
  for (int i = low; i < high; ++i)
    for (int j = 0; j < N; ++j) {
      int from = MUTANT == SWAPPED && j == 1 ? N - 1 : MUTANT == SWAPPED && j == N - 1 ? 1 : j;
      float sum = 0;
      for (int k = 0; k < K - (MUTANT == LAST_K); ++k) sum += a[i * K + k] * b[k * N + from];
      if (MUTANT == UNWRITTEN && i == m - 1 && j == N / 2) continue;
      d[i * N + j] = alpha * sum + (MUTANT == BETA ? 0 : beta * c[i * N + j]);
    }
  return 0;
}
"""
MUTANTS = ["RIGHT", "LAST_K", "EDGE", "BETA", "SWAPPED", "UNWRITTEN", "SEGFAULT", "HANG", "SLOW", "EXIT"]
GEMM = Gemm.parse("3..53x31x67:f32:nn:alpha:beta")
DEVICE = detect_device("cpu")
SIGNER = Signer.generate()
TRUST = Trust.of(SIGNER.public)

Packages = Callable[[str], bytes]


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    """A function from a mutant's name to its signed package."""
    folder = tmp_path_factory.mktemp("kernels")
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "the tests need a C compiler"
    built: dict[str, bytes] = {}

    def build(name: str) -> bytes:
        if name not in built:
            source, target = folder / f"{name}.c", folder / f"{name}.so"
            source.write_text(SOURCE)
            sizes = [f"-DMUTANT={MUTANTS.index(name)}", f"-DN={GEMM.n}", f"-DK={GEMM.k}"]
            subprocess.run([compiler, "-O1", "-shared", "-fPIC", *sizes, "-o", target, source], check=True)
            built[name] = pack_toy(target.read_bytes())
        return built[name]

    return build


def pack_toy(binary: bytes, signer: Signer = SIGNER) -> bytes:
    params: tuple[Any, ...] = (*(Pointer(name) for name in "abcd"), Scalar("alpha"), Scalar("beta"), Size(M))
    launch = Launch(tensor_args(GEMM), scalar_args(GEMM), (KernelLaunch("toy", params, (ceildiv(M, 16), 1, 1)),))
    return pack(
        Contents(
            gemm=GEMM,
            config=Config("toy", (("rows", 16),)),
            device=DEVICE,
            launch=launch,
            binary=binary,
            binary_format="so",
            sources={"kernel.c": SOURCE},
            flags=(),
            certificate=None,
            timings=Timings(),
        ),
        signer,
    )


@pytest.fixture(scope="module")
def locks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("locks")


@pytest.fixture(scope="module")
def measurer(locks: Path) -> Iterator[Measurer]:
    with Measurer(DEVICE, TRUST, lock_dir=locks, timeout_s=PATIENCE_S) as measurer:
        yield measurer


def child_of(measurer: Measurer) -> int:
    assert isinstance(measurer._child, ChildProcess)
    return measurer._child._process.pid


def test_a_right_kernel_is_verified_and_timed_in_one_round_trip(measurer: Measurer, package: Packages) -> None:
    verification, samples = measurer.evaluate(package("RIGHT"), "sustained", seed=5)
    assert verification.passed, verification.tests
    assert verification.kernel_sha256 == read(package("RIGHT"), TRUST).manifest.kernel_sha256
    assert verification.reference == "numpy fp64"
    assert {t["m"] for t in verification.tests} >= {3, 53}
    assert samples is not None
    assert samples.reason == "search"
    assert len(samples.samples_us) >= 5
    assert 0 < samples.median_us < 1e5
    assert samples.conditions["regime"] == "sustained"
    assert samples.conditions["fingerprint"] == DEVICE.fingerprint
    assert samples.conditions["rotated_bytes"] >= 1024 * GEMM.nbytes
    assert {"at", "loadavg", "swapped", "m"} <= set(samples.conditions)


def test_a_candidate_is_timed_beside_another_kernel_on_the_same_operands(measurer: Measurer, package: Packages) -> None:
    against = {"yardstick": package("SLOW")}
    verification, samples = measurer.evaluate(package("RIGHT"), "sustained", seed=5, against=against)
    assert verification.passed
    assert samples is not None
    assert samples.baselines.keys() == {"yardstick"}
    assert len(samples.baselines["yardstick"]) >= 5
    assert samples.conditions["shared"]


@pytest.mark.parametrize("mutant", ["LAST_K", "EDGE", "BETA", "SWAPPED", "UNWRITTEN"])
def test_a_wrong_packaged_kernel_is_caught_and_not_timed(measurer: Measurer, package: Packages, mutant: str) -> None:
    verification, samples = measurer.evaluate(package(mutant), "sustained")
    assert not verification.passed
    assert verification.error > 1
    assert samples is None
    assert "wrong" in verification.tests[-1]["message"]
    assert not measurer.verify(package(mutant), level="certificate", seed=11).passed


@pytest.mark.parametrize(("mutant", "words"), [("SEGFAULT", r"signal 11 \(SIGSEGV\)"), ("EXIT", "exit status 3")])
def test_a_crash_is_reported_and_the_process_replaced(
    measurer: Measurer, package: Packages, mutant: str, words: str
) -> None:
    measurer.verify(package("RIGHT"))
    before = child_of(measurer)
    with pytest.raises(MeasurementCrashed, match=words):
        measurer.evaluate(package(mutant), "isolated")
    measurer.require_usable()
    assert child_of(measurer) != before
    assert measurer.verify(package("RIGHT")).passed


@pytest.mark.timing
def test_a_hang_is_killed_after_the_timeout_and_the_lock_is_free(package: Packages, tmp_path: Path) -> None:
    with Measurer(DEVICE, SIGNER.public, lock_dir=tmp_path, timeout_s=20.0) as measurer:
        measurer.verify(package("RIGHT"))
        measurer.timeout_s = 1.0
        started = time.monotonic()
        with pytest.raises(MeasurementTimedOut, match="no sign of life for 1 s"):
            measurer.verify(package("HANG"))
        assert time.monotonic() - started < 4
        DeviceLock("cpu", tmp_path).acquire(timeout_s=1)


@pytest.mark.timing
def test_cancelling_kills_promptly_and_the_next_call_works(measurer: Measurer, package: Packages) -> None:
    measurer.verify(package("RIGHT"))
    cancel = threading.Event()
    threading.Timer(0.3, cancel.set).start()
    started = time.monotonic()
    with pytest.raises(Cancelled):
        measurer.evaluate(package("HANG"), "sustained", cancel=cancel)
    assert time.monotonic() - started < 0.8
    assert measurer.verify(package("RIGHT")).passed


def test_a_package_of_a_stranger_is_refused(measurer: Measurer, package: Packages) -> None:
    stranger = pack_toy(read(package("RIGHT"), TRUST).binary, Signer.generate())
    with pytest.raises(UntrustedArtifact):
        measurer.evaluate(stranger, "sustained")


@pytest.mark.timing
@pytest.mark.parametrize("regime", ["sustained", "isolated"])
def test_a_kernel_that_waits_is_seen_to_be_slower_beside_opponents(
    measurer: Measurer, package: Packages, regime: Regime
) -> None:
    options = RaceOptions(regime, 6, 0.05, swap=True)
    actual = measurer.time(package("SLOW"), options, against={"default": package("RIGHT")}, baselines=("numpy_f32",))
    assert actual.median_us > 3000
    assert set(actual.baselines) == {"default", "numpy_f32"}
    assert all(len(samples) >= 6 for samples in (actual.samples_us, *actual.baselines.values()))
    assert statistics.median(actual.baselines["default"]) < 2500
    assert actual.conditions["swapped"] is True
    assert actual.conditions["regime"] == regime


@pytest.mark.timing
def test_contenders_may_share_their_operands(measurer: Measurer, package: Packages) -> None:
    against = {"default": package("RIGHT")}
    own = measurer.time(package("SLOW"), RaceOptions("sustained", 3, 0.01), against=against)
    shared = measurer.time(package("SLOW"), RaceOptions("sustained", 3, 0.01, shared=True), against=against)
    assert (own.conditions["shared"], shared.conditions["shared"]) == (False, True)
    assert shared.median_us > 3000 > statistics.median(shared.baselines["default"])


def test_reading_alone_has_a_bandwidth(measurer: Measurer) -> None:
    actual = measurer.stream()
    assert len(actual.samples_us) == 20
    assert 0.1 < actual.conditions["bytes"] / actual.median_us / 1e3 < 10_000, "GB/s"


@pytest.mark.also_torch
def test_what_cannot_be_asked_is_refused(measurer: Measurer, package: Packages) -> None:
    right = package("RIGHT")
    with pytest.raises(InvalidRequest, match="regime is 'warm'"):
        measurer.time(right, RaceOptions(cast(Any, "warm")))
    with pytest.raises(InvalidRequest, match="'cublas' is unknown on cpu; it must be one of numpy_f32"):
        measurer.time(right, RaceOptions("sustained"), baselines=("cublas",))
    with pytest.raises(InvalidRequest, match="min_samples is 0"):
        measurer.time(right, RaceOptions("sustained", min_samples=0))
    with pytest.raises(InvalidDevice, match="only named"):
        Measurer(named_device("sm_80"), TRUST)
    torch = ("torch.matmul",) if importlib.util.find_spec("torch") else ()
    assert measurer.baselines() == ("numpy_f32", *torch)


def test_two_measurers_take_turns(package: Packages, measurer: Measurer, locks: Path) -> None:
    with DeviceLock("cpu", locks, shared=True):  # a builder
        waiting = threading.Thread(target=measurer.verify, args=(package("RIGHT"),))
        waiting.start()
        time.sleep(0.5)
        assert waiting.is_alive()
    waiting.join(timeout=PATIENCE_S)
    assert not waiting.is_alive()


PROGRAM = """
import sys, time
from pathlib import Path
from tirgemm.detect import device
from tirgemm.tuning.measure import Measurer
measurer = Measurer(device("cpu"), sys.argv[1], lock_dir=Path(sys.argv[3]))
measurer.verify(Path(sys.argv[2]).read_bytes())
print(measurer._child._process.pid, flush=True)
time.sleep(60)
"""


def test_the_measuring_process_dies_with_its_killed_parent(package: Packages, tmp_path: Path) -> None:
    path = tmp_path / "right.tirgemm"
    path.write_bytes(package("RIGHT"))
    command = [sys.executable, "-c", PROGRAM, SIGNER.public, str(path), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    until(lambda: not alive(child))


@pytest.mark.also_torch
def test_the_measuring_process_loads_neither_tvm_nor_pytorch(measurer: Measurer, package: Packages) -> None:
    measurer.evaluate(package("RIGHT"), "isolated")
    maps = Path(f"/proc/{child_of(measurer)}/maps").read_text()
    libraries = {Path(line.split()[-1]).name for line in maps.splitlines() if ".so" in line}
    assert any("tvm_ffi" in name for name in libraries)
    assert not [
        name for name in libraries if name.startswith(("libtvm.", "libtvm_compiler", "libtvm_runtime", "libtorch"))
    ]


def test_a_warm_measurer_has_its_process_before_the_first_request(package: Packages, tmp_path: Path) -> None:
    with Measurer(DEVICE, TRUST, lock_dir=tmp_path, timeout_s=PATIENCE_S) as cold:
        cold.warm()
        begun = child_of(cold)
        cold.warm()
        assert cold.verify(package("RIGHT")).passed
        assert child_of(cold) == begun
    cold.warm()
    assert cold._child is None, "nothing is started once it is closed"


def test_a_process_that_does_not_start_is_no_matter_until_it_is_needed(package: Packages, tmp_path: Path) -> None:
    def start(_device: Device, _lock_dir: Path) -> Any:
        raise BlockingIOError(errno.EAGAIN, "no process is left")

    with Measurer(DEVICE, TRUST, lock_dir=tmp_path, start=start) as measurer:
        measurer.warm()
        with pytest.raises(BlockingIOError):
            measurer.verify(package("RIGHT"))


def test_a_session_is_made_ahead_unless_the_device_is_in_use(tmp_path: Path) -> None:
    made = child._Process(cast(Any, SimpleNamespace(alive=lambda: None)))
    lock = DeviceLock(DEVICE.lock_key, tmp_path)

    def ahead() -> list[Any]:
        return [] if made._session is None else [made._session]

    with lock:
        made.open_ahead(DEVICE, tmp_path)
        assert not ahead()
    made.open_ahead(Device.from_json(json.loads(json.dumps(DEVICE.to_json()))), tmp_path)
    assert len(ahead()) == 1
    (session,) = ahead()
    assert made._open(DEVICE) is session, "the first request finds it"
    lock.acquire(timeout_s=0)  # which was given back
    lock.release()


def test_a_kernel_is_measured_on_all_threads_whatever_the_environment_says(
    package: Packages, monkeypatch: pytest.MonkeyPatch
) -> None:
    caps: list[int] = []
    load = native.load

    def noted(binaries: Sequence[bytes], kernels: Sequence[str], threads: int = 0) -> native.LoadedFunctions:
        caps.append(threads)
        return load(binaries, kernels, threads)

    monkeypatch.setattr(native, "load", noted)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    child._Process(cast("Any", None))._load(package("RIGHT"), TRUST)
    artifact.load(package("RIGHT"), trust=TRUST)
    assert caps == [0, -1], "no cap, and the environment's"


def test_baselines_are_measured_on_all_threads_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    process = measuring_child(DEVICE.with_(units=3), tmp_path)
    assert isinstance(process, ChildProcess)
    try:
        until(lambda: b"measure.child" in Path(f"/proc/{process._process.pid}/cmdline").read_bytes())
        environment = Path(f"/proc/{process._process.pid}/environ").read_bytes().split(b"\0")
    finally:
        process.kill()
    assert b"OPENBLAS_NUM_THREADS=3" in environment
    assert not [each for each in environment if each.startswith(b"OMP_NUM_THREADS=")]


def test_evicting_the_cache_takes_no_more_than_an_eighth_of_the_memory(
    package: Packages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, "10")
    kernel = artifact.load(package("RIGHT"), trust=TRUST)
    isolated = Time(RaceOptions("isolated", min_samples=1, budget_s=0.0))
    least = 4 * len(os.sched_getaffinity(0))  # what the processors' own caches take
    for memory, evicted, streamed in ((8192, 20, 40), (120, 15, 15)):
        session = HostSession(DEVICE.with_(memory_bytes=memory << 20), lambda: None)
        assert session.time(kernel, {}, isolated).conditions["evicted_bytes"] == max(evicted, least) << 20
        assert session.stream().conditions["bytes"] == max(streamed, least) << 20
