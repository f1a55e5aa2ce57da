"""Ownership of a service on this machine, and the key that it signs with, from Linux's /proc.

A listening socket of the user's is not enough: it may be a tunnel to somebody else's service. The process behind it
must also hold the lock of a data folder whose signing key is the user's own file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from tirgemm._user_folders import SERVER_LOCK
from tirgemm.artifact.trust import own_key

_PROC = Path("/proc")
_LISTEN = "0A"


def own_service_keys(url: str) -> frozenset[str]:
    """The public keys of the service at ``url`` if that is a loopback address where this user runs it; else none."""
    parts = urlsplit(url)
    if not is_loopback(parts.hostname or ""):
        return frozenset()
    sockets = listeners(parts.port or (443 if parts.scheme == "https" else 80))
    if not sockets or set(sockets.values()) != {os.geteuid()}:
        return frozenset()
    return frozenset(key for folder in _served_folders(sockets) if (key := own_key(folder)) is not None)


def is_loopback(host: str) -> bool:
    """Whether a host, by name or by number, is this machine alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listeners(port: int) -> dict[int, int]:
    """The user id behind every TCP socket that listens on ``port``, by the socket's inode; empty where nothing
    tells."""
    owners = {}
    for name in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state, _, _, _, uid, _, inode, *_ = line.split()
            if state == _LISTEN and int(local.rpartition(":")[2], 16) == port:
                owners[int(inode)] = int(uid)
    return owners


def _served_folders(sockets: dict[int, int]) -> Iterator[Path]:
    """The data folders that the processes with these sockets have locked."""
    names = {f"socket:[{inode}]" for inode in sockets}
    for process in _PROC.glob("[0-9]*"):
        links = _open_files(process)
        if links & names:
            yield from (Path(link).parent for link in links if link.endswith(f"/{SERVER_LOCK}"))


def _open_files(process: Path) -> set[str]:
    """What the user's process has open; nothing of one that is another user's, or that ended meanwhile."""
    targets = set()
    with contextlib.suppress(OSError):
        if process.stat().st_uid == os.geteuid():
            for descriptor in os.listdir(process / "fd"):  # noqa: PTH208 (a name is all that is needed of the many)
                with contextlib.suppress(OSError):
                    targets.add(os.readlink(process / "fd" / descriptor))  # noqa: PTH115 (a Path would read "socket:" as one)
    return targets
