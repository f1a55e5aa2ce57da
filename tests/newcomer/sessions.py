"""A shell and a Python interpreter that are fed line by line, through pipes or in a terminal of 80 columns."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import secrets
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

COLUMNS = 80
_ANSI = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[()][A-Z0-9]|[=>78])")
# Runs each block that it is sent in one namespace, as a reader's interpreter would, and answers with a mark.
_INTERPRETER = """
import ast, json, sys, traceback
space = {"__name__": "__main__"}
for line in open(int(sys.argv[1]), closefd=False):
    mark, source = json.loads(line)
    try:
        tree = ast.parse(source)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<page>", "exec"), space)
        if last is not None:
            sys.displayhook(eval(compile(ast.Expression(last.value), "<page>", "eval"), space))
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    print(f"\\n{mark} {code}", flush=True)
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """What one command or block printed, without terminal codes, and how it ended. ``raw`` is what came in."""

    code: int
    text: str
    raw: str

    @property
    def lines(self) -> list[str]:
        """What stood in each line at some time: a line that was written over counts with every version of it."""
        return [line.rstrip() for line in re.split(r"[\r\n]+", self.text)]


class Session:
    """A process that answers a mark after all that it was told. Use it as a context."""

    def __init__(self, command: list[str], env: dict[str, str], folder: Path, *, terminal: bool, pass_fd: int = -1):
        self._terminal = terminal
        fds = (pass_fd,) if pass_fd >= 0 else ()
        if terminal:
            self._fd, slave = pty.openpty()
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
            modes = termios.tcgetattr(slave)
            modes[3] &= ~(termios.ECHO | termios.ECHONL)
            termios.tcsetattr(slave, termios.TCSANOW, modes)
            # setsid makes the terminal the controlling one, so that Ctrl-C and its size reach what runs in it.
            self._process = subprocess.Popen(
                ["setsid", "--ctty", *command],
                env=env,
                cwd=folder,
                stdin=slave,
                stdout=slave,
                stderr=slave,
                pass_fds=fds,
            )
            os.close(slave)
            self._input = self._fd
        else:
            self._fd, write = os.pipe()
            self._process = subprocess.Popen(
                command,
                env=env,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=write,
                stderr=write,
                start_new_session=True,
                pass_fds=fds,
            )
            os.close(write)
            assert self._process.stdin is not None
            self._input = self._process.stdin.fileno()

    def send(self, text: str) -> None:
        os.write(self._input, text.encode())

    def until(self, pattern: str, timeout: float) -> tuple[str, re.Match[str]]:
        """What is printed up to the line that matches. TimeoutError with what there was, if none comes."""
        wanted, seen = re.compile(pattern, re.MULTILINE), b""
        deadline = time.monotonic() + timeout
        while True:
            text = seen.decode("utf-8", "replace").replace("\r\n", "\n")
            if actual := wanted.search(text):
                return text[: actual.start()], actual
            ready, _, _ = select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))
            try:
                more = os.read(self._fd, 65536) if ready else b""
            except OSError:  # a terminal whose program has ended
                more = b""
            if not more:
                raise TimeoutError(f"{pattern} did not come in {timeout:.0f} s; there was:\n{text}")
            seen += more

    def interrupt(self) -> None:
        """Ctrl-C."""
        os.killpg(self._process.pid, signal.SIGINT)

    def end(self, timeout: float = 30.0) -> int:
        """The exit code, after the process has ended by itself or was ended."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            return self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGHUP)
            os.killpg(self._process.pid, signal.SIGTERM)
            self.end(10.0)
        os.close(self._fd)


class Shell(Session):
    """bash, one command at a time; what a command exports or activates stays for the next ones."""

    def __init__(self, env: dict[str, str], folder: Path, *, terminal: bool) -> None:
        super().__init__(["bash", "--noprofile", "--norc"], env | {"PS1": "", "PS2": ""}, folder, terminal=terminal)

    def run(self, command: str, timeout: float = 900.0) -> Ran:
        mark = secrets.token_hex(8)
        # In two halves, so that a terminal that echoes it is not taken for the answer.
        self.send(f"{{ {command}\n}} </dev/null; printf '\\n%s%s %s\\n' {mark[:8]} {mark[8:]} $?\n")
        text, actual = self.until(rf"^{mark} (\d+)$", timeout)
        return Ran(int(actual[1]), _ANSI.sub("", text), text)

    def environment(self) -> tuple[dict[str, str], Path]:
        """The variables that a program started here would have, and the folder."""
        ran = self.run(f"{sys.executable} -c 'import json, os; print(json.dumps([dict(os.environ), os.getcwd()]))'")
        values, folder = json.loads(ran.text.strip().splitlines()[-1])
        return values, Path(folder)


class Interpreter(Session):
    """A Python interpreter that is given blocks to run in one namespace."""

    def __init__(self, env: dict[str, str], folder: Path, *, terminal: bool) -> None:
        read, self._blocks = os.pipe()
        command = ["python", "-c", _INTERPRETER, str(read)]
        super().__init__(command, env, folder, terminal=terminal, pass_fd=read)
        os.close(read)

    def run(self, source: str, timeout: float = 900.0) -> Ran:
        mark = secrets.token_hex(8)
        os.write(self._blocks, (json.dumps([mark, source]) + "\n").encode())
        text, actual = self.until(rf"^{mark} (\d)$", timeout)
        return Ran(int(actual[1]), _ANSI.sub("", text), text)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        os.close(self._blocks)
        self.end(10.0)
        super().__exit__(kind, error, tb)
