"""The run that compares predictions with hardware counters, as far as it goes without a GPU."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks import check, counters
from benchmarks.counted import calls, document, ncu, profiling
from benchmarks.counted.cases import CountedCase, cases
from benchmarks.counted.document import CountedKernel
from benchmarks.counted.predictions import Prediction, predicted
from benchmarks.history import History
from tests.helpers.counter_samples import CONFLICTS, LOG, OCCUPANCY
from tests.waiting import until
from tirgemm.errors import InvalidConfig, InvalidRequest, MeasurementFailed
from tirgemm.families import family_named
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.launch import KernelLaunch, Launch
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.build.compile import build
from verification import sanitized_call, sessions

H200 = named_device("sm_90a")

# -- cases -----------------------------------------------------------------------------------------


def test_cases_are_enough_and_have_configs_of_their_families() -> None:
    assert len({case.name for case in cases()}) == len(cases()) >= document.LEAST_KERNELS
    for case in cases():
        assert case.config(H200).family == case.family


def test_case_with_a_knob_that_is_none_is_refused_by_name() -> None:
    case = CountedCase("odd", Gemm.parse("64x64x64:f16:nt"), "simt", knobs=(("blokc_m", 8),))
    with pytest.raises(InvalidConfig, match=r"case odd: simt has no knob blokc_m; it has block_m"):
        case.config(H200)
    with pytest.raises(InvalidRequest, match="rung 'top' is unknown"):
        CountedCase("odd", Gemm.parse("64x64x64:f16:nt"), "simt", "top").config(H200)


# -- the run ---------------------------------------------------------------------------------------


def kernel(name: str, *symbols: str) -> CountedKernel:
    """A kernel that looks built and predicted."""
    launch = Launch((), (), tuple(KernelLaunch(symbol, ()) for symbol in symbols))
    case = CountedCase(name, Gemm.parse("64x64x64:f16:nt"), "simt")
    binary = Binary(b"\x7fELF", "cubin", launch, {"kernel.cu": ""}, ())
    predictions = tuple(Prediction(s, {"shared_load_conflicts": 0.0, "shared_loads": 10.0}, ()) for s in symbols)
    return CountedKernel(case, {}, binary, predictions)


def test_launches_belong_to_calls_by_order() -> None:
    one, two = kernel("one", "simt_gemm_kernel"), kernel("two", "wgmma_gemm_kernel", "wgmma_reduce_kernel")
    profiling.attribute([one, two], ncu.read(LOG), "x.csv")
    assert (one.log, two.log) == ("x.csv", "x.csv")
    assert [len(k.counts) for k in (one, two)] == [1, 2]
    assert two.counts[1][OCCUPANCY] == 43.1
    rows = document.documented([one, two], {"occupancy_percent": OCCUPANCY}, {})["rows"]
    assert {row["kernel"] for row in rows} == {"one", "two/wgmma_gemm_kernel", "two/wgmma_reduce_kernel"}


def test_launch_of_another_kernel_is_an_error_by_name() -> None:
    with pytest.raises(MeasurementFailed, match="two: the profiler saw simt_gemm_kernel where wgmma_gemm_kernel"):
        profiling.attribute([kernel("two", "wgmma_gemm_kernel")], ncu.read(LOG), "x.csv")
    with pytest.raises(MeasurementFailed, match="one: the profiler saw no more launches where simt_gemm_kernel"):
        profiling.attribute([kernel("one", "simt_gemm_kernel")], [], "x.csv")


# A profiler that pretends: as ncu it runs the command, and writes its table when that has ended.
SLOW = """#!{python}
import signal, subprocess, sys
from pathlib import Path
signal.signal(signal.SIGINT, lambda *_: None)  # which its command, unlike SIG_IGN, does not inherit
arguments = sys.argv[1:]
log, metrics = (arguments[arguments.index(name) + 1] for name in ("--log-file", "--metrics"))
subprocess.call([sys.executable, "-c", "import subprocess, sys; subprocess.call(sys.argv[1:])", *arguments[-3:]])
if "{table}":
    head = f'"ID","Kernel Name","Grid Size","Block Size","{{metrics}}"'
    Path(log).write_text(head + '\\n"0","k","(1,1,1)","(1,1,1)","7"\\n')
while not "{table}":
    signal.pause()
"""
STUBBORN = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "


@pytest.mark.parametrize(("ignores", "grace"), [("", 60.0), (STUBBORN, 4.0)], ids=["interrupted", "terminated"])
def test_profiler_over_time_writes_what_it_has(
    fake_ncu: Path, monkeypatch: pytest.MonkeyPatch, ignores: str, grace: float
) -> None:
    (fake_ncu / "bin" / "ncu").write_text(SLOW.format(python=sys.executable, table="yes"))
    monkeypatch.setattr(ncu, "_GRACE_SECONDS", grace)
    begun = fake_ncu / "begun"

    def started(*arguments: Any) -> Any:
        """The process, whose time counts from when the command has printed its line."""
        process = sessions.started(*arguments)
        until(begun.exists)
        return process

    monkeypatch.setattr(ncu, "started", started)
    program = f"{ignores}print('== end k', flush=True); open({str(begun)!r}, 'w'); import time; time.sleep(300)"
    command = [sys.executable, "-c", program]
    output, launches = ncu.profile(command, [OCCUPANCY], fake_ncu / "x.csv", 1.5)
    assert [launch.metrics for launch in launches] == [{OCCUPANCY: 7.0}]
    assert output.startswith("== end k\n")
    assert output.endswith("== stopped after 2 s")


def test_profiler_that_does_not_end_is_killed(fake_ncu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fake_ncu / "bin" / "ncu").write_text(SLOW.format(python=sys.executable, table=""))
    monkeypatch.setattr(ncu, "_GRACE_SECONDS", 0.3)
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(MeasurementFailed, match=r"ncu profiled no kernel: .*== stopped after 1 s"):
        ncu.profile(command, [OCCUPANCY], fake_ncu / "x.csv", 1.0)


def test_limit_costs_only_the_case_it_meets(fake_ncu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of a group is cut off: the first keeps its counts, the next group is profiled."""
    begin = '"ID","Kernel Name","Grid Size","Block Size","x__y"\n'
    taken: list[float] = []

    def profile(command: list[str], _m: object, _log: Path, timeout_s: float) -> tuple[str, list[ncu.ProfiledLaunch]]:
        names = [Path(file).stem for file in command if file.endswith(".tirgemm")]
        taken.append(timeout_s)
        ended = names[:1] if len(taken) == 1 else names
        rows = [f'"{i}","simt_gemm_kernel","(1)","(1)","{len(taken)}"\n' for i in range(len(ended))]
        return "".join(f"== end {name}\n" for name in ended) + "== stopped after 90 s", ncu.read(begin + "".join(rows))

    monkeypatch.setattr(ncu, "profile", profile)
    monkeypatch.setattr(profiling, "AT_ONCE", 2)
    monkeypatch.setattr(profiling, "_packed", packed_as_text)
    kernels = [kernel(name, "simt_gemm_kernel") for name in ("a", "slow", "b", "c")]
    profiling.count(kernels, H200, [], fake_ncu / "x.ncu", time.monotonic() + 1000)
    assert [k.status for k in kernels] == ["counted", "failed", "counted", "counted"]
    assert "== stopped after 90 s" in kernels[1].message
    assert [k.log for k in kernels] == ["x.ncu.0.csv", "", "x.ncu.1.csv", "x.ncu.1.csv"]
    assert set(taken) == {profiling.GROUP_SECONDS}


# A profiler that pretends: it writes a table of one launch a package, and says that the calls began and ended.
FAKE = """#!{python}
import sys
from pathlib import Path
arguments = sys.argv[1:]
log, metrics = (arguments[arguments.index(name) + 1] for name in ("--log-file", "--metrics"))
assert arguments[arguments.index("--clock-control") + 1] == "none"
lines = ['"ID","Kernel Name","Grid Size","Block Size",' + ",".join(f'"{{m}}"' for m in metrics.split(","))]
for number, file in enumerate(a for a in arguments if a.endswith(".tirgemm")):
    name = Path(file).stem
    assert Path(file).stat().st_size
    print("== begin", name)
    if name == "bad":
        print("CudaError: illegal address")
        break
    values = ",".join('"7"' for _ in metrics.split(","))
    lines.append(f'"{{number}}","simt_gemm_kernel","(1, 1, 1)","(128, 1, 1)",{{values}}')
    print("== end", name)
Path(log).write_text("\\n".join(lines))
"""


@pytest.fixture
def fake_ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "ncu"
    program.write_text(FAKE.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def test_every_kernel_is_counted_though_one_breaks_its_process(fake_ncu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "AT_ONCE", 3)
    names = ("a", "bad", "b", "c", "d", "e")
    kernels = [kernel(name, "simt_gemm_kernel") for name in names]
    asked = ["smsp__inst_executed_op_shared_ld.sum", OCCUPANCY]
    monkeypatch.setattr(profiling, "_packed", packed_as_text)
    profiling.count(kernels, H200, asked, fake_ncu / "counters.ncu", time.monotonic() + 60)
    assert {k.case.name: k.status for k in kernels} == dict.fromkeys(names, "counted") | {"bad": "failed"}
    assert "illegal address" in kernels[1].message
    assert kernels[0].counts == ({"smsp__inst_executed_op_shared_ld.sum": 7.0, OCCUPANCY: 7.0},)
    assert len(list(fake_ncu.glob("counters.ncu.*.csv"))) == 3


def packed_as_text(made: CountedKernel, _device: object, _signer: object, folder: Path) -> Path:
    file = folder / f"{made.case.name}.tirgemm"
    file.write_text("package")
    return file


def test_nothing_is_begun_after_the_deadline(fake_ncu: Path) -> None:
    kernels = [kernel("a", "simt_gemm_kernel")]
    profiling.count(kernels, H200, [], fake_ncu / "x", time.monotonic() - 1)
    assert kernels[0].message == "not reached in time"


def test_run_writes_a_file_that_checks_and_that_can_be_judged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two small kernels built and predicted for a named device, then compared with the log of a run that never was."""
    wanted = (
        CountedCase("small.simt", Gemm.parse("64x64x64:f16:nt"), "simt"),
        CountedCase("small.wgmma", Gemm.parse("256x256x128:f16:nt"), "wgmma"),
    )
    monkeypatch.setattr(counters, "cases", lambda: wanted)
    monkeypatch.setattr(counters, "prepared", lambda wanted, _: [profiling.prepare(one) for one in wanted])
    out = tmp_path / "run" / "counters.json"
    monkeypatch.setattr(sys, "argv", ["counters", "--device", "sm_90a", "--commit", "c" * 40, "--out", str(out)])
    assert counters.main() == 0
    actual = json.loads(out.read_text())
    assert [case["status"] for case in actual["cases"]] == ["predicted"] * 2
    assert not any("right" in row for row in actual["rows"])
    assert list(check.faults(out, history=History(Path("/")))) == ["it counts 0 kernels; at least 24 are asked for"]

    kernels = [profiling.prepare((case, H200, None, None)) for case in wanted]
    profiling.keep(kernels, out.with_suffix(".cubins.zip"))
    for number, made in enumerate(kernels):
        assert made.binary
        head = f'"ID","Kernel Name","Grid Size","Block Size","{OCCUPANCY}"\n'
        lines = [f'"{i}","{k.symbol}","(1,1,1)","(1,1,1)","1"\n' for i, k in enumerate(made.binary.launch.kernels)]
        out.with_suffix(f".ncu.{number}.csv").write_text(head + "".join(lines))
    # The first log has a launch more, of a case that did not end.
    with out.with_suffix(".ncu.0.csv").open("a") as log:
        log.write('"9","simt_gemm_kernel","(1,1,1)","(1,1,1)","1"\n')
    counted = [c | {"status": "counted", "log": f"counters.ncu.{i}.csv"} for i, c in enumerate(actual["cases"])]
    out.write_text(json.dumps(actual | {"cases": counted}))
    again = tmp_path / "again.json"
    commit = ["--commit", "d" * 40]
    monkeypatch.setattr(sys, "argv", ["counters", "--again", str(out.parent), *commit, "--out", str(again)])
    assert counters.main() == 0
    judged = [row for row in json.loads(again.read_text())["rows"] if "right" in row]
    assert [(row["counter"], row["kernel"]) for row in judged] == [
        ("occupancy_percent", "small.simt"),
        ("occupancy_percent", "small.wgmma"),
    ]
    assert json.loads(again.read_text())["environment"] == actual["environment"]
    assert json.loads(again.read_text())["predicted_commit"] == "d" * 40
    assert list(check.faults(again, history=History(Path("/")))) == ["it counts 2 kernels; at least 24 are asked for"]


@pytest.mark.parametrize(("text", "told"), [("128x128x128:f16:nt", True), ("120x120x120:bf16:tt", False)])
def test_conflicts_of_copies_past_l1_are_told_where_every_lane_copies(text: str, told: bool) -> None:
    gemm = Gemm.parse(text)
    config = family_named("mma").default(gemm, H200, "sustained")
    cubin = build(gemm, config, H200).data
    (actual,) = predicted(gemm, config, H200, cubin)
    assert ("copy_conflicts" in actual.counters) == told
    assert actual.counters["copies"] >= actual.counters["copy_requests"] > 0
    assert actual.counters.get("copy_conflicts", 0) == 0


def test_calls_are_of_the_gpu_and_the_packages_that_the_profiler_s_command_names(
    fake_ncu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def profile(command: list[str], *_: object) -> tuple[str, list[ncu.ProfiledLaunch]]:
        commands.append(command)
        raise MeasurementFailed("not now")

    monkeypatch.setattr(ncu, "profile", profile)
    monkeypatch.setattr(profiling, "_packed", packed_as_text)
    profiling.count([kernel("a", "k")], H200.with_(uuid="GPU-7"), [], fake_ncu / "x.ncu", time.monotonic() + 60)
    said: list[object] = []
    monkeypatch.setattr(sanitized_call, "without_torch", lambda: None)
    monkeypatch.setattr(sanitized_call, "gpu_of", said.append)
    monkeypatch.setattr(sanitized_call, "Gpu", lambda device: device)
    monkeypatch.setattr(sanitized_call, "load", lambda file, **_: said.append(Path(file).stem))
    monkeypatch.setattr(calls, "call", lambda *_: "")
    (command,) = commands
    assert calls.main(command[command.index("benchmarks.counted.calls") + 1 :]) == 0
    assert said == ["GPU-7", "a"]


def test_call_gives_tensors_in_call_order_and_random_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    gemm = Gemm.parse("1..5x6x7:bf16:tn:alpha:beta:bias:lda=9:batch=2")
    kept: list[object] = []
    copied: list[tuple[int, int]] = []
    given: list[Any] = []

    class HostMemory:
        def __init__(self, nbytes: int) -> None:
            self.buffer = (ctypes.c_char * nbytes)()
            self.address = ctypes.addressof(self.buffer)
            kept.append(self)

    class HostGpu:
        ordinal, stream = 0, 0

        def to_device(self, address: int, array: npt.NDArray[np.uint16]) -> None:
            assert len(np.unique(array)) > 1
            copied.append((address, array.nbytes))

        def synchronize(self) -> None: ...

    class Loaded:
        def __init__(self) -> None:
            self.gemm = gemm

        def raw(self, *arguments: object) -> None:
            given.extend(arguments)

    monkeypatch.setattr(calls, "Memory", HostMemory)
    calls.call(cast(Any, HostGpu()), cast(Any, Loaded()))
    *tensors, alpha, beta = given
    assert [tuple(t.shape) for t in tensors] == [(2, 7, 5), (2, 7, 6), (2, 5, 6), (6,), (2, 5, 6)]
    assert [t.strides[-2] for t in tensors if len(t.shape) == 3] == [9, 6, 6, 6]
    assert [nbytes for _, nbytes in copied] == [2 * n for n in (63 + 6 * 9 + 5, 84, 60, 6, 60)]
    assert (alpha, beta) != (1.0, 0.0)


def test_file_with_a_judgement_that_does_not_follow_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "LEAST_KERNELS", 1)
    made = kernel("one", "simt_gemm_kernel")
    made.counts = ({"smsp__inst_executed_op_shared_ld.sum": 10.0, CONFLICTS: 0.0},)
    whole = document.documented(
        [made], {"shared_loads": "smsp__inst_executed_op_shared_ld.sum", "shared_load_conflicts": CONFLICTS}, {}
    )
    assert list(document.faults(whole)) == []
    assert document.summary(whole) == ["2 of 2 predictions right, over 1 of 1 cases"]
    for change, sentence in (
        ({"counted": 11.0}, "one shared_loads: right is True, the figures give False"),
        ({"kernel": "other"}, "other shared_loads: no case has that name"),
        ({"counter": "shared_luck"}, "one shared_luck: no such counter"),
    ):
        bad = whole | {"rows": [whole["rows"][0] | change, *whole["rows"][1:]]}
        assert sentence in list(document.faults(bad))
    assert list(document.faults({"rows": []})) == ["it lacks environment, metrics, cases"]
