"""The built launcher shows nothing but its entries, and a build that cannot be says what is missing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tirgemm.artifact import build, native

ROOT = Path(__file__).parent.parent.parent


def nm(*options: str) -> list[str]:
    done = subprocess.run(["nm", "-D", *options, str(native.LIBRARY)], capture_output=True, text=True, check=True)
    return [line.split()[-1] for line in done.stdout.splitlines()]


def test_the_launcher_exports_its_entries_and_nothing_else() -> None:
    entries = {"load", "reinterpret", "cuda_architectures", "arch_runs_on", "host_threads", "main", "manifest"}
    of_python = ("set_torch", "set_mode_checks", "call_into", "call_new", "keep", "forget", "forget_all", "kept_call")
    entries |= {f"tirgemm_{name}" for name in (*of_python, "callable_class")}
    functions = {name for name in nm("--defined-only") if not name.startswith("__tvm_ffi__metadata_")}
    own = {name for name in functions if "_ZN7tirgemm" in name or not name.startswith(("_Z", "__tvm_ffi__"))}
    assert {name.removeprefix("__tvm_ffi_") for name in own} == entries


def test_the_launcher_links_neither_cuda_nor_tvm_nor_python() -> None:
    done = subprocess.run(["readelf", "-d", str(native.LIBRARY)], capture_output=True, text=True, check=True)
    needed = set(re.findall(r"NEEDED.*\[(.+?)\]", done.stdout))
    assert "libtvm_ffi.so" in needed
    assert not [name for name in needed if re.search(r"cuda|tvm_(runtime|compiler)|libtvm\.so|python", name)]
    assert "RPATH" not in done.stdout
    assert "RUNPATH" not in done.stdout


def test_the_launcher_holds_no_path_of_the_machine_that_built_it() -> None:
    from tvm_ffi import libinfo

    data = native.LIBRARY.read_bytes()
    for folder in (libinfo.find_include_path(), str(build.SOURCES)):
        assert folder.encode() not in data


@pytest.mark.timing
def test_the_interpreters_lock_is_free_while_a_kernel_runs() -> None:
    import threading
    import time

    from tests.helpers.artifact_samples import raw_kernel, shared_object
    from tirgemm.gemm import Gemm
    from tirgemm.launch import KernelLaunch, Launch, Pointer, tensor_args

    np = pytest.importorskip("numpy")
    gemm = Gemm(2, 2, 2, dtype="f32", align=4)
    launch = Launch(tensor_args(gemm), (), (KernelLaunch("nap", (Pointer("d"),)),))
    function = raw_kernel(gemm, launch, shared_object("KERNEL(nap) { usleep(400000); return 0; }"))
    zeros = [np.zeros((2, 2), np.float32) for _ in range(3)]
    thread = threading.Thread(target=function, args=zeros)
    thread.start()
    start, turns = time.monotonic(), 0
    while thread.is_alive():
        time.sleep(0.01)
        turns += 1
    assert turns > 5, f"{turns} turns in {time.monotonic() - start:.2f} s"


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(build.LauncherBuildError, match=r"no-such-compiler is not installed.*apt-get install g\+\+"):
        build.compile_launcher(tmp_path / "_launcher.so")


def test_a_failed_build_shows_the_compilers_words_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CXXFLAGS", "-no-such-flag")
    with pytest.raises(build.LauncherBuildError, match="-no-such-flag"):
        build.compile_launcher(tmp_path / "_launcher.so")
    assert not list(tmp_path.iterdir())


def test_setup_builds_the_launcher_where_the_package_looks_for_it() -> None:
    code = (
        "from setuptools import Distribution; import setuptools; setuptools.setup = lambda **options: "
        "found.update(options);"
        "found = {}; exec(open('setup.py').read());"
        "command = found['cmdclass']['build_ext'](Distribution());"
        "print(command.get_ext_filename(found['ext_modules'][0].name), len(found['ext_modules'][0].sources))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    name, count = done.stdout.split()
    assert ROOT / name == native.LIBRARY
    assert int(count) == len(list(build.SOURCES.glob("*.cc")))
