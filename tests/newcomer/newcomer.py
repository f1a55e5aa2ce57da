"""A newcomer: types what README and the pages print, in order, and stops at the first line that does not do as told.

    python -m tests.newcomer.newcomer [--set-up] [--page docs/NAME.md ...] [--pipe | --terminal] [--transcript FILE]

clones this checkout into an empty home, and runs every shell line and Python block of README and
docs/getting-started.md, which says how to install it (or of the pages named, each from a fresh folder and home).
``--set-up`` runs ``make demo`` and ``make test`` too, and README's snippet, which follows them. Without ``--pipe`` or
``--terminal`` everything is done twice: in a terminal, then without one.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from tests.helpers.library_variables import FRUGAL
from tests.newcomer.pages import Block, blocks
from tests.newcomer.sessions import COLUMNS, Interpreter, Ran, Shell

ROOT = Path(__file__).resolve().parents[2]
FIRST_PAGES = ("README.md", "docs/getting-started.md")
READY = r"https?://\S+"
_FREE_PORT = re.compile(r"--port 0\b")
# What no command may print where it did what the text says.
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\)|^error:|: error:", re.MULTILINE)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class Disagreement(AssertionError):
    """A line of a page that did not do what the page says."""


@dataclass
class Newcomer:
    """One person with an empty home. ``terminal``: whether what they type runs in a terminal of 80 columns.

    ``path``: folders of programs before the system's, where an environment is given; ``python``: folders before those
    for the interpreter of Python blocks. ``packages``: a folder of packages that are installed already.
    ``brings_torch``: whether PyTorch is installed for the blocks that need it, which else are left out.
    """

    terminal: bool
    checkout: Path
    home: Path
    transcript: TextIO
    has_gpu: bool = False
    set_up: bool = False
    path: tuple[Path, ...] = ()
    python: tuple[Path, ...] = ()
    packages: Path | None = None
    brings_torch: bool = True
    skipped: list[str] = field(default_factory=list)
    has_torch: bool = False

    def environment(self) -> dict[str, str]:
        """What a fresh login has: nothing of the caller's but where programs and packages come from, and, in the tests,
        what makes libraries and compilers frugal."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if name.startswith("PIP_") or name.endswith("_PROXY") or name in (*FRUGAL, "CXXFLAGS")
        }
        path = os.pathsep.join([*(str(folder) for folder in self.path), system_path()])
        temporary = self.home / "tmp"  # where the device locks lie, which a page removes
        temporary.mkdir(exist_ok=True)
        mine = {
            "HOME": str(self.home),
            "TMPDIR": str(temporary),
            "PATH": path,
            "LANG": "C.UTF-8",
            "COLUMNS": str(COLUMNS),
        }
        if self.packages:
            mine["PYTHONPATH"] = str(self.packages)
        if self.terminal:
            del mine["COLUMNS"]
            mine["TERM"] = "xterm-256color"
        return kept | mine

    def read(self, page: Path, folder: Path) -> None:
        """Run every block of a page, from ``folder``. Raises Disagreement."""
        self._say(f"# {page.name}, {'in a terminal' if self.terminal else 'without a terminal'} of {COLUMNS} columns")
        with ExitStack() as stack:
            shell = stack.enter_context(Shell(self.environment(), folder, terminal=self.terminal))
            interpreter: Interpreter | None = None
            for block in blocks(page, self.checkout):
                if not block.is_run or self._leaves_out(block):
                    continue
                if "demo" in block.needs and self.path:
                    self._bring_demo()
                # An environment that was given has what it has.
                if "torch" in block.needs and not self.path and not self.has_torch:
                    self._type(replace(block, needs=frozenset()), f"pip install --quiet {_locked('torch')}", shell)
                    self.has_torch = True
                if block.title:
                    self._save(block, shell)
                elif "terminal" in block.needs:
                    self._start(block, shell, stack)
                elif block.language == "sh":
                    for command in block.commands():
                        self._type(block, command, shell)
                else:
                    if interpreter is None:
                        env, here = shell.environment()
                        env["PATH"] = os.pathsep.join([*map(str, self.python), env["PATH"]])
                        interpreter = stack.enter_context(Interpreter(env, here, terminal=self.terminal))
                    self._say(f">>> {block.body.rstrip()}")
                    self._judge(block, block.body, interpreter.run(block.body))

    def _bring_demo(self) -> None:
        """What a snippet takes of ``make demo``, from the environment that is given: itself, and the launcher in the
        checkout."""
        (self.checkout / ".venv").symlink_to(self.path[0].parent)
        for launcher in (ROOT / "tirgemm" / "artifact").glob("_launcher*.so"):
            shutil.copy2(launcher, self.checkout / "tirgemm" / "artifact")

    def _leaves_out(self, block: Block) -> bool:
        reasons = {
            "root": "it changes the machine",
            "docker": "" if shutil.which("docker") and _succeeds("docker", "info") else "no container engine runs here",
            "postgres": "it needs the PostgreSQL server that it names",
            "torch": "" if self.brings_torch else "one who has PyTorch reads it",
            "install": "an environment is given" if self.path else "",
            "hours": "it takes hours" if self.has_gpu else "",
            "recorded": "" if self.has_gpu else "no GPU is here to have recorded what it reads",
            "demo": "" if self.set_up or self.path else "only with --set-up, or in an environment that is given",
            "clone": "" if self.set_up or "gpu" in block.needs else "only with --set-up",
        }
        for need, reason in reasons.items():
            if need in block.needs and reason:
                self.skipped.append(f"{block.page}:{block.line}: {reason}")
                self._say(f"({self.skipped[-1]})")
                return True
        return False

    def _type(self, block: Block, command: str, shell: Shell) -> None:
        self._say(f"$ {command}")
        typed = f"cd {self.checkout} && {command}" if block.needs & {"clone", "demo"} else command
        began = time.monotonic()
        ran = shell.run(typed, timeout=5400.0 if "clone" in block.needs else 300.0)
        self._judge(block, command, ran)
        self._say(f"({time.monotonic() - began:.1f} s)")

    def _start(self, block: Block, shell: Shell, stack: ExitStack) -> None:
        """A program of a terminal of its own: wait until it says where it listens, and leave it running. One on a free
        port is ended then: no line of a page can name it, and its worker would look for jobs to the end of the page.
        """
        env, here = shell.environment()
        for command in block.commands():
            self._say(f"$ {command}      (in a terminal of its own)")
            other = stack.enter_context(Shell(env, here, terminal=self.terminal))
            other.send(f"exec {command}\n")
            try:
                before, actual = other.until(READY, 120.0)
            except TimeoutError as error:
                raise Disagreement(f"{block.page}:{block.line}: {command}: {error}") from error
            self._say(before + actual[0])
            if _FREE_PORT.search(command):
                other.interrupt()
                if code := other.end():
                    raise Disagreement(f"{block.page}:{block.line}: {command}: it ended with {code} at Ctrl-C")

    def _save(self, block: Block, shell: Shell) -> None:
        _, here = shell.environment()
        self._say(f"(saved as {block.title})")
        path = here / block.title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.body, encoding="utf-8")

    def _judge(self, block: Block, what: str, ran: Ran) -> None:
        self._say(ran.text.strip("\n"))
        wrong = fault(block, ran, has_gpu=self.has_gpu, terminal=self.terminal)
        if wrong:
            raise Disagreement(f"{block.page}:{block.line}: {what.strip()}\n  {wrong}\n{ran.text}")

    def _say(self, text: str) -> None:
        self.transcript.write(text + "\n")
        self.transcript.flush()


def fault(block: Block, ran: Ran, *, has_gpu: bool, terminal: bool) -> str:
    """What is wrong with what a command of a block printed, or nothing."""
    if "gpu" in block.needs and not has_gpu:
        if ran.code == 0:
            return "it ended with 0 although there is no GPU"
        said = "GPU" in ran.text or "NVIDIA driver" in ran.text
        if not said or ("Traceback" in ran.text and block.language == "sh"):
            return "it failed without saying in one sentence that there is no GPU"
        return ""
    if ran.code:
        return f"it ended with {ran.code}"
    if actual := _TRACEBACK.search(ran.text):
        return f"it printed {actual[0]!r}"
    if not terminal and _CONTROL.search(ran.raw):
        return "it printed control characters into a pipe"
    if "clone" in block.needs or block.language == "python":
        return ""
    if cut := next((line for line in ran.lines if "…" in line), None):
        return f"it cut a value: {cut!r}"
    wide = next((line for line in ran.lines if len(line) > COLUMNS and " " in line.strip()[:COLUMNS]), None)
    return f"a line is wider than {COLUMNS} columns: {wide!r}" if wide and not _is_sentence(wide) else ""


def _is_sentence(line: str) -> bool:
    """Whether a long line is prose or a path, which a terminal wraps, and not a row of a table."""
    return len(re.findall(r"\S {2,}\S|[│┃|]", line)) < 2


def system_path() -> str:
    """PATH without virtual environments."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    return os.pathsep.join(folder for folder in folders if not (Path(folder).parent / "pyvenv.cfg").exists())


def _locked(package: str) -> str:
    """The requirement of a package in the lock of the environment that has PyTorch."""
    lines = (ROOT / "requirements-torch.lock").read_text().splitlines()
    return next(line.partition(" ")[0] for line in lines if line.startswith(f"{package}=="))


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, check=False, capture_output=True, timeout=30).returncode == 0


def clone(into: Path) -> Path:
    """A copy of this checkout: of the last commit as git clone makes it; where files differ from that, of the files."""
    if _git("status", "--porcelain") == "":
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(into)], check=True)
        return into
    names = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if names is None:
        hidden = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info", "*.so")
        return Path(shutil.copytree(ROOT, into, symlinks=True, ignore=hidden))
    for name in filter(None, names.split("\0")):
        if (ROOT / name).exists():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, into / name, follow_symlinks=False)
    return into


def _git(*arguments: str) -> str | None:
    """What git says of this checkout; None where it is none."""
    done = subprocess.run(["git", *arguments], check=False, capture_output=True, text=True, cwd=ROOT)
    return done.stdout if done.returncode == 0 else None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set-up", action="store_true", help="run make demo and make test too")
    parser.add_argument("--page", action="append", default=[], help="this page instead of the first two; repeatable")
    parser.add_argument("--pipe", action="store_true", help="only without a terminal")
    parser.add_argument("--terminal", action="store_true", help="only in a terminal")
    parser.add_argument("--venv", type=Path, help="an environment that has tirgemm, for --page")
    parser.add_argument("--transcript", type=Path, help="a file for all that was typed and printed; default: stdout")
    options = parser.parse_args(arguments)
    ways = [way for way, asked in ((True, options.terminal), (False, options.pipe)) if asked] or [True, False]
    has_gpu = _succeeds("nvidia-smi", "-L") if shutil.which("nvidia-smi") else False
    with ExitStack() as stack:
        out = stack.enter_context(options.transcript.open("w")) if options.transcript else sys.stdout
        for terminal in ways:
            top = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="newcomer-")))
            checkout = clone(top / "home" / "tirgemm")
            newcomer = Newcomer(
                terminal,
                checkout,
                top / "home",
                out,
                has_gpu=has_gpu,
                set_up=options.set_up,
                path=(options.venv.resolve() / "bin",) if options.venv else (),
            )
            try:
                for page in options.page or FIRST_PAGES:
                    if options.page:
                        newcomer.home = top / page.replace("/", "-")
                        newcomer.home.mkdir()
                    newcomer.read(checkout / page, newcomer.home)
            except Disagreement as error:
                print(f"FAILED: {error}", file=sys.stderr)
                return 1
            for reason in newcomer.skipped:
                print(f"left out: {reason}", file=sys.stderr)
    print("everything does what the text says")
    return 0


if __name__ == "__main__":
    sys.exit(main())
