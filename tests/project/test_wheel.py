"""The wheel, built of what the Dockerfile copies and installed outside the repository: what is in it and what works."""

from __future__ import annotations

import fnmatch
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tirgemm.artifact import build

ROOT = Path(__file__).parents[2]
NAMES = {"tirgemm", "tirgemm-0.1.0.dist-info"}
# Results of the ladder that were measured before the build.
MEASURED = "made-up-gpu/ladder.sustained.json"


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=clean | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{shlex.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout


def is_ignored(path: str) -> bool:
    """Whether .dockerignore keeps a path out of the build's context: the last line that fits it or a parent decides."""
    parts = path.split("/")
    parents = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
    ignored = False
    for line in (ROOT / ".dockerignore").read_text().split():
        pattern = line.removeprefix("!")
        anywhere = pattern.startswith("**/")
        candidates = parts if anywhere else [each for each in parents if each.count("/") == pattern.count("/")]
        if any(fnmatch.fnmatchcase(each, pattern.removeprefix("**/")) for each in candidates):
            ignored = not line.startswith("!")
    return ignored


def context() -> Iterator[str]:
    """Files and links of the checkout that Docker sends to the build."""
    for folder, folders, files in os.walk(ROOT):
        here = Path(folder).relative_to(ROOT)
        links = [name for name in folders if (ROOT / here / name).is_symlink()]
        yield from (str(here / name) for name in (*files, *links) if not is_ignored(str(here / name)))
        folders[:] = [name for name in folders if not name.startswith(".") and name not in links]


def copied_by_the_dockerfile(into: Path) -> Path:
    """The build stage's folder: every COPY of the context, links as links."""
    (stage,) = re.findall(r"AS build$(.*?)^FROM ", (ROOT / "Dockerfile").read_text(), re.MULTILINE | re.DOTALL)
    sent = list(context())
    for line in re.findall(r"^COPY (.*)$", stage, re.MULTILINE):
        *sources, target = line.split()
        for source in sources:
            files = [path for path in sent if path == source or path.startswith(f"{source}/")]
            assert files, f"COPY {line}: {source} is not in the context"
            for path in files:
                name = into / (path if target == "./" else Path(target, Path(path).relative_to(source)))
                name.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / path, name, follow_symlinks=False)
    return into


@dataclass(frozen=True)
class Built:
    """What was built, and the environment that it is installed in, whose other packages are this one's."""

    source: Path
    sdist: Path
    wheel: Path
    bin: Path
    folder: Path

    def python(self, code: str) -> str:
        return run(self.bin / "python", "-c", code, cwd=self.folder)

    def cli(self, *arguments: str) -> str:
        return run(self.bin / "tirgemm", *arguments, cwd=self.folder, COLUMNS="100")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    top = tmp_path_factory.mktemp("wheel")
    source = copied_by_the_dockerfile(top / "src")
    stored = source / "benchmarks" / "results" / MEASURED
    stored.parent.mkdir()
    stored.write_text("{}")
    hook = "import sys, setuptools.build_meta as backend; getattr(backend, sys.argv[1])(sys.argv[2])"
    run(sys.executable, "-c", hook, "build_sdist", top, cwd=source)
    sdist = next(top.glob("*.tar.gz"))
    shutil.unpack_archive(sdist, top / "unpacked")
    unpacked = next((top / "unpacked").iterdir())
    # An earlier build's, of a module that the source has no more.
    earlier = unpacked / "build" / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}" / "tirgemm"
    earlier.mkdir(parents=True)
    (earlier / "removed.py").touch()
    # The launcher was compiled of the same sources when this environment was made: the compiler's part is to copy it.
    compiler = top / "compiler"
    compiler.write_text(f'#!/bin/sh\nuntil [ "$1" = -o ]; do shift; done\ncp {shlex.quote(str(build.LIBRARY))} "$2"\n')
    compiler.chmod(0o755)
    run(sys.executable, "-c", hook, "build_wheel", top, cwd=unpacked, CXX=str(compiler))
    wheel = next(top.glob("*.whl"))
    run(sys.executable, "-m", "venv", "--without-pip", top / "venv", cwd=top)
    python = top / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel, cwd=top)
    # The dependencies are this environment's; a folder that a .pth file names has no .pth files of its own.
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=top).strip())
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (top / "elsewhere").mkdir()
    return Built(source, sdist, wheel, python.parent, top / "elsewhere")


def test_every_link_in_the_image_leads_somewhere(built: Built) -> None:
    links = [path for path in built.source.rglob("*") if path.is_symlink()]
    assert {str(path.relative_to(built.source)) for path in links} >= {"tirgemm/service", "tirgemm/tuning_db"}
    for path in links:
        assert path.resolve().exists()
        assert path.resolve().is_relative_to(built.source.resolve())


def test_the_sdist_holds_files_and_no_links(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        members = archive.getmembers()
    assert not [member.name for member in members if member.issym() or member.islnk()]
    names = {member.name.split("/", 1)[-1] for member in members}
    assert names >= {"tirgemm/service/cli.py", "tirgemm/bench/shapes/x86.json", "tirgemm/artifact/native/plan.h"}
    assert "tirgemm/tuning_db/shipped/nvidia-h200.jsonl.gz" in names
    assert "tirgemm/tuning_db/shipped/nvidia-h200.sets.jsonl.gz" in names


def test_the_wheel_claims_no_top_level_name_but_its_own(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names} == NAMES
    code = """
import importlib.util
print([name for name in ("tirgemm", "service", "tuning_db", "benchmarks") if importlib.util.find_spec(name)])
import tirgemm.service, tirgemm.tuning_db
print(tirgemm.__file__, tirgemm.service.__file__, tirgemm.tuning_db.__file__)
"""
    actual, files = built.python(code).splitlines()
    assert actual == "['tirgemm']"
    assert all(file.startswith(str(built.bin.parent)) for file in files.split())


def test_the_wheel_holds_every_module_and_data_file_of_the_checkout(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = {name for name in archive.namelist() if not name.split("/")[0].endswith(".dist-info")}
    kinds = (".py", ".cc", ".h", ".cu", ".json", ".typed", ".mako", ".sql", ".html", ".css", ".js", ".svg", ".gz")
    folders = {"tirgemm": "tirgemm", "service": "tirgemm/service", "tuning_db": "tirgemm/tuning_db"}
    expected = {
        f"{installed}/{path.relative_to(ROOT / folder)}"
        for folder, installed in folders.items()
        for path in (ROOT / folder).rglob("*")
        if (path.suffix in kinds or path.name.startswith("LICENSE.")) and not path.parent.is_symlink()
    }
    expected |= {f"tirgemm/bench/shapes/{path.name}" for path in (ROOT / "benchmarks" / "suites").iterdir()}
    results = ROOT / "benchmarks" / "results"
    shipped = (path for kind in ("ladder.*", "*.timeline.json.gz") for path in results.glob(f"*/{kind}"))
    measured = [MEASURED, *(str(path.relative_to(results)) for path in shipped)]
    expected |= {f"tirgemm/bench/measured/{name}" for name in measured}
    assert expected - names == set()
    assert names - expected == {"tirgemm/artifact/_launcher.so"}


def test_the_wheels_tag_names_the_glibc_that_the_launcher_needs(built: Built, tmp_path: Path) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        library = Path(archive.extract("tirgemm/artifact/_launcher.so", tmp_path))
    tag = build.manylinux_tag(library)
    assert tag is not None
    machine = sysconfig.get_platform().split("-", 1)[1]
    assert built.wheel.name == f"tirgemm-0.1.0-py3-none-{tag}_{machine}.whl"
    listed = subprocess.run(["nm", "-D", str(library)], capture_output=True, text=True, check=True).stdout
    newest = max(int(minor) for minor in re.findall(r"@GLIBC_2\.(\d+)", listed))
    assert int(tag.removeprefix("manylinux_2_")) >= newest


def test_an_installed_wheel_has_the_suites_and_benches_them(built: Built) -> None:
    suites = sorted(path.stem for path in (ROOT / "benchmarks" / "suites").iterdir())
    assert built.python("from tirgemm.bench.suites import named_suites; print(*named_suites())").split() == suites
    assert "SUITE" in built.cli("bench", "--help")
    said = built.cli(
        "bench", "x86", "--device", "cpu", "--limit", "0", "--output", "x.json", "--data", "data", "--json"
    )
    assert '"left"' in said


def test_an_installed_wheel_has_the_shipped_records(built: Built) -> None:
    code = """
from tirgemm.tuning_db.shipped.records import ShippedRecords
key = "cuda:sm_90a:nvidia-h200:132"
print(len(ShippedRecords().of(key).candidates(key, "4096x4096x4096:f16:nt", "sustained")))
"""
    assert int(built.python(code)) > 200


def test_an_installed_wheel_runs_its_commands(built: Built) -> None:
    assert "bench" in built.cli("--help")
    assert "cpu" in built.cli("devices")
    assert built.python("from tirgemm.artifact import native; print(native.host_threads() > 0)").strip() == "True"


def test_an_editable_install_claims_no_other_name_either(tmp_path: Path) -> None:
    """The environment of these tests is one: from a folder that is not the checkout, only `tirgemm` is there."""
    code = """
import importlib.util
print([name for name in ("tirgemm", "service", "tuning_db", "tests") if importlib.util.find_spec(name)])
import tirgemm.service, tirgemm.tuning_db
"""
    if subprocess.run([sys.executable, "-c", "import tirgemm"], cwd=tmp_path, check=False, env={}).returncode:
        pytest.skip("tirgemm is not installed in this environment")
    assert run(sys.executable, "-c", code, cwd=tmp_path).strip() == "['tirgemm']"
