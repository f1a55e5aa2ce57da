"""The command line: versions, help, exit codes, and what it says where something is wrong or missing."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest
import typer

from tests.cli.main.cli_artifacts import SHAPE
from tests.helpers.command_line import Run
from tirgemm.detect import device
from tirgemm.service import cli


def test_devices_and_versions(run: Run) -> None:
    code, out, _ = run("devices", "--json")
    assert (code, json.loads(out)["devices"][0]["key"]) == (0, device("cpu").key)
    code, out, _ = run("devices")
    assert (code, "sm_90a" in out) == (0, True)
    code, out, _ = run("version", "--json")
    assert (code, json.loads(out)["tirgemm"]) == (0, "0.1.0")
    assert run("version")[1].startswith("tirgemm 0.1.0")


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    monkeypatch.setattr(cli, "find_spec", lambda name: None if name in packages else importlib.util.find_spec(name))


def test_a_command_without_its_extra_names_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "tvm", "sqlalchemy")
    for name in ("tune", "bench", "db"):
        code, out, err = run(name, "1x2x3", "--anything", "--help")
        assert (code, out) == (2, "")
        assert f"`tirgemm {name}` needs the extra tune (tvm is absent): pip install 'tirgemm[tune]'" in err.replace(
            "\n", " "
        )
    code, out, _ = run("tune", "1x2x3", "--json")
    assert (code, json.loads(out)["error"]["code"]) == (2, "missing_extra")
    assert run("devices")[0] == 0
    code, out, _ = run("--help")
    assert (code, "needs the extra tune" in out, "verify" in out) == (0, True, True)
    without(monkeypatch, "tvm", "uvicorn")
    for name in ("serve", "worker"):
        assert "needs the extra service (uvicorn is absent)" in run(name)[2].replace("\n", " ")
    without(monkeypatch, "typer")
    code, _, err = run("devices")
    assert (code, "needs the extra client (typer is absent)" in err) == (2, True)


def test_what_turns_out_to_be_absent_while_running_is_named_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise ModuleNotFoundError("No module named 'alembic'", name="alembic.command")

    monkeypatch.setattr("tirgemm.detect.devices", absent)
    code, _, err = run("devices")
    assert (code, "pip install 'tirgemm[tune]'" in err) == (2, True)

    def broken() -> None:
        raise ModuleNotFoundError("No module named 'colours'", name="colours")

    monkeypatch.setattr("tirgemm.detect.devices", broken)
    with pytest.raises(ModuleNotFoundError):
        run("devices")


def test_an_error_is_one_sentence_and_debug_shows_where(run: Run) -> None:
    code, out, err = run("get", "7x8")
    assert (code, out) == (2, "")
    assert err.startswith("error: gemm '7x8'")
    assert "Traceback" not in err
    for arguments in (("get", "7x8", "--debug"), ("--debug", "get", "7x8")):
        assert "Traceback" in run(*arguments)[2]
    assert "Traceback" not in run("get", "7x8")[2], "debug does not outlive its command"


@pytest.mark.parametrize(
    "arguments", [("frob",), ("get",), ("devices", "--colour"), ("call",), ("call", "x", "--m", "many")]
)
def test_wrong_usage_is_bad_input(run: Run, arguments: tuple[str, ...]) -> None:
    code, out, err = run(*arguments)
    assert (code, out, "--help" in err) == (2, "", True)
    code, out, err = run(*arguments, "--json")
    assert (code, err, json.loads(out)["error"]["code"]) == (2, "", "usage")


def test_an_interrupt_ends_it_with_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tirgemm.detect.devices", interrupted)
    monkeypatch.setattr("tirgemm.service.commands.keys.existing_database", lambda *_: interrupted())
    for command in (("devices",), ("keys", "list")):
        assert run(*command) == (130, "", "error: interrupted\n")
        code, out, err = run(*command, "--json")
        assert (code, err) == (130, "")
        assert json.loads(out) == {"error": {"code": "interrupted", "message": "interrupted", "exit_code": 130}}


def test_no_help_uses_the_names_that_the_program_has_for_things() -> None:
    def walk(command: Any, group: str = "") -> None:
        for name in command.list_commands(None) if getattr(command, "commands", None) is not None else []:
            walk(command.get_command(None, name), group or name)
        shown = [p for p in command.params if not getattr(p, "hidden", False)]
        text = " ".join(
            [command.help or "", *(getattr(p, "help", None) or "" for p in shown), *(o for p in shown for o in p.opts)]
        )
        assert "fallback" not in text.lower(), command.name
        # Users know the batches of a service, which keys have a quota of and prune deletes; those of a search are
        # nobody's business.
        assert group in ("batches", "keys", "db") or "batch" not in text.lower(), command.name

    walk(typer.main.get_command(cli.build_app()))


def test_every_command_has_json_and_a_summary() -> None:
    def walk(command: Any, name: str) -> None:
        inner = getattr(command, "commands", None)
        names = command.list_commands(None) if inner is not None else []
        for each in names:
            walk(command.get_command(None, each), f"{name} {each}")
        if not names:
            assert "--json" in {option for parameter in command.params for option in parameter.opts}, name
        assert command.help, name

    walk(typer.main.get_command(cli.build_app()), "tirgemm")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("jobs", "list", "--limit", "5000"), "'--limit': '5000' is not an integer from 1 to 1000"),
        (("jobs", "list", "--limit", "abc"), "'--limit': 'abc' is not an integer from 1 to 1000"),
        (("get", SHAPE, "--seed=-3"), "'--seed': '-3' is not an integer of at least 0"),
        (("get", SHAPE, "--seconds", "nan"), "'--seconds': 'nan' is not a number of at least 0"),
        (("get", SHAPE, "--wait", "soon"), "'--wait': 'soon' is not a number (see"),
        (("get", SHAPE, "--wait=-1"), "wait is -1.0; it must be"),
        (("get", SHAPE, "--priority", "1.5"), "'--priority': '1.5' is not an integer (see"),
        (("batches", "submit", "model.toml", "--trials", "0"), "'--trials': '0' is not an integer of at least 1"),
        (("bench", "steps", "--measure=-1"), "'--measure': '-1' is not a number of at least 0"),
        (("ladder", "7", "5", "3", "--limit", "nan"), "'--limit': 'nan' is not a number of at least 0"),
        (("reproduce", "ab", "--spread", "2"), "'--spread': '2' is not a number from 0 to 1"),
    ],
)
def test_a_number_that_is_refused_is_told_with_its_limits(run: Run, arguments: tuple[str, ...], words: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert words in err
