"""Compile the native launcher by hand: ``python -m tirgemm.artifact.build``.

``setup.py`` loads this file by its path and calls ``compile_launcher`` and ``manylinux_tag``: there is one way to
compile the launcher, and it needs a C++17 compiler and apache-tvm-ffi, nothing of CUDA and nothing else of this
package.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent / "native"
LIBRARY = Path(__file__).parent / "_launcher.so"

_COMPILE = ("-std=c++17", "-O2", "-Wall", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-pthread")
# nodelete: worker threads sleep in the library until the process ends.
_LINK = ("-shared", "-s", "-pthread", "-ltvm_ffi", "-ldl", "-Wl,-z,nodelete,-z,defs,-z,now")


# What distributions with a glibc of 2.MINOR are sure to have beside it, by the manylinux policies of auditwheel 6.
_POLICIES = {
    17: {"GLIBCXX": (3, 4, 19), "CXXABI": (1, 3, 7), "GCC": (4, 8, 0)},
    24: {"GLIBCXX": (3, 4, 22), "CXXABI": (1, 3, 10), "GCC": (4, 8, 0)},
    27: {"GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)},
    31: {"GLIBCXX": (3, 4, 28), "CXXABI": (1, 3, 12), "GCC": (7, 0, 0)},
    34: {"GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (7, 0, 0)},
    35: {"GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)},
    39: {"GLIBCXX": (3, 4, 33), "CXXABI": (1, 3, 15), "GCC": (14, 0, 0)},
}
_SYSTEM_LIBRARIES = {
    "libc",
    "libm",
    "libdl",
    "librt",
    "libpthread",
    "libstdc++",
    "libgcc_s",
    "ld-linux-x86-64",
    "ld-linux-aarch64",
}


class LauncherBuildError(RuntimeError):
    """The launcher could not be compiled; the text holds the compiler's words or the missing tool."""


def compile_launcher(target: Path = LIBRARY) -> Path:
    """Compile ``native/*.cc`` to the shared library ``target`` and return it. ``CXX`` and ``CXXFLAGS`` are honoured."""
    default = next((name for name in ("g++", "c++", "clang++") if shutil.which(name)), "g++")
    compiler = shlex.split(os.environ.get("CXX", "")) or [default]
    if shutil.which(compiler[0]) is None:
        raise LauncherBuildError(
            f"{compiler[0]} is not installed; the launcher needs a C++17 compiler: apt-get install g++"
        )
    try:
        from tvm_ffi import libinfo
    except ImportError as error:
        raise LauncherBuildError("apache-tvm-ffi is not installed: pip install apache-tvm-ffi") from error
    includes = dict.fromkeys((libinfo.find_include_path(), libinfo.find_dlpack_include_path()))
    # Error texts hold file names: without the folders of the machine that built them.
    prefixes = (f"-ffile-prefix-map={path}=." for path in (*includes, SOURCES))
    flags = [*_COMPILE, *(f"-I{path}" for path in includes), *prefixes, *shlex.split(os.environ.get("CXXFLAGS", ""))]
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tirgemm-build-") as folder:
        # One translation unit of all sources: the headers are most of it, and are read once.
        unit, compiled = Path(folder, "launcher.cc"), Path(folder, "launcher.o")
        unit.write_text("".join(f'#include "{source.name}"\n' for source in sorted(SOURCES.glob("*.cc"))))
        _run([*compiler, *flags, f"-I{SOURCES}", "-c", str(unit), "-o", str(compiled)])
        library_dir = Path(libinfo.find_libtvm_ffi()).parent
        # Linked beside its place and moved there: a process that has the old library mapped keeps it.
        built = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            _run([*compiler, str(compiled), "-o", str(built), f"-L{library_dir}", *_LINK])
            built.replace(target)
        finally:
            built.unlink(missing_ok=True)
    return target


def manylinux_tag(library: Path = LIBRARY) -> str | None:
    """``manylinux_2_N`` for the oldest glibc that ``library`` loads with, by the symbol versions it needs.

    libtvm_ffi comes with apache-tvm-ffi, which the package requires. None where ``library`` is not for glibc, or needs
    what no policy promises.
    """
    headers = _run(["objdump", "--private-headers", str(library)])
    libraries = {name.split(".so")[0] for name in re.findall(r"NEEDED +(\S+)", headers)}
    needed: dict[str, tuple[int, ...]] = {}
    for name, version in re.findall(r"^ +0x\w+ 0x\w+ \d+ ([A-Z]+)_([\d.]+)$", headers, re.MULTILINE):
        needed[name] = max(needed.get(name, ()), tuple(int(part) for part in version.split(".")))
    glibc = needed.pop("GLIBC", None)
    if glibc is None or libraries - _SYSTEM_LIBRARIES - {"libtvm_ffi"}:
        return None
    for minor, promised in _POLICIES.items():
        if all(version <= promised.get(name, ()) for name, version in needed.items()):
            return f"manylinux_2_{max(minor, glibc[1])}"
    return None


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LauncherBuildError(f"{shlex.join(command[:1])} failed on the launcher:\n{done.stderr.strip()}")
    return done.stdout


def main() -> None:
    print(compile_launcher())


if __name__ == "__main__":
    main()
