"""The single-file export runs where there is nothing but tvm_ffi."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.artifact_samples import TRUST, packed
from tests.waiting import PATIENCE_S
from tirgemm.artifact import Signer, Trust, export, load, native
from tirgemm.errors import InvalidRequest, MissingExtra, UntrustedArtifact
from tirgemm.gemm import Gemm, Range

GEMM = Gemm(Range(1, 7), 9, 5, dtype="f32", align=4, alpha=True)

USE = """
import sys, numpy as np, tvm_ffi
module = tvm_ffi.load_module(sys.argv[1])
main = module["main"]
a, b, out = np.ones((4, 5), np.float32), np.ones((9, 5), np.float32), np.zeros((4, 9), np.float32)
main(a, b, out, 2.0)
assert (out == 10).all()
for wrong, error in (((a, b, out), TypeError), ((a, b[:3], out, 1.0), ValueError), ((a, b, out, "x"), TypeError)):
    try:
        main(*wrong)
    except error as raised:
        assert type(raised) is error, type(raised)
        print(raised)
    else:
        raise AssertionError(wrong)
assert not [name for name in sys.modules if name.split(".")[0] in ("tirgemm", "tvm")]
print(module["manifest"]())
"""


def run(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", USE, str(path)], capture_output=True, text=True, check=False, cwd=path.parent
    )


def test_an_export_runs_and_checks_its_arguments_without_this_package(tmp_path: Path) -> None:
    source = tmp_path / "kernel.tirgemm"
    source.write_bytes(packed(GEMM))
    path = export(source, tmp_path / "gemm.so", TRUST)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["gemm.so", "kernel.tirgemm"]
    source.unlink()
    done = run(path)
    assert done.returncode == 0, done.stderr
    count, shape, scalar, *manifest = done.stdout.split("\n", 3)
    assert "takes 4 arguments (a, b, out, alpha), not 3" in count
    assert "b has shape (3, 5); it must be (9, 5)" in shape
    assert "alpha must be a number" in scalar
    assert json.loads(manifest[0])["kernel"]["gemm"]["m"] == "1..7"


def test_an_untrusted_artifact_is_not_exported(tmp_path: Path) -> None:
    with pytest.raises(UntrustedArtifact):
        export(packed(GEMM), tmp_path / "gemm.so", Trust.of(Signer.generate().public))
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"absent/gemm\.so cannot be written"):
        export(packed(GEMM), tmp_path / "absent" / "gemm.so", TRUST)
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequest, match=r"file/gemm\.so cannot be written: Not a directory"):
        export(packed(GEMM), tmp_path / "file" / "gemm.so", TRUST)
    with pytest.raises(InvalidRequest, match=r"cannot be written: File name too long"):
        export(packed(GEMM), tmp_path / ("long" * 64), TRUST)


@pytest.mark.parametrize("folder", ["", ".", "/"])
def test_a_folder_is_no_place_for_a_kernel(folder: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be written: Is a directory"):
        export(packed(GEMM), folder, TRUST)
    with pytest.raises(InvalidRequest, match="cannot be written: Is a directory"):
        load(packed(GEMM), trust=TRUST).save(folder)


def test_an_export_into_a_fifo_does_not_replace_it(tmp_path: Path) -> None:
    fifo, received = tmp_path / "gemm.so", []
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: received.append(fifo.read_bytes()), daemon=True)
    reader.start()
    assert export(packed(GEMM), fifo, TRUST) == fifo
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    reader.join(PATIENCE_S)
    assert received == [export(packed(GEMM), tmp_path / "file.so", TRUST).read_bytes()]


def test_a_truncated_export_says_so(tmp_path: Path) -> None:
    path = export(packed(GEMM), tmp_path / "gemm.so", TRUST)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    done = run(path)
    assert done.returncode == 1
    assert "no kernel is attached" in done.stderr
    # A size that reaches past the beginning of the file.
    path.write_bytes(whole[:-32] + (10**9).to_bytes(8, "little") + whole[-24:])
    assert "is truncated" in run(path).stderr
    for place in (-32, -24, -16):  # of the binary, the number of binaries, the manifest
        path.write_bytes(whole[:place] + (2**63).to_bytes(8, "little") + whole[place + 8 :])
        assert "an impossible size" in run(path).stderr


def test_the_launcher_alone_has_no_kernel(tmp_path: Path) -> None:
    path = tmp_path / "copy.so"
    shutil.copy(native.LIBRARY, path)
    assert "no kernel is attached" in run(path).stderr


def test_a_missing_launcher_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "LIBRARY", tmp_path / "absent.so")
    with pytest.raises(MissingExtra, match=r"tirgemm\.artifact\.build"):
        export(packed(GEMM), tmp_path / "gemm.so", TRUST)


def test_an_export_loaded_by_a_relative_path_stays_what_it_is_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tvm_ffi

    other = Gemm(7, 9, 6, dtype="f32", align=4)
    for folder, gemm in (("one", Gemm(7, 9, 5, dtype="f32", align=4)), ("two", other)):
        (tmp_path / folder).mkdir()
        export(packed(gemm), tmp_path / folder / "gemm.so", TRUST)
    monkeypatch.chdir(tmp_path / "one")
    module = tvm_ffi.load_module("./gemm.so")
    monkeypatch.chdir(tmp_path / "two")
    a, b, out = np.ones((7, 5), np.float32), np.ones((9, 5), np.float32), np.zeros((7, 9), np.float32)
    module["main"](a, b, out)
    assert (out == 5).all()
    assert json.loads(module["manifest"]())["kernel"]["gemm"]["k"] == 5


def test_a_loaded_export_stays_what_it_is_where_its_file_is_replaced_or_deleted(tmp_path: Path) -> None:
    import tvm_ffi

    path, (transposed, plain) = tmp_path / "gemm.so", (Gemm.parse(f"5x5x5:f32:{layout}") for layout in ("nt", "nn"))
    module = tvm_ffi.load_module(str(export(packed(transposed), path, TRUST)))
    export(packed(plain), path, TRUST)
    a, b, out = np.eye(5, dtype=np.float32), np.arange(25, dtype=np.float32).reshape(5, 5), np.zeros((5, 5), np.float32)
    module["main"](a, b, out)
    np.testing.assert_array_equal(out, b.T)
    path.unlink()
    assert Gemm.from_json(json.loads(module["manifest"]())["kernel"]["gemm"]) == transposed


def test_an_export_and_the_package_live_in_one_process(tmp_path: Path) -> None:
    import tvm_ffi

    from tests.helpers.artifact_samples import kernel

    exported = tvm_ffi.load_module(str(export(packed(GEMM), tmp_path / "gemm.so", TRUST)))["main"]
    a, b = np.ones((7, 5), np.float32), np.ones((9, 5), np.float32)
    one, two = np.zeros((7, 9), np.float32), np.zeros((7, 9), np.float32)
    exported(a, b, one, 3.0)
    kernel(GEMM)(a, b, out=two, alpha=3.0)
    np.testing.assert_array_equal(one, two)
    with pytest.raises(ValueError, match="b has shape") as actual:
        exported(a, a, one, 1.0)
    assert type(actual.value) is ValueError
