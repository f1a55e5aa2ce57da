"""Arguments that commands refuse with a sentence and exit code 2: empty and unreadable names, and options that would do
nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.command_line import Run, own_folders

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_folders(tmp_path, monkeypatch)


@pytest.mark.parametrize("named", ["", " ", "d\udcfe"], ids=["empty", "blank", "not UTF-8"])
@pytest.mark.parametrize(
    "command",
    [
        ("keys", "create", "ci"),
        ("tune", "64x64x64", "--effort", "none"),
        ("verify", "k.tirgemm"),
        ("serve", "--no-worker", "--port", "0"),
        ("worker",),
    ],
    ids=lambda words: words[0],
)
def test_data_folder_without_a_usable_name_is_refused(
    run: Run, tmp_path: Path, command: tuple[str, ...], named: str
) -> None:
    code, out, err = run(*command, "--data", named)
    assert (code, out) == (2, "")
    assert "Invalid value for '--data'" in err
    assert ("it is empty" if not named.strip() else "is not UTF-8 text") in err
    assert list(tmp_path.iterdir()) == [], "nothing is made"


def test_name_that_is_not_utf8_is_refused_where_it_is_looked_up(run: Run) -> None:
    assert run("keys", "create", "ci")[0] == 0
    code, out, err = run("kernels", "pin", "k\udcff")
    assert (code, out, err) == (2, "", "error: 'k\\udcff' is not UTF-8 text\n")


def test_output_in_the_locale_c_lacks_only_the_characters_that_it_has_not() -> None:
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment.pop("PYTHONIOENCODING", None)
    command = [sys.executable, "-m", "tirgemm", "ladder", "64", "64", "64", "--dry-run", "--device", "sm_80"]
    ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, check=False)
    assert (ended.returncode, b"coalesced" in ended.stdout, ended.stdout.isascii()) == (0, True, True), ended.stderr
