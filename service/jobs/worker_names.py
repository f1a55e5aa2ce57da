"""Identifiers of workers: ``host:pid:nonce`` of a worker process, with a device number behind it for the owner of a
job's lease; and whether such a process still runs."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path


def owner_name(host: str | None = None, pid: int | None = None) -> str:
    """``host:pid:nonce``, the name under which a worker process is registered."""
    return f"{host or _machine()}:{pid or os.getpid()}:{secrets.token_hex(4)}"


def slot_name(worker: str, number: int) -> str:
    """The name under which a worker process holds the job of its device of that number."""
    return f"{worker}.{number}"


def died_here(owner: str, me: str) -> bool:
    """Whether ``owner`` names a process of this machine that is gone, or what held jobs in it. A reused pid counts as
    alive unless it is ours."""
    host, _, rest = owner.rpartition(":")[0].rpartition(":")
    my_host, _, my_pid = me.rpartition(":")[0].rpartition(":")
    if host != my_host or _nonce(owner) == _nonce(me) or not rest.isdigit():
        return False
    if rest == my_pid:
        return True
    try:
        os.kill(int(rest), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


def _machine() -> str:
    """The host and its namespace of process numbers: containers of one host may share the name, and each have a pid
    1."""
    return f"{socket.gethostname()}/{Path('/proc/self/ns/pid').stat().st_ino}"


def _nonce(name: str) -> str:
    """What tells a process from an earlier one with its number."""
    return name.rpartition(":")[2].partition(".")[0]
