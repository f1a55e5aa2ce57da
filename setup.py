"""Builds the native launcher at installation; everything else is in pyproject.toml."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

NATIVE = Path("tirgemm/artifact/native")
LAUNCHER = "tirgemm.artifact._launcher"


def launcher_builder() -> Any:
    """``tirgemm/artifact/build.py`` by its path: the package itself is not importable while it is being built."""
    spec = importlib.util.spec_from_file_location("launcher_builder", NATIVE.parent / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BuildLauncher(build_ext):
    """A plain shared library: no Python in it, so that its name carries no Python version."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:  # noqa: ARG002 (setuptools' signature)
        return []

    def build_extension(self, ext: Extension) -> None:
        launcher_builder().compile_launcher(Path(self.get_ext_fullpath(ext.name)).resolve())

    def copy_file(self, infile: Any, outfile: Any, *details: Any, **options: Any) -> Any:
        """Beside its place and moved there: where one environment is made, tests of another may be loading it."""
        beside = f"{outfile}.{os.getpid()}"
        copied = super().copy_file(infile, beside, *details, **options)
        Path(beside).replace(outfile)
        return copied


class PlatformWheel(bdist_wheel):
    """One wheel for every Python 3 on a platform: every Linux whose glibc is new enough for the launcher."""

    def run(self) -> None:
        """Without what an earlier build left, of which the source may have lost files."""
        built = any(self.distribution.have_run.get(each) for each in ("build", "build_py", "build_ext"))
        if not (built or self.skip_build):
            shutil.rmtree(self.get_finalized_command("build").build_lib, ignore_errors=True)
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        platform: str = super().get_tag()[2]
        library = Path(self.get_finalized_command("build_ext").get_ext_fullpath(LAUNCHER))
        if platform.startswith("linux_") and library.exists():  # an editable wheel is asked before it is built
            platform = platform.replace("linux", launcher_builder().manylinux_tag(library) or "linux", 1)
        return "py3", "none", platform


setup(
    ext_modules=[
        Extension(
            LAUNCHER,
            sources=sorted(str(path) for path in NATIVE.glob("*.cc")),
            depends=sorted(str(path) for path in NATIVE.glob("*.h")),
            language="c++",
        )
    ],
    cmdclass={"build_ext": BuildLauncher, "bdist_wheel": PlatformWheel},
)
