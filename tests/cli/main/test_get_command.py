"""``get``: the kernel of a service, and the files that it writes."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.artifact_samples import (
    SIGNER,
    fake_cubin,
    packed,
)
from tests.helpers.command_line import Run
from tests.helpers.fake_service import EVENTS, FakeService, sse
from tirgemm import Gemm
from tirgemm._terminal.output_file import write_artifact
from tirgemm.artifact import Signer, Trust, read
from tirgemm.detect import device
from tirgemm.errors import InvalidRequest


def test_get_tunes_and_writes_the_artifact(run: Run, home: Path, fake: FakeService) -> None:
    options = ("--trust", SIGNER.public, "--trials", 4, "--seconds", 9.5, "--seed", 3, "--json")
    code, out, err = run("get", fake.gemm, *options)
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["kernel"]["role"] == "tuned"
    assert (home / "33x17x19-f32-nt.tirgemm").read_bytes() == fake.blobs[document["kernel"]["artifact"]["sha256"]]
    (request,) = fake.sent("POST", "/v1/kernels")
    assert json.loads(request.content)["budget"] == {"trials": 4, "seconds": 9.5}
    assert SIGNER.public in Trust.default().keys, "--trust KEY is for good"
    fake.streams, fake.status = [list(EVENTS)], "running"
    code, out, _ = run("get", fake.gemm, "--default", "-o", "mean[while]")
    assert (code, "1.25 of default" in out) == (0, True)
    assert "mean[while]  the default kernel (served meanwhile)  sample(rows=1)" in out


@pytest.mark.parametrize(
    "changes",
    [
        {"device": device("sm_90a"), "binary": fake_cubin(), "binary_format": "cubin"},
        {"regime": "isolated", "role": "tuned"},
    ],
)
def test_get_names_a_file_that_holds_another_kernel_and_leaves_it(
    run: Run, home: Path, fake: FakeService, changes: dict[str, Any]
) -> None:
    file = home / "33x17x19-f32-nt.tirgemm"
    other = packed(fake.gemm, signer=Signer.generate(), **changes)
    file.write_bytes(other)
    code, _, err = run("get", fake.gemm, "--trust", SIGNER.public)
    assert (code, f"{file.name} holds the kernel of {fake.gemm} on" in err, "--output" in err) == (2, True, True)
    assert file.read_bytes() == other
    assert run("get", fake.gemm, "--output", file)[0] == 0
    assert file.read_bytes() != other, "a file that is named is written anew"
    assert run("get", fake.gemm)[0] == 0, "the same kernel is written again"


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("get", "33x17x19:f32:nt"), "--output"),
        (("call", "kernel.tirgemm"), "--output"),
        (("explain", "64x64x64:f16:nt", "--device", "sm_80"), "--html"),
        (("ladder", "64", "64", "64", "--dry-run"), "--html"),
        (("db", "export", "--data", "absent"), "FILE"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    run: Run, home: Path, command: tuple[str, ...], option: str
) -> None:
    for path, says in ((home / "no" / "k", f"there is no folder {home / 'no'}"), (home, "which is a folder")):
        code, out, err = run(*command, *([] if option == "FILE" else [option]), path)
        assert (code, out) == (2, "")
        assert err.startswith(f"error: {option} is {path}, ")
        assert says in err


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("get", "33x17x19:f32:nt", "--trust", SIGNER.public), "--output"),
        (("explain", "64x64x64:f16:nt", "--device", "sm_80", "--family", "simt", "--as-written"), "--html"),
        (("ladder", "64", "64", "64", "--dry-run", "--device", "sm_86"), "--html"),
    ],
)
def test_a_full_disk_is_told_with_the_file_that_it_lacks(
    run: Run, fake: FakeService, command: tuple[str, ...], option: str
) -> None:
    del fake
    code, out, err = run(*command, option, "/dev/full")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == "error: /dev/full cannot be written: No space left on device"


def test_an_artifact_that_does_not_fit_leaves_the_file_as_it_was(home: Path) -> None:
    package = read(packed(Gemm.parse("33x17x19:f32:nt")), Trust.of(SIGNER.public))
    file, limit = home / "k.tirgemm", resource.getrlimit(resource.RLIMIT_FSIZE)
    file.write_text("before")
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
        with pytest.raises(InvalidRequest, match=r"k\.tirgemm cannot be written: File too large"):
            write_artifact(package, file, file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert len(package.data) > 1000
    assert (file.read_text(), [path.name for path in home.glob("*k.tirgemm*")]) == ("before", ["k.tirgemm"])


@pytest.mark.parametrize(
    "command",
    [("get", "33x17x19:f32:nt", "--locked", "absent"), ("batches", "submit", "absent"), ("db", "import", "absent")],
)
def test_a_file_that_is_not_there_is_bad_input(run: Run, command: tuple[str, ...]) -> None:
    code, out, err = run(*command)
    assert (code, out, err) == (2, "", "error: absent: No such file or directory\n")


def test_get_says_that_the_machine_was_busy(run: Run, home: Path, fake: FakeService) -> None:
    del home
    timing = fake.kernels["70ed"]["timings"]["sustained"]
    assert "busy" not in run("get", fake.gemm, "--trust", SIGNER.public)[1]
    timing["conditions"] = {"loadavg": 9.0, "cpus": 2}
    assert "a load average of 9.00 on 2 CPUs" in run("get", fake.gemm)[1]


def test_an_interrupt_ends_the_waiting_and_not_the_job(run: Run, fake: FakeService, home: Path) -> None:
    fake.streams = [[EVENTS[0], KeyboardInterrupt()]]
    code, out, err = run("get", fake.gemm, "--trust", SIGNER.public)
    assert (code, out) == (130, "")
    assert "no longer waiting for 33x17x19:f32:nt; a job that http://127.0.0.1:8000 has begun goes on" in err
    assert not list(home.glob("*.tirgemm"))


def test_get_tells_a_pipe_in_plain_words_what_the_service_does(run: Run, fake: FakeService) -> None:
    fake.streams = [
        [
            sse(1, "started", budget={"trials": 4, "seconds": 9}),
            sse(2, "phase", phase="default", detail="", seconds_left=None),
            sse(3, "fallback", kernel="fa11", timings={"sustained": {"median_us": 19.0}}),
            sse(4, "batch", proposed=3, trials=4, pruned={"regs\x1b[2J": 2}),
            sse(5, "phase", phase="measuring", detail="", seconds_left=7.2),
            sse(
                6,
                "candidate",
                status="measured",
                trials=4,
                tried=2,
                of=4,
                best_us=9.5,
                best="x86(a=1)",
                default_us=19.0,
            ),
            sse(7, "phase", phase="certifying", detail="\x1b]0;title\r", seconds_left=None),
            sse(8, "selected", kernel="70ed"),
            sse(9, "done", kernel="70ed"),
        ]
    ]
    code, out, err = run("get", fake.gemm, "--trust", SIGNER.public, "-o", "k.tirgemm")
    assert code == 0
    told = [line.partition(" s  ")[2] for line in err.splitlines()]
    assert told[:3] == [
        "33x17x19:f32:nt: starting",
        "building the default kernel",
        "measuring 1 of 4, best 19.00 us (1.00 x the default), at most 8 s left",
    ]
    assert told[3].startswith("certifying ")
    assert told[3].endswith(", best 9.50 us (2.00 x the default)")
    assert told[4] == "done, the search's best 9.50 us (2.00 x the default)"
    assert told[5].startswith("downloading ")
    for text in (out, err):
        assert all(line.isprintable() for line in text.splitlines())
        assert "fallback" not in text
        assert "batch" not in text


def test_get_says_what_is_wrong(run: Run, home: Path, fake: FakeService) -> None:
    code, out, err = run("get", fake.gemm)
    assert (code, out, f"tirgemm trust add http://127.0.0.1:8000 {SIGNER.public}\n" in err) == (1, "", True)
    assert not fake.sent("POST", "/v1/kernels"), "nothing was asked for"
    assert not list(home.glob("*.tirgemm"))
    Trust.default().add(SIGNER.public)
    fake.answer = lambda _body: (422, {"detail": "too big", "code": "does_not_fit"})
    assert run("get", fake.gemm)[0] == 2
    fake.answer = lambda _body: (409, {"detail": "no worker has it", "code": "device_unavailable"})
    code, out, err = run("get", fake.gemm, "--json")
    assert (code, err) == (1, "")
    assert json.loads(out)["error"]["message"].endswith("no worker has it")
    assert run("get", "0x1x1")[0] == 2
    assert run("get", "1x1x1", "--url", "nowhere")[0] == 2
    assert run("get", "1x1x1", "--regime", "fast")[0] == 2
