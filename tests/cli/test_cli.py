"""The command line: what it prints, its exit codes, and what it says where something is wrong or missing."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from tests.contract.storage.databases import candidate, kernel, read_only
from tests.helpers.artifact_samples import (
    ROWS,
    SIGNER,
    certified,
    fake_cubin,
    operands,
    packed,
    rows_binary,
    shared_object,
)
from tests.helpers.command_line import Run, own_folders
from tests.helpers.fake_service import EVENTS, FakeService, sse
from tirgemm import Gemm
from tirgemm._client import http as http_layer
from tirgemm.artifact import Signer, Trust, read
from tirgemm.detect import device
from tirgemm.service import cli

SHAPE = "33x17x19:f16:nt"
RANGED = "1..40x17x19:f32:tn:alpha:beta:bias"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own: trust file, cache, data folder and working folder."""
    return own_folders(tmp_path, monkeypatch)


@pytest.fixture
def trusted(home: Path) -> None:
    assert Trust.default().path == home / "config" / "tirgemm" / "trusted_keys"
    Trust.default().add(SIGNER.public)


def artifact(folder: Path, text: str = SHAPE, **changes: Any) -> Path:
    path = folder / "kernel.tirgemm"
    path.write_bytes(packed(Gemm.parse(text), **changes))
    return path


@pytest.mark.usefixtures("trusted")
def test_call_checks_against_numpy_and_times(run: Run, home: Path) -> None:
    code, out, err = run("call", artifact(home), "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["passed"]
    assert 0 <= document["error_over_bound"] <= 1
    assert document["median_us"] > 0
    code, out, _ = run("call", artifact(home))
    assert (code, "us a call" in out) == (0, True)


@pytest.mark.usefixtures("trusted")
def test_call_takes_arrays_and_writes_the_result(run: Run, home: Path) -> None:
    gemm = Gemm.parse(RANGED)
    arrays, product = operands(gemm, 23)
    options = []
    for name, array in arrays.items():
        np.save(home / f"{name}.npy", np.asarray(array, np.float64))
        options += [f"--{name}", home / f"{name}.npy"]
    code, out, _ = run("call", artifact(home, RANGED), *options, "--alpha", 2, "--beta", 0.5, "-o", "d.npy", "--json")
    assert (code, json.loads(out)["m"]) == (0, 23)
    assert np.array_equal(np.load(home / "d.npy"), 2 * product + 0.5 * arrays["c"] + arrays["bias"])
    assert run("call", artifact(home, RANGED), "--m", 7)[0] == 0


@pytest.mark.usefixtures("trusted")
def test_call_refuses_arrays_that_do_not_fit(run: Run, home: Path) -> None:
    path = artifact(home)
    np.save(home / "a.npy", np.zeros((33, 18)))
    np.save(home / "s.npy", np.full((33, 19), "text"))
    (home / "no.npy").write_text("hello")
    for name, value in (("large", 1e6), ("nan", np.nan), ("sum", 6e4)):
        np.save(home / f"{name}.npy", np.where(np.arange(33)[:, None] == 7, value, np.zeros((33, 19))))
    np.save(home / "b.npy", np.ones((17, 19)))
    np.save(home / "o.npy", np.full((33, 19), None))
    np.savez(home / "z.npz", np.ones((33, 19)))
    for options, says in (
        (("--a", "a.npy"), "array a has shape (33, 18); 33x17x19:f16:nt needs (33, 19)"),
        (("--b", "a.npy"), "needs (17, 19)"),
        (("--a", "s.npy"), "array a has dtype <U4; it must hold real numbers"),
        (("--c", "a.npy"), "takes a, b; c was given"),
        (("--a", "no.npy"), "is not a .npy array"),
        (("--a", "o.npy"), "error: o.npy is not a .npy array of numbers, or damaged; numpy.save writes them\n"),
        (("--a", "z.npz"), "z.npz is not a .npy array of numbers"),
        (("--a", "large.npy"), "array a has 1e+06 at [7, 0], which is not finite in f16"),
        (("--a", "nan.npy"), "array a has nan at [7, 0], which is not finite in f16"),
        (("--a", "sum.npy", "--b", "b.npy"), "the result has 1.14e+06 at [7, 0], which is not finite in f16"),
        (("--alpha", "2"), "33x17x19:f16:nt takes no alpha; alpha 2 was given"),
        (("--beta", "1"), "33x17x19:f16:nt takes no beta; beta 1 was given"),
        (("--m", "7"), "m is 7; 33x17x19:f16:nt takes 33"),
        (("--m", "0"), "Invalid value for '--m': '0' is not an integer of at least 1 (see"),
    ):
        code, out, err = run("call", path, *options)
        assert (code, out) == (2, "")
        assert says in err
    code, _, err = run("call", path, "--a", "absent.npy")
    assert (code, "absent.npy: No such file" in err) == (2, True)


@pytest.mark.usefixtures("trusted")
def test_a_kernel_that_computes_wrong_fails(run: Run, home: Path) -> None:
    gemm = Gemm.parse(SHAPE)
    wrong = ROWS.replace("k < GEMM_K;", "k < GEMM_K - 1;")
    assert wrong != ROWS
    flags = [
        f"-DGEMM_{n}={v}"
        for n, v in (
            ("F16", 1),
            ("BF16", 0),
            ("N", 17),
            ("K", 19),
            ("BATCH", 1),
            ("TA", 0),
            ("TB", 1),
            ("ALPHA", 0),
            ("BETA", 0),
            ("BIAS", 0),
            ("LDA", 19),
            ("LDB", 19),
            ("STRIDE_B", 0),
            ("LDC", 17),
            ("LDD", 17),
        )
    ]
    path = artifact(home, SHAPE, binary=shared_object(wrong, *flags))
    for command in ("call", "verify"):
        code, out, err = run(command, path)
        assert (code, out) == (1, "")
        assert "error: " in err
    assert rows_binary(gemm) != shared_object(wrong, *flags)


@pytest.mark.usefixtures("trusted")
def test_verify_looks_at_signature_certificate_and_result(run: Run, home: Path) -> None:
    (home / "kernel").write_bytes(certified(Gemm.parse(SHAPE)))
    code, out, _ = run("verify", home / "kernel", "--json")
    document = json.loads(out)
    results = {check["check"]: check["result"] for check in document["checks"]}
    assert (code, results) == (0, {"signature and hashes": "passed", "certificate": "passed", "run here": "passed"})
    code, out, err = run("verify", artifact(home))
    assert (code, out) == (1, "")
    assert "certificate absent (it holds no certificate: nobody verified this build)" in " ".join(err.split())
    kernel_sha256 = read(artifact(home).read_bytes(), Trust.of(SIGNER.public)).manifest.kernel_sha256
    for certificate, wanted in (
        ({"kernel_sha256": kernel_sha256, "passed": True}, 0),
        ({"kernel_sha256": kernel_sha256, "passed": False}, 1),
        ({"kernel_sha256": "0" * 64, "passed": True}, 1),
        ({"kernel_sha256": kernel_sha256, "passed": True, "tests": []}, 1),
        ({"kernel_sha256": kernel_sha256, "passed": True, "tests": [{"passed": True}, {"passed": False}]}, 1),
        ({"kernel_sha256": kernel_sha256, "passed": "yes"}, 1),
    ):
        path = artifact(home, certificate={"tests": [{"passed": True}], "reference": "numpy"} | certificate)
        code, out, err = run("verify", path, "--no-run")
        assert code == wanted
        assert ("certificate failed" in err) == bool(wanted)
    gpu = artifact(home, device=device("sm_90a"), binary=fake_cubin(), binary_format="cubin")
    code, out, _ = run("verify", gpu, "--no-run", "--json")
    assert (code, json.loads(out)["error"]["code"]) == (1, "verification_failed"), "a build that nobody ran"


@pytest.mark.usefixtures("trusted")
def test_verify_and_call_refuse_what_was_touched_or_is_a_strangers(run: Run, home: Path) -> None:
    path = artifact(home)
    path.write_bytes(path.read_bytes()[:-3])
    for command in ("call", "verify"):
        assert run(command, path)[0] == 1
    stranger = Signer.generate()
    path.write_bytes(certified(Gemm.parse(SHAPE), signer=stranger))
    code, _, err = run("verify", path)
    assert (code, stranger.public in err.replace("\n", "")) == (1, True)
    assert run("verify", path, "--trust", stranger.public)[0] == 0
    (home / "keys").write_text(stranger.public + "\n")
    (home / "keys").chmod(0o600)
    assert run("verify", path, "--trust", home / "keys")[0] == 0
    assert run("verify", path, "--trust", "a", "--trust", "b")[0] == 2
    assert run("verify", path)[0] == 1, "none of it was remembered"


@pytest.mark.usefixtures("trusted")
def test_export_writes_a_library_that_stands_alone(run: Run, home: Path) -> None:
    import tvm_ffi

    code, out, _ = run("export", artifact(home), home / "k.so", "--json")
    assert code == 0
    assert json.loads(out)["bytes"] == (home / "k.so").stat().st_size
    arrays, product = operands(Gemm.parse(SHAPE))
    d = np.zeros(product.shape, np.float16)
    tvm_ffi.load_module(str(home / "k.so"))["main"](*(tvm_ffi.from_dlpack(x) for x in (arrays["a"], arrays["b"], d)))
    assert np.array_equal(d, product)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeService:
    """The service that ``get`` reaches, whatever the address."""
    service = FakeService()
    real = http_layer.ServiceConnection

    def session(url: str, **options: Any) -> http_layer.ServiceConnection:
        return real(url, **options | {"transport": service, "patience": 0.05})

    monkeypatch.setattr("tirgemm.client.ServiceConnection", session)
    return service


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
    fake.streams, fake.status = [list(EVENTS)], "running"
    assert run("get", fake.gemm, "--fallback", "-o", "mean[while]")[:2] == (code, out), "as it was called before"


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


def test_devices_and_versions(run: Run) -> None:
    code, out, _ = run("devices", "--json")
    assert (code, json.loads(out)["devices"][0]["key"]) == (0, device("cpu").key)
    code, out, _ = run("devices")
    assert (code, "sm_90a" in out) == (0, True)
    code, out, _ = run("version", "--json")
    assert (code, json.loads(out)["tirgemm"]) == (0, "0.1.0")
    assert run("version")[1].startswith("tirgemm 0.1.0")


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    monkeypatch.setattr(cli, "find_spec", lambda name: None if name in packages else importlib.util.find_spec(name))


def test_a_command_without_its_extra_names_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "tvm", "sqlalchemy")
    for name in ("tune", "bench", "db", "serve", "worker"):
        code, out, err = run(name, "1x2x3", "--anything", "--help")
        assert (code, out) == (2, "")
        assert f"`tirgemm {name}` needs the extra tune (tvm is absent): pip install 'tirgemm[tune]'" in err.replace(
            "\n", " "
        )
    code, out, _ = run("tune", "1x2x3", "--json")
    assert (code, json.loads(out)["error"]["code"]) == (2, "missing_extra")
    assert run("devices")[0] == 0
    code, out, _ = run("--help")
    assert (code, "needs the extra tune" in out, "verify" in out) == (0, True, True)
    without(monkeypatch, "uvicorn")
    assert "needs the extra service (uvicorn is absent)" in run("serve")[2].replace("\n", " ")
    without(monkeypatch, "typer")
    code, _, err = run("devices")
    assert (code, "needs the extra client (typer is absent)" in err) == (2, True)


def test_what_turns_out_to_be_absent_while_running_is_named_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise ModuleNotFoundError("No module named 'obstore'", name="obstore.store")

    monkeypatch.setattr("tirgemm.detect.devices", absent)
    code, _, err = run("devices")
    assert (code, "pip install 'tirgemm[tune]'" in err) == (2, True)

    def broken() -> None:
        raise ModuleNotFoundError("No module named 'colours'", name="colours")

    monkeypatch.setattr("tirgemm.detect.devices", broken)
    with pytest.raises(ModuleNotFoundError):
        run("devices")


def test_an_error_is_one_sentence_and_debug_shows_where(run: Run) -> None:
    code, out, err = run("get", "7x8")
    assert (code, out) == (2, "")
    assert err.startswith("error: gemm '7x8'")
    assert "Traceback" not in err
    for arguments in (("get", "7x8", "--debug"), ("--debug", "get", "7x8")):
        assert "Traceback" in run(*arguments)[2]
    assert "Traceback" not in run("get", "7x8")[2], "debug does not outlive its command"


@pytest.mark.parametrize(
    "arguments", [("frob",), ("get",), ("devices", "--colour"), ("call",), ("call", "x", "--m", "many")]
)
def test_wrong_usage_is_bad_input(run: Run, arguments: tuple[str, ...]) -> None:
    code, out, err = run(*arguments)
    assert (code, out, "--help" in err) == (2, "", True)
    code, out, err = run(*arguments, "--json")
    assert (code, err, json.loads(out)["error"]["code"]) == (2, "", "usage")


def test_an_interrupt_ends_it_with_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tirgemm.detect.devices", interrupted)
    assert run("devices")[0] == 130


def test_no_help_uses_the_names_that_the_program_has_for_things() -> None:
    def walk(command: Any, group: str = "") -> None:
        for name in command.list_commands(None) if getattr(command, "commands", None) is not None else []:
            walk(command.get_command(None, name), group or name)
        shown = [p for p in command.params if not getattr(p, "hidden", False)]
        text = " ".join(
            [command.help or "", *(getattr(p, "help", None) or "" for p in shown), *(o for p in shown for o in p.opts)]
        )
        assert "fallback" not in text.lower(), command.name
        # Users know the batches of a service, which keys have a quota of and prune deletes; those of a search are
        # nobody's business.
        assert group in ("batches", "keys", "db") or "batch" not in text.lower(), command.name

    walk(typer.main.get_command(cli.build_app()))


def test_every_command_has_json_and_a_summary() -> None:
    def walk(command: Any, name: str) -> None:
        inner = getattr(command, "commands", None)
        names = command.list_commands(None) if inner is not None else []
        for each in names:
            walk(command.get_command(None, each), f"{name} {each}")
        if not names:
            assert "--json" in {option for parameter in command.params for option in parameter.opts}, name
        assert command.help, name

    walk(typer.main.get_command(cli.build_app()), "tirgemm")


def test_the_database_is_exported_imported_merged_and_collected(run: Run, home: Path) -> None:
    code, _, err = run("db", "info")
    assert (code, "holds no tuning database" in err) == (2, True)
    assert not (home / "data").exists(), "looking did not make one"
    (home / "one").mkdir()
    from tirgemm.tuning_db import Database, SqlStore

    with Database.embedded(home / "one") as database:
        store = SqlStore(database)
        store.put_device(device("cpu"))
        store.put_blob(b"nobody needs this")
    code, out, _ = run("db", "info", "--data", "one", "--json")
    assert (code, json.loads(out)["devices"]) == (0, [device("cpu").key])
    assert "lost attempts: 0" in run("db", "info", "--data", "one")[1]
    assert run("db", "check", "--data", "one")[0] == 0
    assert "1 devices" in run("db", "export", "records.jsonl.gz", "--data", "one")[1]
    code, out, _ = run("db", "import", "records.jsonl.gz", "--data", "two", "--json")
    assert (code, json.loads(out)["candidates"]) == (0, 0)
    assert run("db", "merge", "one", "--data", "two")[0] == 0
    assert run("db", "merge", "absent", "--data", "two")[0] == 2
    assert run("db", "merge", "absent", "--data", "three")[0] == 2
    assert run("db", "import", "absent.jsonl", "--data", "three")[0] == 2
    assert run("db", "info", "--db", f"sqlite:///{home}/three.db", "--data", "one")[0] == 2
    assert not (home / "three").exists(), "what cannot be had leaves no new database behind"
    assert not (home / "three.db").exists()
    assert f"merged into a new tuning database in {home / 'three'}: " in run("db", "merge", "one", "--data", "three")[1]
    assert "merged: " in run("db", "merge", "one", "--data", "three")[1]
    code, _, err = run("db", "merge", "postgresql://user:secret@host/name", "--data", "two")
    assert (code, "--other-data" in err, "secret" in err) == (2, True, False)
    code, out, _ = run("db", "gc", "--data", "one", "--older-than", 0, "--dry-run", "--json")
    assert (code, json.loads(out)["blobs"]) == (0, 1)
    code, out, _ = run("db", "gc", "--data", "one", "--older-than", "90d", "--json")
    assert (code, json.loads(out)["blobs"]) == (0, 0)
    assert run("db", "gc", "--data", "one", "--older-than", 0, "--vacuum")[0] == 0
    code, out, _ = run("db", "info", "--data", "one", "--json")
    assert (code, json.loads(out)["blobs"]) == (0, 0)


def test_a_device_that_nothing_was_recorded_of_is_none_of_the_database(run: Run) -> None:
    code, _, err = run("tune", SHAPE, "--device", "sm_90a", "--data", "one")
    assert (code, "sm_90a" in err) == (1, True)
    assert json.loads(run("db", "info", "--data", "one", "--json")[1])["devices"] == []
    code, _, err = run("db", "train", "--data", "one")
    assert (code, err) == (2, "error: the records are of no device; measure something first\n")


def test_a_data_folder_that_cannot_be_written_is_read_by_the_commands_that_only_read(run: Run, home: Path) -> None:
    from tirgemm.tuning_db import Database, SqlStore

    (home / "one").mkdir()
    with Database.embedded(home / "one") as database:
        store = SqlStore(database)
        store.add_candidate(candidate(1))
        kernel_id = store.put_kernel(kernel(artifact_sha256=store.put_blob(b"artifact"), artifact_bytes=8)).id
    with read_only(home / "one"):
        assert kernel_id in run("kernels", "list", "--data", "one")[1]
        assert "1 measured" in run("candidates", str(candidate(1).gemm), "--data", "one")[1]
        assert "blobs: 1" in run("db", "info", "--data", "one")[1]
        assert run("db", "check", "--data", "one")[0] == 0
        assert "1 kernel" in run("db", "export", "--artifacts", "records.jsonl", "--data", "one")[1]
        assert "1 blobs" in run("db", "backup", "backup", "--data", "one")[1]
        _, _, err = run("show", kernel_id, "--data", "one")
        assert f"kernel {kernel_id}: the file is damaged" in err, err
        for command in (("kernels", "pin", kernel_id), ("db", "prune", "--older-than", "1s")):
            code, _, err = run(*command, "--data", "one")
            assert (code, "cannot be written" in err) == (1, True), command


def test_records_are_collected_without_a_kernel(run: Run) -> None:
    asked = ("db", "collect", "24x17x9:f32:nn", "--device", "cpu", "--configs", 2, "--data", "one", "--json")
    code, out, _ = run(*asked)
    assert (code, json.loads(out)["statuses"]) == (0, {"measured": 2})
    assert json.loads(run(*asked)[1])["statuses"] == {}
    counts = json.loads(run("db", "info", "--data", "one", "--json")[1])
    assert (counts["candidates"], counts["rows"]["kernels"]) == ({"measured": 2}, 0)
    code, out, _ = run(*asked, "--recorded", "25x17x9:f32:nn")
    collected = json.loads(out)
    assert (code, collected["problems"], collected["statuses"]) == (0, 1, {}), "both are of this environment"
    assert "no config of 25x17x9:f32:nn is recorded in sustained" in collected["refused"]["25x17x9:f32:nn"]
    code, _, err = run("db", "collect", "--device", "cpu", "--data", "one")
    assert (code, "--suite" in err) == (2, True)


def test_a_ranking_model_is_trained_on_the_records_of_a_file_or_of_the_database(run: Run, home: Path) -> None:
    from tests.helpers.ranking import H200, PROBLEMS, made_up, slow_pingpong
    from tirgemm.families.common.ranking_model import user_file
    from tirgemm.tuning_db import Database, SqlStore, transfer

    alike = H200.with_(model="NVIDIA H100 80GB HBM3")
    for folder, of, name in (("one", H200, "records.jsonl.gz"), ("two", alike, "alike.jsonl.gz")):
        (home / folder).mkdir()
        with Database.embedded(home / folder) as database:
            store = SqlStore(database)
            store.put_device(of)
            store.put_device(device("cpu"))  # which nothing was recorded of
            for gemm in PROBLEMS:
                for candidate in made_up(gemm, slow_pingpong, 12):
                    store.add_candidate(candidate.with_(device_key=of.key))
            transfer.export_records(database, home / name)
    code, out, _ = run("db", "train", "--data", "one", "--json")
    trained = json.loads(out)
    assert (code, trained["problems"], Path(trained["file"])) == (0, len(PROBLEMS), user_file(H200.key))
    code, out, _ = run(
        "db", "train", "--records", "records.jsonl.gz", "--device", "sm_90a", "--output", "m.gz", "--json"
    )
    assert (code, json.loads(out)["records_sha256"]) == (0, trained["records_sha256"])
    assert (home / "m.gz").stat().st_size == json.loads(out)["bytes"]
    assert "trained on" in run("db", "train", "--data", "one")[1]
    code, _, err = run("db", "train", "--data", "one", "--device", "sm_80")
    assert (code, H200.key in err) == (2, True)
    code, _, err = run("db", "train", "--records", "records.jsonl.gz", "--records", "alike.jsonl.gz")
    keys = ", ".join(sorted([H200.key, alike.key]))
    assert (code, err) == (
        2,
        f"error: no --device is given; the records are of the devices {keys}: name one of them\n",
    )
    both = ("--records", "records.jsonl.gz", "--records", "alike.jsonl.gz", "--device", H200.key, "--output", "m.gz")
    code, out, _ = run("db", "train", *both, "--json")
    assert (code, json.loads(out)["devices"]) == (0, {H200.key: len(PROBLEMS), alike.key: len(PROBLEMS)})
    assert f"{len(PROBLEMS)} of the problems were measured on {alike.key}" in run("db", "train", *both)[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("jobs", "list", "--limit", "5000"), "'--limit': '5000' is not an integer from 1 to 1000"),
        (("jobs", "list", "--limit", "abc"), "'--limit': 'abc' is not an integer from 1 to 1000"),
        (("get", SHAPE, "--seed=-3"), "'--seed': '-3' is not an integer of at least 0"),
        (("get", SHAPE, "--seconds", "nan"), "'--seconds': 'nan' is not a number of at least 0"),
        (("get", SHAPE, "--wait", "soon"), "'--wait': 'soon' is not a number (see"),
        (("get", SHAPE, "--wait=-1"), "wait is -1.0; it must be"),
        (("get", SHAPE, "--priority", "1.5"), "'--priority': '1.5' is not an integer (see"),
        (("batches", "submit", "model.toml", "--trials", "0"), "'--trials': '0' is not an integer of at least 1"),
        (("bench", "steps", "--measure=-1"), "'--measure': '-1' is not a number of at least 0"),
        (("ladder", "7", "5", "3", "--limit", "nan"), "'--limit': 'nan' is not a number of at least 0"),
        (("reproduce", "ab", "--spread", "2"), "'--spread': '2' is not a number from 0 to 1"),
    ],
)
def test_a_number_that_is_refused_is_told_with_its_limits(run: Run, arguments: tuple[str, ...], words: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert words in err
