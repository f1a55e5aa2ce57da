"""Arguments that commands refuse with a sentence and exit code 2: empty and unreadable names, and options that would do
nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.command_line import Run, own_folders
from tirgemm.errors import ServiceError

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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("tune 64x64x64 --effort none --trials 5", "--effort none searches nothing: leave out --trials"),
        ("tune 64x64x64 --effort none --seconds 5", "--effort none searches nothing: leave out --seconds"),
        ("candidates 64x64x64 --csv --json", "--csv prints CSV: leave out --json"),
        (
            "kernels list --url http://127.0.0.1:9 --data x",
            "--url is a service, which has a database of its own: leave out --data",
        ),
        (
            "kernels pin k --url http://127.0.0.1:9 --db sqlite:///x",
            "--url is a service, which has a database of its own: leave out --db",
        ),
        ("bench square --recorded --trials 5", "--recorded tunes nothing: leave out --trials"),
        (
            "bench square --finalists 3",
            "without --recorded there are no finalists of records: leave out --finalists",
        ),
        ("bench square --recorded --seconds 5", "--recorded tunes nothing: leave out --seconds"),
        (
            "bench square --clock",
            "--clock times whole answers of efforts, of the variants zero_shot, quick, standard: ask for one of them",
        ),
        ("get 64x64x64 --default --wait 3", "--default does not wait for tuning: leave out --wait"),
        ("get 64x64x64 --default --wait 0", "--default does not wait for tuning: leave out --wait"),
        *(
            (f"{command} --data x", "--data is x, which holds no signing key to trust; name a data folder of yours")
            for command in ("call k", "verify k", "export k k.so")
        ),
        (
            "verify k --trust ed25519:x --data x",
            "--trust says whom to trust in place of your own keys: leave out --data",
        ),
        *(
            (f"serve --no-worker {option} 1", f"no worker is run beside the server: leave out {option}")
            for option in ("--devices", "--address", "--processes")
        ),
    ],
)
def test_option_that_would_do_nothing_is_refused(run: Run, tmp_path: Path, arguments: str, words: str) -> None:
    code, out, err = run(*arguments.split())
    told = json.loads(out)["error"]["message"] if "--json" in arguments else err
    assert (code, words in told) == (2, True), told
    assert list(tmp_path.iterdir()) == [], "nothing is made"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("db info", "'~no.such.user/x': Could not determine home directory"),
        ("db info --data ~no.such.user/y", "'~no.such.user/y': Could not determine home directory"),
        ("db restore backup --data ~no.such.user/y", "'~no.such.user/y': Could not determine home directory"),
        ("verify k --data ~no.such.user/y", "'~no.such.user/y': Could not determine home directory"),
        ("tune 3x5x7:f32:nn --lock-dir locks", "lock folder 'locks' is not absolute; give its whole path"),
    ],
)
def test_folder_that_cannot_be_meant_is_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, words: str
) -> None:
    monkeypatch.setenv("TIRGEMM_DATA", "~no.such.user/x")
    monkeypatch.setenv("COLUMNS", "200")
    code, _, err = run(*arguments.split())
    assert (code, words in err) == (2, True), err
    assert list(tmp_path.iterdir()) == [], "nothing is made"


def test_variables_of_the_database_go_with_the_address_of_a_service(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIRGEMM_DATA", "x")
    monkeypatch.setenv("TIRGEMM_DB", "sqlite:///x")
    monkeypatch.setattr("tirgemm._commands.jobs.client_of", _refuse_to_connect)
    code, _, err = run("kernels", "list", "--url", "http://127.0.0.1:9")
    assert (code, err) == (1, "error: asked http://127.0.0.1:9\n")


def _refuse_to_connect(url: str) -> None:
    raise ServiceError(f"asked {url}")
