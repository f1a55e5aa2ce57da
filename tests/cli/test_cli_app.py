"""The command line as an application: bare, its version, its help at any width, a typo, ``python -m``, completion."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.cells import cell_len

from tirgemm import __main__, __version__
from tirgemm._terminal.help import CommandWithHelp, Group
from tirgemm.service import cli

ROOT = Path(__file__).resolve().parents[2]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(list(arguments))
    said = capsys.readouterr()
    return code, said.out, said.err


def groups_and_commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        yield words, command
        for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
            yield from walk(command.get_command(None, name), (*words, name))

    return walk(typer.main.get_command(cli.build_app()), ())


@pytest.mark.parametrize("arguments", [(), ("db",)])
def test_a_group_that_is_given_nothing_to_do_shows_its_help(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: {' '.join(('tirgemm', *arguments))} [OPTIONS] COMMAND [ARGS]...")
    assert run(capsys, *arguments, "--help") == (0, out, "")


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"tirgemm {__version__}\n", "")


def test_a_name_that_is_near_a_command_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, near in (
        (("tnue", "1x2x3"), "tirgemm has no command 'tnue'; did you mean tune?"),
        (("db", "inf"), "tirgemm db has no command 'inf'; did you mean info?"),
    ):
        code, out, err = run(capsys, *arguments)
        assert (code, out, near in err) == (2, "", True)
    assert "has no command 'zzz' (see `tirgemm --help`)" in run(capsys, "zzz")[2]


@pytest.mark.parametrize("width", [40, 80, 120, 200, None])
def test_every_help_fits_and_is_whole(
    width: int | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if width is not None:
        monkeypatch.setenv("COLUMNS", str(width))
    for words, command in groups_and_commands():
        assert isinstance(command, (CommandWithHelp, Group)), words
        code, out, err = run(capsys, *words, "--help")
        assert (code, err) == (0, "")
        for line in out.splitlines():
            assert width is None or cell_len(line) <= width or len(line.split()) == 1, (words, line)
            assert line == line.rstrip()
        shown = set(out.split())
        context = command.make_context(
            words[-1] if words else "tirgemm", ["x"] if not words else [], resilient_parsing=True
        )
        for parameter in command.get_params(context):
            record = parameter.get_help_record(context)
            assert record is None or set(" ".join(record).split()) <= shown, (words, record)
        assert set((command.help or "").split()) <= shown, words
        assert command.help, words


def test_python_m_runs_the_console_script() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["tirgemm"]
    assert declared == __main__.SCRIPT
    for arguments, wanted in ((["--version"], 0), (["get", "7x8"], 2)):
        done = subprocess.run(
            [sys.executable, "-m", "tirgemm", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == wanted
        assert (done.stdout == f"tirgemm {__version__}\n") == (wanted == 0)


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """The environment of a shell that has ``tirgemm`` on its path and a home of its own."""
    script = tmp_path / "bin" / "tirgemm"
    script.parent.mkdir()
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {sys.executable} -m tirgemm.service.cli "$@"\n'
    )
    script.chmod(0o755)
    (tmp_path / "home").mkdir()
    path = f"{script.parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "HOME": str(tmp_path / "home"), "SHELL": "/bin/bash"}


def bash(script: str, environment: dict[str, str]) -> str:
    done = subprocess.run(["bash", "--norc", "-c", script], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        (("tirgemm", "de"), {"devices"}),
        (("tirgemm", "t"), {"tune"}),
        (("tirgemm", "--v"), {"--version"}),
        (("tirgemm", "tune", "--tri"), {"--trials"}),
        (("tirgemm", "db", "g"), {"gc"}),
        (("tirgemm", "db", "gc", "--dry"), {"--dry-run"}),
    ],
)
def test_bash_completes_commands_and_options(line: tuple[str, ...], offered: set[str], shell: dict[str, str]) -> None:
    words = " ".join(line)
    said = bash(
        f'eval "$(tirgemm --show-completion)"; complete -p tirgemm; COMP_WORDS=({words}); COMP_CWORD={len(line) - 1}; '
        '_tirgemm_completion tirgemm; echo "${COMPREPLY[@]}"',
        shell,
    )
    registered, completions = said.splitlines()
    assert registered == "complete -o default -F _tirgemm_completion tirgemm"
    assert offered <= set(completions.split())
    assert all(word.startswith(line[-1]) for word in completions.split())


def test_completion_is_installed_for_the_shell_that_asks(shell: dict[str, str]) -> None:
    # A list keeps bash as the parent that asks: a single command would replace it.
    said = bash("tirgemm --install-completion && true", shell)
    home = Path(shell["HOME"])
    assert "bash completion installed" in said
    assert "_TIRGEMM_COMPLETE" in (home / ".bash_completions" / "tirgemm.sh").read_text()
    assert ".bash_completions/tirgemm.sh" in (home / ".bashrc").read_text()


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_an_error_that_nobody_can_read_is_told_by_the_exit_code(options: list[str]) -> None:
    # Buffered, as a shell's commands are.
    command = ["env", "--unset=PYTHONUNBUFFERED", sys.executable, "-m", "tirgemm", "explain", "foo", *options]
    reading, writing = os.pipe()
    os.close(reading)
    closed = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    with Path("/dev/full").open("w") as full:
        lost = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        silent = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=full, text=True, check=False)
    assert (closed.returncode, lost.returncode, silent.returncode) == (2, 2, 2)
    assert "Traceback" not in closed.stderr + lost.stderr
    assert "'foo' is not MxNxK" in lost.stderr
    assert ("'foo' is not MxNxK" in silent.stdout) == bool(options)
