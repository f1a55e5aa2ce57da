"""README and the pages, typed line by line by a newcomer: see newcomer.py."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.computed_once import SHARED, computed_once
from tests.newcomer.installed_packages import link_packages, serves
from tests.newcomer.newcomer import FIRST_PAGES, Newcomer, clone, system_path
from tests.newcomer.pages import all_pages, blocks

ROOT = Path(__file__).resolve().parents[2]
# The first installs a package, into an environment of its own: test_adding_a_family.py runs it. The commands of the
# second are run in one process, and held to the same, by test_partial_config.py; on the first pages, too, one explains.
ELSEWHERE = ("docs/adding-a-family.md", "docs/explain.md")
# This one is for readers with PyTorch, in whose environment it is read.
OF_PYTORCH = "docs/pytorch.md"
# Those of the others on which something is run.
OTHER_PAGES = [
    name
    for page in all_pages(ROOT)
    if (name := str(page.relative_to(ROOT))) not in (*FIRST_PAGES, *ELSEWHERE, OF_PYTORCH)
    and any(block.is_run for block in blocks(page, ROOT))
]


@pytest.fixture
def port() -> Iterator[None]:
    """One newcomer at a time has the port on which the services of all pages listen."""
    with (Path(tempfile.gettempdir()) / "tirgemm-newcomer.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def starts_a_service(page: str) -> bool:
    return any("terminal" in block.needs for block in blocks(ROOT / page, ROOT))


@pytest.fixture
def frugal_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installing from what pip has downloaded already, so that an empty home does not mean an hour of downloads."""
    done = subprocess.run([sys.executable, "-m", "pip", "cache", "dir"], check=True, capture_output=True, text=True)
    monkeypatch.setenv("PIP_CACHE_DIR", done.stdout.strip())
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    # A module is compiled when it is imported first; most of what is installed never is.
    monkeypatch.setenv("PIP_COMPILE", "0")
    # The launcher is compiled in half the time, and does the same.
    monkeypatch.setenv("CXXFLAGS", "-O0")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("frugal_install", "port")
def test_readme_and_getting_started_from_an_empty_home(tmp_path: Path) -> None:
    """In a terminal, with all that the pages install; pip finds what ours requires linked from this environment, for
    which it was unpacked from the same wheels. Blocks that need PyTorch are left to the next reading: what they print
    does not depend on a terminal.
    """
    packages = tmp_path / "packages"
    if serves("python3", system_path()):
        link_packages(("service", "cuda"), packages)
    read_first_pages(tmp_path, terminal=True, packages=packages, brings_torch=False)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("port")
def test_readme_and_getting_started_without_a_terminal(tmp_path: Path) -> None:
    """In pipes: Python in this environment, which has all that the pages install; commands, where it lies beside this
    one, in that without PyTorch, which else every one of them would import for two seconds.
    """
    here = Path(sys.executable).parent
    beside = Path(sys.prefix).with_name(".venv") / "bin"
    commands = beside if (beside / "tirgemm").exists() else here
    read_first_pages(tmp_path, terminal=False, path=(commands,), python=(here,))


def read_first_pages(
    folder: Path,
    *,
    terminal: bool,
    path: tuple[Path, ...] = (),
    python: tuple[Path, ...] = (),
    packages: Path | None = None,
    brings_torch: bool = True,
) -> None:
    home = folder / "home"
    home.mkdir()
    # The pages install from the folder that holds the clone. An editable install is not found from there: Python takes
    # the clone, which is called as the package is, for a namespace package.
    checkout = clone(folder / "checkout" if path else home / "tirgemm")
    with (folder / "transcript").open("w") as transcript:
        newcomer = Newcomer(
            terminal, checkout, home, transcript, path=path, python=python, packages=packages, brings_torch=brings_torch
        )
        for page in FIRST_PAGES:
            newcomer.read(checkout / page, home)
            # README tunes in the demo's folder what the next page tunes again, where it goes on with these records.
            if (records := checkout / ".demo" / "data").exists():
                (home / ".local" / "share").mkdir(parents=True, exist_ok=True)
                records.rename(home / ".local" / "share" / "tirgemm")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", OTHER_PAGES)
def test_every_line_of_a_page_from_an_empty_folder_and_home(
    page: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if starts_a_service(page):
        request.getfixturevalue("port")
    read_page(page, tmp_path)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("port")
def test_every_line_of_the_page_on_pytorch(tmp_path: Path) -> None:
    read_page(OF_PYTORCH, tmp_path)


def read_page(page: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    # For all pages: what they leave lies in their folders and homes.
    checkout = computed_once("clone", lambda: clone(Path(os.environ[SHARED]) / "clone"))
    with (tmp_path / "transcript").open("w") as transcript:
        newcomer = Newcomer(False, checkout, home, transcript, path=(Path(sys.executable).parent,))
        newcomer.read(checkout / page, home)
