"""The environments that `make` sets up: what the lock files hold, what is installed, and which tests run in which."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCKS = sorted(ROOT.glob("requirements*.lock"))
# What a virtual environment is born with, and this project.
_NOT_LOCKED = {"pip", "setuptools", "tirgemm"}


def pins(lock: Path) -> list[Requirement]:
    lines = [line for line in lock.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return [Requirement(line) for line in lines]


def versions(lock: Path) -> dict[str, str]:
    """What a lock holds for the Python that runs: versions by canonical name."""
    held = (pin for pin in pins(lock) if pin.marker is None or pin.marker.evaluate())
    return {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in held}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_holds_one_exact_version_a_package_and_names_no_index(lock: Path) -> None:
    assert pins(lock)
    for pin in pins(lock):
        assert [each.operator for each in pin.specifier] == ["=="], pin
        assert pin.url is None
        assert "*" not in str(pin.specifier)
    assert not re.search(r"://|--(extra-)?index-url|--find-links", lock.read_text())


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_what_two_locks_share_has_one_version(lock: Path) -> None:
    first = versions(ROOT / "requirements.lock")
    different = {name for name, version in versions(lock).items() if first.get(name, version) != version}
    by_pytorch = {"nvidia-cuda-nvrtc", "nvidia-cuda-runtime"} if lock.name == "requirements-torch.lock" else set()
    assert different == by_pytorch


def test_pytorch_and_our_nvrtc_stand_in_different_locks() -> None:
    assert "torch" not in versions(ROOT / "requirements.lock")
    assert "torch" in versions(ROOT / "requirements-torch.lock")
    nvrtc = [versions(ROOT / f"requirements{kind}.lock")["nvidia-cuda-nvrtc"] for kind in ("", "-service", "-torch")]
    assert nvrtc[0] == nvrtc[1] != nvrtc[2]


def test_a_fresh_machines_packages_are_the_same_wherever_they_are_named() -> None:
    def named(file: str, pattern: str) -> set[str]:
        (listed,) = re.findall(pattern, (ROOT / file).read_text())
        return set(re.findall(r"[a-z][a-z0-9+-]+", listed))

    page = named("docs/getting-started.md", "apt-get update\napt-get install (.+)")
    assert page == {"python3", *named("README.md", r"fresh Debian machine with Python 3\.11, (.+), with or")} - {"and"}
    assert page == {"git"} | named("Makefile", "# Debian packages needed: (.+)")


@pytest.mark.parametrize(
    ("folder", "lock"),
    [(".venv", "requirements.lock"), pytest.param(".venv-torch", "requirements-torch.lock", marks=pytest.mark.torch)],
)
def test_this_environment_holds_what_its_lock_says_and_nothing_else(folder: str, lock: str) -> None:
    if Path(sys.prefix) != ROOT / folder:
        pytest.skip(f"{sys.prefix} was not made by this checkout's Makefile")
    locked = versions(ROOT / lock)
    installed = {
        canonicalize_name(actual.name): Version(actual.version).public for actual in importlib.metadata.distributions()
    }
    others = {name: version for name, version in installed.items() if locked.get(name) != version}
    assert others.keys() <= _NOT_LOCKED, others
    missing = locked.keys() - installed.keys()
    # The second constrains what is installed: a CPU build of PyTorch needs none of its CUDA packages.
    assert not missing or (lock == "requirements-torch.lock" and not missing & {"torch", "apache-tvm", "pytest"})


def test_every_test_that_imports_pytorch_is_marked_and_so_runs_where_pytorch_is() -> None:
    unmarked = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        imports = len(re.findall(r"importorskip\(['\"]torch|^ *(?:import|from) torch\b", text, re.MULTILINE))
        module = re.search(r"^pytestmark = (?:\[[^\]]*)?pytest\.mark\.torch\b", text, re.MULTILINE)
        if not module and imports > text.count("pytest.mark.torch") and path != Path(__file__):
            unmarked.append(path.name)
    assert not unmarked, f"pytest.mark.torch is missing in {', '.join(unmarked)}: without it these only ever skip"


def test_make_collects_every_file_with_tests_that_run_alone() -> None:
    files = {path.relative_to(ROOT): path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    marked = {path for path, text in files.items() if re.search(r"mark\.(timing|gpu)\b", text)}
    contract = Path("tests/contract/families/family_contract.py")
    assert {path for path in marked if not path.name.startswith("test_")} == {contract}, "others are not looked for"
    inherit = {
        path for path, text in files.items() if re.search(r"import \w*Contract\b", text) and contract.stem in text
    }
    listed = subprocess.run(["make", "--dry-run", "timing-tests"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert len(inherit) == 5
    assert {Path(word) for word in listed.stdout.split() if word.startswith("tests/")} == (
        marked - {contract}
    ) | inherit


def test_ci_runs_in_a_home_of_its_own(tmp_path: Path) -> None:
    """A warm cache of the caller's could hide what a machine that has never seen the project does. Debian's programs
    come first."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_text((ROOT / ".ci" / "run").read_text())
    (tmp_path / "Makefile").write_text("test:\n\t@env\n\t@ls -A $$HOME\n")
    caller = {
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": "/caches",
        "TVM_FFI_CACHE_DIR": "/caches",
        "TIRGEMM_DATA": "/data",
    }
    kept = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PIP_FIND_LINKS": "/wheels", "HTTPS_PROXY": "http://proxy"}
    done = subprocess.run(
        ["bash", str(tmp_path / ".ci" / "run")], env=caller | kept, capture_output=True, text=True, check=True
    )
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert seen["HOME"] != str(tmp_path)
    assert not {name for name in seen if name.startswith(("XDG_", "TVM_", "TIRGEMM_"))}
    assert {name: seen[name] for name in kept} == kept | {"PATH": "/usr/bin:/usr/local/bin:/usr/bin:/bin"}
    assert seen["PIP_CACHE_DIR"] == "/caches/pip"
    assert "Makefile" not in done.stdout.splitlines(), "the home is empty"
    assert not Path(seen["HOME"]).exists(), "and removed afterwards"
