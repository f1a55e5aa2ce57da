"""``tirgemm show``: what an artifact is, its texts, whose it is; what is refused, and that nothing of it is run."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.artifact_samples import SIGNER, TRUST, certified, cpu, packed, packed_set
from tests.helpers.command_line import Run, own_folders
from tests.helpers.stored_candidates import GEMM, Made, compiled_for_a_gpu, made
from tests.helpers.terminal import on_terminal
from tirgemm import Gemm, _extras, expr
from tirgemm.artifact import Signer, Trust, read
from tirgemm.config import Config
from tirgemm.timings import BaselineTime, MemberTiming, StreamTiming, Timing, Timings
from tirgemm.tuning_db.data_folder import database_file

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    own_folders(tmp_path, monkeypatch, 160)
    Trust.default().add(SIGNER.public)
    return tmp_path


def cpu_artifact(folder: Path, **changes: Any) -> Path:
    path = folder / "kernel.tirgemm"
    path.write_bytes(packed(GEMM, **changes))
    return path


@pytest.fixture(scope="module")
def gpu_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled_for_a_gpu(tmp_path_factory.mktemp("gpu"))


def test_the_header_says_what_it_is_and_whose(run: Run, home: Path) -> None:
    certificate = {"kernel_sha256": "0", "passed": True, "tests": [], "reference": "numpy"}
    code, out, err = run("show", cpu_artifact(home, certificate=certificate))
    assert (code, err) == (0, "")
    for words in (
        "problem      33x17x19:f16:nt",
        "family       sample",
        "config       rows=1",
        f"signed by    {SIGNER.public}, trusted here",
        "certificate  its certificate is of another kernel, '0'",
        "launches     rows on 33 x 1 x 1 blocks",
        "12.50",
        "kernel.so",
        "Texts of it: --script, --llvm",
    ):
        assert words in out, words
    code, out, _ = run("show", "kernel.tirgemm", "--json")
    document = json.loads(out)
    assert (code, document["trusted"], document["manifest"]["kernel"]["config"]["knobs"]) == (0, True, {"rows": 1})
    assert [member["name"] for member in document["members"]] == ["kernel.so", "kernel.ll", "module.py"]


def test_a_certificate_passed_where_verify_says_so(run: Run, home: Path) -> None:
    whole = certified(GEMM)
    certificate = dict(read(whole, TRUST).manifest.certificate or {})
    assert certificate["passed"]
    for tests, words in (
        ([{"name": "exact", "passed": False}], "its certificate did not pass: 1 of its 1 tests failed"),
        ([], "its certificate names no tests"),
        (None, "its certificate names no tests"),
    ):
        assert f"certificate  {words}" in run("show", cpu_artifact(home, certificate=certificate | {"tests": tests}))[1]
    (home / "whole").write_bytes(whole)
    assert "certificate  passed 1 tests against ?" in run("show", "whole")[1]


def test_only_regimes_are_told_as_regimes(run: Run, home: Path) -> None:
    timings = Timings({"sustained": Timing(12.5)}, stream=StreamTiming(10**9, 239.0, 20, 4184.1, "2026"))
    code, out, _ = run("show", cpu_artifact(home, timings=timings))
    assert (code, "sustained" in out, "stream" in out) == (0, True, False)


def test_a_strangers_artifact_is_shown_and_said_to_be_one(run: Run, home: Path) -> None:
    stranger = Signer.generate()
    code, out, _ = run("show", cpu_artifact(home, signer=stranger))
    assert (code, f"{stranger.public}, NOT trusted here" in out) == (0, True)
    assert run("show", "kernel.tirgemm", "--script") == (0, "# text\n", ""), "what it holds as text is shown"
    code, out, err = run("show", "kernel.tirgemm", "--asm")
    assert (code, out, f"with --trust {stranger.public}" in err) == (1, "", True)
    assert run("show", "kernel.tirgemm", "--asm", "--trust", stranger.public)[0] == 0


def test_what_was_changed_after_signing_is_refused_by_its_file(run: Run, home: Path) -> None:
    path = cpu_artifact(home)
    path.write_bytes(path.read_bytes().replace(b"# text", b"# tExt"))
    code, out, err = run("show", path)
    assert (code, out) == (1, "")
    assert err.startswith(f"error: {path}: ")
    path.write_bytes(b"not a zip")
    assert f"{path}: the file is damaged or not a .tirgemm artifact" in run("show", path)[2]


def test_the_texts_are_those_that_it_holds(run: Run, home: Path) -> None:
    path = cpu_artifact(home, sources={"kernel.ll": "; line\n", "module.py": "# no newline at the end"})
    assert run("show", path, "--llvm") == (0, "; line\n", "")
    assert run("show", path, "--script") == (0, "# no newline at the end\n", "")
    code, out, _ = run("show", path, "--script", "--json")
    assert (code, json.loads(out)["text"]) == (0, "# no newline at the end")


def test_a_cpu_kernels_machine_code_is_disassembled(run: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("objdump") is None and shutil.which("llvm-objdump") is None:
        pytest.skip("objdump is not installed")
    code, out, err = run("show", cpu_artifact(home), "--asm")
    assert (code, "<__tvm_ffi_rows>:" in out, "ret" in out) == (0, True, True)
    assert "which is what runs, disassembled by" in err
    monkeypatch.setenv("PATH", str(home))
    code, _, err = run("show", "kernel.tirgemm", "--asm")
    assert (code, "needs objdump (binutils or LLVM)" in err) == (2, True)


def test_a_disassembler_that_does_not_end_is_ended(run: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = home / "objdump"
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(home), prepend=os.pathsep)
    monkeypatch.setattr("tirgemm.service.views.artifact_texts._SECONDS", 0.1)
    code, _, err = run("show", cpu_artifact(home), "--asm")
    assert (code, "objdump takes longer than 0.1 s to read kernel.so" in err) == (1, True), err


def test_a_gpu_kernel_has_script_cuda_ptx_and_sass(run: Run, gpu_artifact: Path) -> None:
    code, out, _ = run("show", gpu_artifact)
    assert (code, "registers a thread" in out, "Texts of it: --script, --cuda, --ptx, --sass." in out) == (
        0,
        True,
        True,
    )
    code, script, err = run("show", gpu_artifact, "--script")
    assert (code, err, "T.prim_func" in script) == (0, "", True)
    code, source, err = run("show", gpu_artifact, "--cuda")
    assert (code, err, "__global__" in source) == (0, "", True)
    code, ptx, err = run("show", gpu_artifact, "--ptx")
    assert (code, ".target sm_80" in ptx, ".visible .entry" in ptx) == (0, True, True)
    assert "made here from kernel.cu by NVRTC" in err
    assert "\0" not in ptx
    code, sass, err = run("show", gpu_artifact, "--sass")
    assert (code, "EXIT" in sass, "disassembled by nvdisasm" in err) == (0, True, True)


def test_a_text_that_such_a_kernel_has_not_is_refused_with_those_that_it_has(
    run: Run, home: Path, gpu_artifact: Path
) -> None:
    code, out, err = run("show", cpu_artifact(home), "--sass")
    assert (code, out) == (2, "")
    assert (
        f"is of a cpu kernel for {cpu().arch}: it has no machine code of the GPU, but --script (TVMScript), --llvm"
        in err
    )
    code, _, err = run("show", gpu_artifact, "--asm")
    assert (code, "it has no machine code of the CPU, but --script" in err) == (2, True)
    code, _, err = run("show", gpu_artifact, "--ptx", "--cuda")
    assert (code, "--cuda and --ptx are given; show prints one text at a time" in err) == (2, True)


def test_a_kernel_of_the_data_folder_is_shown_by_its_id_and_trusted_as_its_own(run: Run, home: Path) -> None:
    stored: Made = made(home / "folder")
    for text in (stored.fast.id, stored.fast.kernel_sha256[:10], stored.fast.artifact_sha256):
        code, out, _ = run("show", text, "--data", "folder")
        assert (code, f"kernel {stored.fast.id}" in out, "role         tuned, sustained" in out) == (0, True, True)
        assert f"{stored.key}, trusted here" in out
    for arguments, says in (
        (("nofile",), "'nofile' is neither a file nor the id of a kernel"),
        (("abcdef",), "'abcdef' is no file, and "),
        (("abcdef", "--data", "folder"), f"there is no kernel 'abcdef'; the newest are {stored.slow.id}"),
    ):
        code, out, err = run("show", *arguments)
        assert (code, out, says in err) == (2, "", True), err


def test_a_file_is_shown_beside_a_database_that_the_extra_tune_would_open(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database_file(None).parent.mkdir(parents=True)
    database_file(None).write_text("nothing that this environment could open")
    monkeypatch.setitem(_extras.PACKAGES, "tune", ("absent",))
    file = cpu_artifact(home)
    for arguments in (("show", file), ("compare", file, file)):
        assert run(*arguments)[::2] == (0, "")


def test_what_would_steer_a_terminal_is_not_printed_to_one(home: Path) -> None:
    cpu_artifact(home, sources={"kernel.ll": "; \x1b[2Jcleared\n", "module.py": "#\n"})
    command = [sys.executable, "-m", "tirgemm.service.cli", "show", str(home / "kernel.tirgemm"), "--llvm"]
    piped = subprocess.run(command, capture_output=True, check=True, cwd=ROOT).stdout
    assert piped == b"; \x1b[2Jcleared\n", "a pipe has it as it is"
    code, seen = on_terminal(command, 80, os.environ, ROOT)
    assert (code, seen) == (0, "; \N{REPLACEMENT CHARACTER}[2Jcleared\n")


def test_a_file_is_shown_where_the_database_is_damaged(run: Run, home: Path) -> None:
    (home / "folder").mkdir()
    (home / "folder" / "tirgemm.db").write_bytes(b"junk" * 100)
    code, out, err = run("show", cpu_artifact(home), "--data", "folder")
    assert (code, "problem      33x17x19:f16:nt" in out, "what a database knows of" in err) == (0, True, True), err


def test_a_strangers_words_do_not_steer_a_terminal(run: Run, home: Path) -> None:
    steer = "\x1b[2Jgone"
    gemm, baselines = Gemm.parse("1..40x17x19:f32:nt"), {steer: BaselineTime(25.0, 2.0)}
    about = {
        "device": cpu().with_(model=steer),
        "config": Config("sample", (("rows", 1), ("order", steer))),
        "timings": Timings({"sustained": Timing(12.5, baselines=baselines)}),
    }
    path = cpu_artifact(home, **about)
    (home / "set").write_bytes(packed_set(gemm, (8, 40), members={0: about, 1: about}, timings=about["timings"]))
    (home / f"{steer}.tirgemm").write_bytes(b"not an artifact")
    for arguments in (("show", path), ("show", "set"), ("compare", path, "set"), ("show", f"{steer}.tirgemm")):
        _, out, err = run(*arguments)
        assert ("\x1b" in out + err, "\N{REPLACEMENT CHARACTER}[2Jgone" in out + err) == (False, True), (out, err)


def test_extents_in_m_are_read_as_people_write_them(run: Run, home: Path) -> None:
    gemm = Gemm.parse("1..40x17x19:f16:nt")
    (home / "ranged").write_bytes(packed(gemm))
    assert "launches     rows on m x 1 x 1 blocks" in run("show", "ranged")[1]
    m = expr.M
    assert expr.text((expr.ceildiv(m + 3, 128) - 1) * 4) == "(ceildiv(m + 3, 128) - 1) * 4"
    assert expr.text(expr.minimum(m % 8, 7)) == "min(m % 8, 7)"
    assert expr.text(12) == "12"


def test_a_set_is_shown_with_its_table_and_every_file(run: Run, home: Path) -> None:
    gemm = Gemm.parse("1..40x17x19:f32:nt")
    members = (MemberTiming("1..8", "sample", "sample(rows=1)", "0" * 16, "a" * 64, 12.5),)
    (home / "set").write_bytes(packed_set(gemm, (8, 40), timings=Timings(members=members)))
    shown = run("show", "set")[1]
    assert "1..8  aaaaaaaaaaaaaaaa  sample(rows=1)                12.50" in shown
    assert "problem      1..40x17x19:f32:nt" in shown
    document = json.loads(run("show", "set", "--json")[1])
    files = [member["name"] for member in document["members"]]
    assert files == [f"{number}.{name}" for number in (0, 1) for name in ("kernel.so", "kernel.ll", "module.py")]
    assert document["manifest"]["format"] == 3


def test_a_set_whose_sources_are_one_member_is_shown_with_each_of_them(run: Run, home: Path) -> None:
    gemm = Gemm.parse("1..60x17x19:f32:nt")
    (home / "large").write_bytes(packed_set(gemm, (*range(1, 50), 60)))
    document = json.loads(run("show", "large", "--json")[1])
    assert document["manifest"]["format"] == 7
    files = [member["name"] for member in document["members"]]
    assert files == [f"{number}.{name}" for number in range(50) for name in ("kernel.so", "kernel.ll", "module.py")]
    ((size, digest),) = {(each["bytes"], each["sha256"]) for each in document["members"] if "module" in each["name"]}
    assert (size, digest) == (len(b"# text\n"), hashlib.sha256(b"# text\n").hexdigest())
    assert run("show", "large", "--script")[1] == "# text\n"
