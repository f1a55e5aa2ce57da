"""Kernel sets: kernels over ranges of m in one signed artifact, and the choice among them at a call."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tests.helpers.artifact_samples import (
    SIGNER,
    TRUST,
    contents,
    cpu,
    fake_cubin,
    operands,
    packed_set,
    rows_binary,
    rows_launch,
)
from tests.helpers.packing_kernel import packing_set
from tirgemm.artifact import export, load, read
from tirgemm.artifact import manifest as manifests
from tirgemm.artifact import package as packages
from tirgemm.errors import CallError, CallTypeError, CorruptArtifact, InvalidRequest
from tirgemm.expr import Dim, M, minimum
from tirgemm.gemm import Gemm, Range
from tirgemm.hardware import named_device
from tirgemm.launch import KernelLaunch, Launch, TensorMap, tensor_args
from tirgemm.tuning.kernel_set.partition import MOST_KERNELS

GEMM = Gemm(Range(1, 64), 9, 5, dtype="f32", align=4)
HIGHS = (1, 17, 64)
TESTS = [{"name": "exact", "passed": True}]


def marked(gemm: Gemm, high: int) -> dict[str, Any]:
    """A member whose machine code is of the transposed B: what it computes shows that it ran."""
    other = gemm.with_(m=Range(18, high), layout="nn")
    return {"binary": rows_binary(other), "launch": rows_launch(other.with_(layout="nt"))}


def edited(change: Callable[[dict[str, Any]], None]) -> bytes:
    """A set with its manifest changed and signed again."""
    with zipfile.ZipFile(io.BytesIO(packed_set(GEMM, HIGHS))) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(files["manifest.json"])
    change(manifest)
    document = json.dumps(manifest, indent=1).encode() + b"\n"
    signature = packages._signature(SIGNER.public, SIGNER.sign(document))
    return packages._write(files | {"manifest.json": document, "signature.json": signature})


@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_every_m_of_the_range_is_computed_by_the_kernel_of_its_range(layout: str) -> None:
    gemm = GEMM.with_(layout=layout)
    kernel = load(packed_set(gemm, HIGHS), trust=TRUST)
    assert (kernel.gemm, kernel.manifest.launch) == (gemm, rows_launch(gemm.with_(m=Range(18, 64))))
    for m in (1, 2, 16, 17, 18, 64):
        arrays, product = operands(gemm, m)
        np.testing.assert_array_equal(kernel(**arrays), product)
        served = kernel.member(m)
        assert served.gemm.m_min <= m <= served.gemm.m_max
        assert served.config["rows"] == 1 + (m > 1) + (m > 17)


def test_a_call_runs_the_kernel_that_the_table_names() -> None:
    kernel = load(packed_set(GEMM, HIGHS, members={2: marked(GEMM, 64)}), trust=TRUST)
    for m in range(1, 65):
        arrays, product = operands(GEMM, m)
        right = np.array_equal(kernel(**arrays), product)
        assert right == (m <= 17), m


@pytest.mark.torch
def test_pytorch_tensors_come_in_by_dlpack_as_for_a_single_kernel() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed here")
    kernel = load(packed_set(GEMM, HIGHS), trust=TRUST)
    for m in (1, 17, 18):
        a, b = torch.ones(m, 5), torch.ones(9, 5)
        assert torch.equal(kernel(a, b), a @ b.t())


def test_batches_and_operands_that_occur_are_those_of_the_problem() -> None:
    gemm = Gemm.parse("2..33x7x11:f16:nn:batch=3:alpha:beta:bias:align=2")
    kernel = load(packed_set(gemm, (8, 33)), trust=TRUST)
    for m in (2, 8, 9, 33):
        arrays, product = operands(gemm, m)
        expected = 0.5 * product - 2.0 * arrays["c"].astype(np.float64) + arrays["bias"].astype(np.float64)
        np.testing.assert_array_equal(kernel(**arrays, alpha=0.5, beta=-2.0).astype(np.float64), expected)


def test_an_m_out_of_range_is_refused_as_of_a_single_kernel() -> None:
    kernel = load(packed_set(GEMM, HIGHS), trust=TRUST)
    b = np.ones((9, 5), np.float32)
    for m in (0, 65):
        words = rf"a has shape \({m}, 5\), so that m is {m}; this kernel takes m from 1 to 64"
        with pytest.raises(CallError, match=words):
            kernel(np.ones((m, 5), np.float32), b)
        with pytest.raises(CallError, match=words):
            kernel.raw(np.ones((m, 5), np.float32), b, np.ones((m, 9), np.float32))
        with pytest.raises(InvalidRequest, match=f"m is {m}; this kernel takes m from 1 to 64"):
            kernel.member(m)
    for odd in ("x", 1.5, None, 2**70, np.float64(2)):
        with pytest.raises(InvalidRequest, match=rf"m is {re.escape(repr(odd))}; this kernel takes m from 1 to 64"):
            kernel.member(cast(Any, odd))
    assert kernel.member(cast(Any, np.int32(17))).gemm.m == Range(2, 17)
    with pytest.raises(CallError, match=r"b has shape \(5, 9\); it must be \(9, 5\)"):
        kernel(np.ones((20, 5), np.float32), b.T)
    with pytest.raises(CallError, match=r"a has shape \(5,\); it must be \(1, 5\)"):
        kernel.raw(b[0], b, b)
    with pytest.raises(CallTypeError, match=r"takes 3 arguments \(a, b, out\), not 0"):
        kernel.raw()
    with pytest.raises(CallTypeError, match="a must be a tensor"):
        kernel.raw(1, b, b)


@pytest.mark.parametrize(
    "shape", [(5,), (17, 5), (1, 5), (3, 4, 5), (2, 1, 3, 5), (1, 1, 5), (2, 3, 1, 5), (0, 3, 5)], ids=str
)
def test_rows_of_any_dimensions_are_taken_as_one(shape: tuple[int, ...]) -> None:
    rows = load(packed_set(GEMM, HIGHS), trust=TRUST).functions.call_rows
    a = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    b, out = np.arange(45, dtype=np.float32).reshape(9, 5), np.full((*shape[:-1], 9), np.nan, np.float32)
    if 0 in shape:
        with pytest.raises(CallError, match="so that m is 0"):
            rows(a, b, out)
    else:
        rows(a, b, out)
        assert np.array_equal(out, a @ b.T)


def test_rows_that_do_not_follow_one_another_are_refused() -> None:
    rows = load(packed_set(GEMM, HIGHS), trust=TRUST).functions.call_rows
    wide, b, out = np.zeros((4, 6, 5), np.float32), np.ones((9, 5), np.float32), np.empty((2, 3, 9), np.float32)
    for a in (
        wide[:2, :3],
        wide[::2, ::2],
        np.lib.stride_tricks.as_strided(wide, (2, 3, 5), (0, 0, 4)),
        wide.transpose(1, 0, 2)[:2, :3],
    ):
        with pytest.raises(CallError):
            rows(a, b, out)
    with pytest.raises(CallError, match=r"out has shape \(6, 8\); it must be \(6, 9\)"):
        rows(np.zeros((2, 3, 5), np.float32), b, out[..., :8].copy())
    with pytest.raises(CallError, match=r"a has strides"):
        rows(wide[:2, ::2], b, out)
    with pytest.raises(CallTypeError, match=r"takes 3 arguments \(a, b, out\), not 2"):
        rows(wide, b)
    with pytest.raises(CallTypeError, match="a must be a tensor"):
        rows(1, b, out)


def test_each_kernel_of_a_set_packs_its_own_operand() -> None:
    functions = packing_set(str(GEMM), HIGHS, plain=2).functions
    a, b = np.arange(85, dtype=np.float32).reshape(17, 5), np.ones((9, 5), np.float32)
    sizes = [functions.packed_bytes(member) for member in range(3)]
    assert sizes == [4 * 9 * 5, 4 * 9 * 5, 0]
    for m in (1, 2, 17):
        whole, out = np.zeros(sizes[0] + 64, np.uint8), np.empty((m, 9), np.float32)
        data = whole[-whole.__array_interface__["data"][0] % 64 :][: sizes[0]]
        functions.pack(b, data, functions.member(m))
        functions.call_packed(a[:m], np.zeros_like(b), out, data)
        assert np.array_equal(out, a[:m] @ b.T)
    with pytest.raises(CallError, match="this kernel does not pack B by itself"):
        functions.pack(b, data, 2)
    for index in (-1, 3):
        with pytest.raises(CallError, match=f"there is no kernel {index} among the 3 of this artifact"):
            functions.packed_bytes(index)


def test_a_set_is_written_and_read_byte_for_byte() -> None:
    data = packed_set(GEMM, HIGHS, regime="sustained", role="tuned")
    assert data == packed_set(GEMM, HIGHS, regime="sustained", role="tuned")
    package = read(data, TRUST)
    manifest = package.manifest
    assert manifest.to_json()["format"] == 3
    assert [str(member.gemm.m) for member in manifest.members] == ["1", "2..17", "18..64"]
    assert (manifest.gemm, manifest.device, manifest.regime, manifest.role) == (GEMM, cpu(), "sustained", "tuned")
    assert package.binaries == tuple(rows_binary(member.gemm) for member in manifest.members)
    assert package.sources == {"kernel.ll": "; text\n", "module.py": "# text\n"}
    alone = read(packages.pack(contents(GEMM.with_(m=1), config=manifest.members[0].config), SIGNER), TRUST).manifest
    assert alone.to_json()["format"] == 2  # which an older tirgemm reads
    assert alone.kernel_sha256 == manifest.members[0].kernel_sha256


def test_a_set_that_an_older_reader_does_not_know_has_a_newer_format() -> None:
    eight = packed_set(GEMM, (1, 2, 3, 4, 5, 6, 7, 64))
    nine = read(packed_set(GEMM, (1, 2, 3, 4, 5, 6, 7, 8, 64)), TRUST).manifest
    assert (read(eight, TRUST).manifest.data["format"], nine.data["format"]) == (3, 5)
    assert len(nine.members) == 9
    many = [read(packed_set(GEMM, (*range(1, count), 64)), TRUST).manifest for count in (24, 25, 42, 43, MOST_KERNELS)]
    assert [manifest.data["format"] for manifest in many] == [5, 6, 6, 7, 7]

    def format_of(side: Dim) -> int:
        box = TensorMap("a", "f32", (GEMM.k, M), (20,), (8, side), (1, 1))
        about = {"device": named_device("sm_90a"), "binary": fake_cubin(), "binary_format": "cubin"}
        members = {
            number: about | {"launch": Launch(tensor_args(part), (), (KernelLaunch("main", (box,)),))}
            for number, part in enumerate((GEMM.with_(m=Range(1, 1)), GEMM.with_(m=Range(2, 64))))
        }
        return int(read(packed_set(GEMM, (1, 64), members=members), TRUST).manifest.data["format"])

    assert (format_of(64), format_of(minimum(64, M))) == (3, 5)


def test_each_kernel_needs_a_certificate_of_its_own() -> None:
    hashes = [member.kernel_sha256 for member in read(packed_set(GEMM, HIGHS), TRUST).manifest.members]

    def fault(*evidence: dict[str, Any] | None) -> str:
        members = {number: {"certificate": one} for number, one in enumerate(evidence)}
        return read(packed_set(GEMM, HIGHS, members=members), TRUST).manifest.certificate_fault

    good = [{"kernel_sha256": sha256, "passed": True, "tests": TESTS} for sha256 in hashes]
    assert fault(*good) == ""
    assert "of its kernel for m = 2..17: it holds no certificate" in fault(good[0], None, good[2])
    assert "of its kernel for m = 18..64: its certificate is of another kernel" in fault(good[0], good[1], good[1])
    failed = good[0] | {"tests": [*TESTS, {"name": "normal", "passed": False}]}
    assert "of its kernel for m = 1: its certificate did not pass" in fault(failed, good[1], good[2])
    joined = read(packed_set(GEMM, HIGHS, members={i: {"certificate": c} for i, c in enumerate(good)}), TRUST).manifest
    assert joined.certificate == {"kernel_sha256": joined.kernel_sha256, "passed": True, "tests": TESTS * 3}


def test_a_set_of_as_many_kernels_as_tuning_makes_is_a_file_that_older_readers_tell_is_newer() -> None:
    """They take at most 128 members; more they call damaged."""
    texts = dict.fromkeys(("kernel.cu", "module.py"), "text\n")
    highs = (*range(1, MOST_KERNELS), 64)
    data = packed_set(GEMM, highs, members={i: {"sources": texts} for i in range(len(highs))})
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert len(archive.namelist()) <= 128


def test_a_set_may_have_as_many_kernels_as_it_says_each_with_four_sources() -> None:
    highs = (*range(1, manifests.MAX_KERNELS), 64)
    texts = dict.fromkeys(("kernel.cu", "kernel.ptx", "module.py", "more.txt"), "text\n")
    data = packed_set(GEMM, highs, members={i: {"sources": texts} for i in range(len(highs))})
    assert len(read(data, TRUST).manifest.members) == manifests.MAX_KERNELS


@pytest.mark.parametrize(
    ("highs", "words"),
    [
        ((64,), f"a set has 2 to {manifests.MAX_KERNELS} kernels, not 1"),
        ((1, 17, 63), "the last kernel ends at m = 63, the problem at 64"),
    ],
)
def test_kernels_that_are_no_set_of_the_problem_are_not_packed(highs: tuple[int, ...], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        packed_set(GEMM, highs)


def test_a_set_of_more_kernels_than_the_launcher_takes_is_not_packed() -> None:
    words = f"a set has 2 to {manifests.MAX_KERNELS} kernels, not {1 + manifests.MAX_KERNELS}"
    with pytest.raises(InvalidRequest, match=words):
        packed_set(GEMM.with_(m=Range(1, 65)), tuple(range(1, 66)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m["members"].pop(1), "is where that of .* from m = 2 on should be"),
        (lambda m: m["members"].reverse(), "from m = 1 on should be"),
        (lambda m: m["gemm"].update(n=8), "from m = 1 on should be"),
        (lambda m: m.update(kernel_sha256="0" * 64), "is not the hash of its kernels"),
        (lambda m: m["members"][1].update(kernel_sha256="0" * 64), "is not the hash of its kernel"),
        (lambda m: m["members"][1].update(role="tuned"), "the fields of a member are"),
        (lambda m: m.update(members={}), "members are not a list"),
        (lambda m: m.pop("gemm"), "its fields are"),
        (lambda m: m.update(format=2), "its fields are"),
    ],
)
def test_a_damaged_table_is_refused(change: Callable[[dict[str, Any]], None], words: str) -> None:
    with pytest.raises(CorruptArtifact, match=words):
        read(edited(change), TRUST)


def test_kernels_for_different_devices_are_refused() -> None:
    other = cpu().with_(model="Another CPU")
    with pytest.raises(CorruptArtifact, match="for different devices"):
        read(packed_set(GEMM, HIGHS, members={1: {"device": other}}), TRUST)


def test_the_launcher_refuses_ranges_with_a_gap() -> None:
    from tirgemm.artifact import native

    manifest = read(packed_set(GEMM, HIGHS), TRUST).manifest
    kernels = [manifests.canonical(member.data["kernel"]).decode() for member in manifest.members]
    binaries = [rows_binary(member.gemm) for member in manifest.members]
    with pytest.raises(CorruptArtifact, match="a kernel for m from 18 to 64 follows one for m from 1 to 1"):
        native.load(binaries[::2], kernels[::2])
    with pytest.raises(CorruptArtifact, match="3 kernels with 2 binaries"):
        native.load(binaries[:2], kernels)


USE = """
import sys, numpy as np, tvm_ffi
main = tvm_ffi.load_module(sys.argv[1])["main"]
for m in (1, 2, 17, 18, 64):
    out = np.zeros((m, 9), np.float32)
    main(np.ones((m, 5), np.float32), np.ones((9, 5), np.float32), out)
    assert (out == 5).all(), m
try:
    main(np.ones((65, 5), np.float32), np.ones((9, 5), np.float32), np.zeros((65, 9), np.float32))
except ValueError as error:
    print(error)
"""


def test_an_exported_set_chooses_without_this_package(tmp_path: Path) -> None:
    path = export(packed_set(GEMM, HIGHS), tmp_path / "gemm.so", TRUST)
    done = subprocess.run(
        [sys.executable, "-P", "-c", USE, str(path)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "so that m is 65; this kernel takes m from 1 to 64" in done.stdout
