"""How long a file and how full a folder may be, and what no tracked file may name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Each is a folder of the checkout; the last two are also linked into the first, under which they are installed.
PACKAGES = ("tirgemm", "tuning_db", "service")

MAX_LINES = 400

MAX_FILES = 24


def test_no_file_is_longer_than_a_room() -> None:
    paths = [
        p
        for name in (*PACKAGES, "benchmarks", "scripts", "verification")
        for p in (ROOT / name).rglob("*")
        if p.suffix in (".py", ".cc", ".h", ".cu")
    ]
    long = {str(p.relative_to(ROOT)): n for p in paths if (n := len(p.read_text().splitlines())) > MAX_LINES}
    assert not long


def test_no_folder_is_fuller_than_a_house() -> None:
    names = (*PACKAGES, "benchmarks", "scripts", "verification", "tests")
    folders = [path for name in names for path in ((ROOT / name), *(ROOT / name).rglob("*")) if path.is_dir()]
    full = {str(path.relative_to(ROOT)): n for path in folders if (n := len(list(path.glob("*.py")))) > MAX_FILES}
    assert not full


def test_no_tracked_file_names_a_machine_or_a_package_index() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], check=False, capture_output=True, text=True, cwd=ROOT)
    if listed.returncode:
        pytest.skip("this is no git checkout, so that nothing says which files are tracked")
    needles = [
        "/" + "work/",
        "/" + "root/",
        "/" + "home/",
        "--index" + "-url",
        "--extra-index" + "-url",
        "trusted" + "-host",
    ]
    actual = []
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.suffix in (".gz", ".png", ".woff2") or not path.is_file():
            continue
        text = path.read_text(errors="replace")
        actual += [f"{name}: {needle}" for needle in needles if needle in text]
    assert not actual
