"""``call``, ``verify`` and ``export``: artifacts called, checked and made a library."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.main.cli_artifacts import RANGED, SHAPE, artifact
from tests.helpers.artifact_samples import (
    ROWS,
    SIGNER,
    certified,
    fake_cubin,
    operands,
    packed_set,
    rows_binary,
    shared_object,
)
from tests.helpers.command_line import Run
from tirgemm import Gemm
from tirgemm.artifact import Signer, Trust, read
from tirgemm.detect import device


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
    for name, extent in (("huge", 10**15), ("huger", 10**30)):
        with (home / f"{name}.npy").open("wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (extent,)})
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
        (("--a", "huge.npy"), "huge.npy is not a .npy array of numbers, or damaged"),
        (("--a", "huger.npy"), "huger.npy is not a .npy array of numbers, or damaged"),
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
    code, out, _ = run("verify", path, "--json")
    document = json.loads(out)
    ran = document["checks"][-1]
    assert (code, document["passed"], ran["check"], ran["result"]) == (1, False, "run here", "failed")
    assert f"run here failed ({ran['detail']})" in document["error"]["message"]


@pytest.mark.usefixtures("trusted")
def test_verify_runs_every_kernel_of_a_set(run: Run, home: Path) -> None:
    gemm = Gemm.parse("1..7x9x5:f32:nn")
    for wrong in range(3):
        # That of the transposed B reads its operand as if it were (9, 5).
        members = {wrong: {"binary": rows_binary(Gemm.parse("1..7x9x5:f32:nt"))}}
        (home / "set.tirgemm").write_bytes(packed_set(gemm, (2, 5, 7), members=members))
        ran = json.loads(run("verify", "set.tirgemm", "--json")[1])["checks"][-1]
        assert (ran["check"], ran["result"]) == ("run here", "failed")
        assert ran["detail"].endswith(f" of its bound at m = {(2, 5, 7)[wrong]}, the largest of 3 kernels")
    (home / "set.tirgemm").write_bytes(packed_set(gemm, (2, 5, 7)))
    ran = json.loads(run("verify", "set.tirgemm", "--json")[1])["checks"][-1]
    assert (ran["result"], "the largest of 3 kernels" in ran["detail"]) == ("passed", True)


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
    document = json.loads(out)
    checks = {check["check"]: (check["result"], check["detail"]) for check in document["checks"]}
    assert document["passed"] is False
    assert checks["signature and hashes"] == ("passed", read(gpu.read_bytes(), Trust.of(SIGNER.public)).sha256)
    assert checks["certificate"][0] == "absent"
    assert f"certificate absent ({checks['certificate'][1]})" in document["error"]["message"]


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
def test_export_does_not_write_over_the_artifact(run: Run, home: Path) -> None:
    path = artifact(home)
    before = path.read_bytes()
    (home / "link").symlink_to(path)
    code, _, err = run("export", path, home / "link")
    assert (code, "which is the artifact itself" in err, path.read_bytes()) == (2, True, before)
    (home / "loop").symlink_to(home / "loop")
    code, _, err = run("export", home / "loop", home / "k.so")
    assert (code, "internal" in err, "loop" in err) == (2, False, True)


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
