"""A GPU that is lost during a run: no row says anything of the kernels that failed for it."""

from __future__ import annotations

import time
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tirgemm.artifact import Signer, Trust
from tirgemm.errors import BuildFailed, DeviceUnavailable, TirgemmError
from tirgemm.families import family_named
from tirgemm.hardware import named_device
from tirgemm.tuning.driver import cuda
from tirgemm.tuning.measure import MeasurementCrashed, MeasurementTimedOut, Measurer
from tirgemm.tuning.process.child_rpc import ChildDied, ChildTimedOut
from verification import alterations, mutants, sanitize, sanitizer, verify_family
from verification.cases import random_cases
from verification.evidence import EvidenceFile

H200 = named_device("sm_90a")
CASE = random_cases(family_named("mma"), H200, 1, seed=5)[0]
LOST = DeviceUnavailable("GPU GPU-1 is not visible to the measuring process, which sees []")
CRASH = MeasurementCrashed("the measuring process died: exit status 1: CUDA_ERROR_UNKNOWN (999)")
BEFORE_ANY_CALL = "========= Error: Target application terminated before first instrumented API call\n"
RIGHT = "== begin k\n== end k right\n"
SUMMARY = "========= ERROR SUMMARY: 0 errors\n"


class LostOrNot:
    """A measurer whose verifications fail, on a device that can be opened or, with ``lost``, no more."""

    def __init__(self, failure: TirgemmError, lost: DeviceUnavailable | None) -> None:
        self.failure, self.lost = failure, lost

    def verify(self, *_: object, **__: object) -> None:
        raise self.failure

    def require_usable(self) -> None:
        if self.lost is not None:
            raise self.lost

    def close(self) -> None:
        pass


class Bench:
    """Builds at once; packages that nobody reads."""

    device = SimpleNamespace(present=True, uuid="GPU-1")
    signer = Signer.generate()

    def __init__(self, measurer: LostOrNot) -> None:
        self.measurer = measurer

    def build(self, *_: object) -> Future[Any]:
        made: Future[Any] = Future()
        resources = {"serialised": 0, "spill_bytes": 0, "registers": 1}
        made.set_result(SimpleNamespace(resources=resources, data=object(), source_sha256="d" * 64))
        return made

    def package(self, *_: object) -> bytes:
        return b""


def jobs(count: int) -> list[mutants.MutantRun]:
    return [mutants.MutantRun(CASE, alterations.Mutant(f"drop:{i}", "a barrier", "here")) for i in range(count)]


def file_of(folder: Path, kind: str) -> EvidenceFile:
    return EvidenceFile(folder / f"mma.{kind}.json.gz", kind, "mma", H200, commit="abc")


def run_mutants(monkeypatch: pytest.MonkeyPatch, measurer: LostOrNot, evidence: EvidenceFile) -> None:
    monkeypatch.setattr(mutants, "Measurer", lambda *_, **__: measurer)
    bench = cast(Any, Bench(measurer))
    mutants._tested(bench, jobs(20), evidence, 1, time.monotonic() + 300)


@pytest.mark.parametrize("failure", [LOST, CRASH, MeasurementTimedOut("the kernel gave no sign of life for 10 s")])
def test_no_mutant_is_caught_by_a_device_that_is_lost(
    failure: TirgemmError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = file_of(tmp_path, "mutants")
    evidence.add("known", {"status": "hang"})
    with pytest.raises(DeviceUnavailable, match="GPU-1"), evidence.saved():
        run_mutants(monkeypatch, LostOrNot(failure, LOST), evidence)
    assert set(evidence.rows) == set(file_of(tmp_path, "mutants").rows) == {"known"}


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (CRASH, "crash"),
        (MeasurementCrashed("the kernel does not run: CUDA_ERROR_LAUNCH_FAILED"), "hang"),
        (MeasurementTimedOut("the kernel gave no sign of life for 10 s"), "hang"),
    ],
)
def test_a_mutant_that_fails_on_a_device_that_still_opens_is_caught(
    failure: TirgemmError, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = file_of(tmp_path, "mutants")
    run_mutants(monkeypatch, LostOrNot(failure, None), evidence)
    assert [row["status"] for row in evidence.rows.values()] == [status] * 20


@pytest.mark.parametrize("failure", [LOST, CRASH])
def test_a_lost_device_is_no_row_of_a_verified_case(failure: TirgemmError) -> None:
    bench = Bench(LostOrNot(failure, LOST))
    with pytest.raises(DeviceUnavailable):
        verify_family.row_of(cast(Any, bench), 0, CASE, bench.build())
    bench = Bench(LostOrNot(CRASH, None))
    row = verify_family.row_of(cast(Any, bench), 0, CASE, bench.build())
    assert (row["status"], row["message"]) == ("crashed", str(CRASH))


def test_a_device_that_cannot_be_opened_is_unavailable_after_some_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    tries, busy = 0, 2

    def call(name: str, *_: object) -> Any:
        nonlocal tries
        if name == "cuDevicePrimaryCtxRetain":
            tries += 1
            if tries <= busy:
                raise cuda.CudaError(f"{name} answers CUDA_ERROR_UNKNOWN (999)")
        return 0

    monkeypatch.setattr(cuda, "call", call)
    monkeypatch.setattr(cuda, "_ordinal", lambda _: 0)
    monkeypatch.setattr(cuda, "_flag", lambda *_: 0)
    monkeypatch.setattr(cuda, "OPEN_PAUSES_S", (0.0, 0.0))
    assert cuda.Gpu(H200.with_(uuid="GPU-1")).ordinal == 0
    tries, busy = 0, 3
    with pytest.raises(DeviceUnavailable, match=r"^GPU GPU-1 cannot be opened: .* CUDA_ERROR_UNKNOWN \(999\)$"):
        cuda.Gpu(H200.with_(uuid="GPU-1"))


@pytest.mark.parametrize("failure", [ChildDied("signal 11 (SIGSEGV)", ""), ChildTimedOut(True), LOST])
def test_a_process_that_ends_at_opening_its_device_makes_it_unavailable(failure: Exception, tmp_path: Path) -> None:
    class Dead:
        busy_s, alive = 0.0, True

        def request(self, *_: object, **__: object) -> Any:
            raise failure

        def kill(self) -> None:
            pass

    device = H200.with_(uuid="GPU-1", index=0)
    with (
        Measurer(device, Trust.of(), lock_dir=tmp_path, start=lambda *_: Dead()) as measurer,
        pytest.raises(DeviceUnavailable),
    ):
        measurer.require_usable()


# -- sanitizer -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "status"),
    [
        (BEFORE_ANY_CALL, "failed"),
        ("========= Warning: what it says before a kernel begins\n" + RIGHT + SUMMARY, "failed"),
        ("========= Error: Unable to find injection library libsanitizer-collection.so\n", "failed"),
        (RIGHT + "========= Internal Sanitizer Error: The Sanitizer encountered an error\n" + SUMMARY, "failed"),
        (RIGHT + "========= Error: process didn't terminate successfully\n" + SUMMARY, "failed"),
        ("== begin k\n========= Target application returned an error\n" + SUMMARY, "failed"),
        ("== begin k\n========= Invalid __global__ read of size 4 bytes\n" + BEFORE_ANY_CALL + SUMMARY, "found"),
    ],
)
def test_what_the_sanitizer_says_of_itself_is_a_run_that_failed(output: str, status: str) -> None:
    assert sanitizer.reports(output, ["k"])["k"].status == status


def sanitized_as(monkeypatch: pytest.MonkeyPatch, output: str, lost: DeviceUnavailable | None) -> list[str]:
    """Let the tools print ``output``, on a device that opens or is ``lost``; the GPUs that were opened to see it."""
    opened: list[str] = []

    def require_usable(uuid: str, _: str) -> None:
        opened.append(uuid)
        if lost is not None:
            raise lost

    monkeypatch.setattr(sanitizer, "program", lambda: "compute-sanitizer")
    monkeypatch.setattr(sanitizer, "help_text", lambda: "")
    monkeypatch.setattr(sanitizer, "started", lambda *_: SimpleNamespace(communicate=lambda **_: (output, None)))
    monkeypatch.setattr(sanitizer, "require_usable", require_usable)
    return opened


@pytest.mark.parametrize("output", [BEFORE_ANY_CALL, "== begin k\n========= Program hit unknown error\n" + SUMMARY])
def test_no_tool_finds_anything_on_a_device_that_is_lost(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = sanitized_as(monkeypatch, output, LOST)
    with pytest.raises(DeviceUnavailable):
        sanitizer.check("racecheck", [Path("k.tirgemm")], "key", "GPU-1", 1.0)
    assert opened == ["GPU-1"]
    assert sanitized_as(monkeypatch, RIGHT + SUMMARY, LOST) == []
    assert sanitizer.check("racecheck", [Path("k.tirgemm")], "key", "GPU-1", 1.0)["k"].status == "clean"


@pytest.mark.parametrize(
    ("output", "status"), [(BEFORE_ANY_CALL, "failed"), (RIGHT + SUMMARY, "missed"), (RIGHT, "failed")]
)
def test_a_run_that_failed_has_not_missed_what_was_planted(
    output: str, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sanitized_as(monkeypatch, output, None)
    job = sanitize.SanitizerRun("racecheck", CASE, "race")
    bench = SimpleNamespace(device=Bench.device, signer=SimpleNamespace(public="key"))
    rows = sanitize._run(cast(Any, bench), [job], {job: Path("k.tirgemm")}, time.monotonic() + 300)
    assert rows[job]["status"] == status


def test_a_failed_build_is_still_a_row() -> None:
    made: Future[Any] = Future()
    made.set_exception(BuildFailed("no such instruction"))
    row = verify_family.row_of(cast(Any, Bench(LostOrNot(LOST, LOST))), 0, CASE, made)
    assert row["status"] == "build_failed"
