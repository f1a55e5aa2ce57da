"""``KnownServers``: the keys that the user accepted, server by server, as ssh keeps its known hosts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tirgemm._user_folders import user_config
from tirgemm.artifact import private_file
from tirgemm.artifact.sign import public_bytes
from tirgemm.errors import InvalidRequest, UntrustedArtifact

_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class KnownServer:
    """One line of the file: the address, a key that was accepted for it, and a comment."""

    url: str
    key: str
    comment: str = ""

    def __str__(self) -> str:
        return f"{self.url} {self.key} {self.comment}".rstrip()


@dataclass(frozen=True)
class KnownServers:
    """A file of ``url key comment`` lines; empty lines and lines with # are comments, and stay."""

    path: Path

    @classmethod
    def default(cls) -> KnownServers:
        """The user's file, ``known_servers`` in the configuration folder."""
        return cls(user_config() / "known_servers")

    def entries(self) -> tuple[KnownServer, ...]:
        """Every server with every key of it. None where there is no file.

        Raises UntrustedArtifact for a file that others may write, InvalidRequest for a line that is no entry.
        """
        return tuple(entry for _, entry in self._lines() if entry is not None)

    def keys(self, url: str) -> frozenset[str]:
        """The keys that were accepted for the server at ``url``."""
        wanted = address(url)
        return frozenset(entry.key for entry in self.entries() if entry.url == wanted)

    def accept(self, url: str, keys: Iterable[str], comment: str = "") -> None:
        """Remember ``keys``, and no others, for the server at ``url``."""
        accepted = frozenset(keys)
        for key in accepted:
            public_bytes(key)
        with private_file.locked(self.path):
            known, lines = self.keys(url), self._lines()
            new = [str(KnownServer(address(url), key, " ".join(comment.split()))) for key in sorted(accepted - known)]
            gone = [entry for _, entry in lines if entry and entry.url == address(url) and entry.key not in accepted]
            if gone:  # the old and the new at once, so that the server is never without a key
                self._replace([line for line, entry in lines if entry not in gone] + new)
            else:
                for line in new:
                    private_file.append(self.path, line)

    def forget(self, what: str) -> tuple[KnownServer, ...]:
        """Remove the entries of a server, or of a key, and return them."""
        wanted = what if what.startswith("ed25519:") else address(what)
        if not self.path.exists():
            return ()
        with private_file.locked(self.path):
            lines = self._lines()
            gone = tuple(entry for _, entry in lines if entry is not None and wanted in (entry.url, entry.key))
            if gone:
                self._replace([line for line, entry in lines if entry not in gone])
        return gone

    def _replace(self, lines: Iterable[str]) -> None:
        private_file.replace(self.path, "".join(f"{line}\n" for line in lines).encode())

    def _lines(self) -> list[tuple[str, KnownServer | None]]:
        """Every line of the file, with its entry; None for a comment."""
        data = private_file.read(self.path, "file of known servers", 0o022, UntrustedArtifact)
        return [
            (line, self._entry(number, line))
            for number, line in enumerate((data or b"").decode("utf-8", "replace").splitlines(), 1)
        ]

    def _entry(self, number: int, line: str) -> KnownServer | None:
        if not line.strip() or line.lstrip().startswith("#"):
            return None
        try:
            url, key, *comment = line.split(maxsplit=2)
            public_bytes(key)
            return KnownServer(address(url), key, "".join(comment).strip())
        except ValueError as error:
            raise InvalidRequest(
                f"file of known servers {self.path}, line {number} is not `URL ed25519:KEY`: {error}"
            ) from error


def address(url: str) -> str:
    """What a server is known by: scheme, host, port and path, in one spelling, without user and password.

    Raises InvalidRequest for what is no address of a service.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        parts, host, port = urlsplit(""), "", None
    if parts.scheme not in _DEFAULT_PORTS or not host or any(letter.isspace() for letter in url):
        raise InvalidRequest(f"service address {redacted(url)!r:.200} is not a URL such as http://127.0.0.1:8000")
    authority = f"[{host}]" if ":" in host else host
    if port is not None and port != _DEFAULT_PORTS[parts.scheme]:
        authority += f":{port}"
    return f"{parts.scheme}://{authority}{parts.path.rstrip('/')}"


def without_user(url: str) -> str:
    """A URL as it may be shown: without user and password."""
    try:
        address(url)
    except InvalidRequest:
        return redacted(url)
    return re.sub(r"^(\w+://)[^/?#]*@", r"\1", url)


def redacted(url: str) -> str:
    """What is no address of a service, as it may be shown: a password may be all that is before the last @."""
    return re.sub(r"^((?:\w+:)?//)?.*@", r"\1", str(url), flags=re.DOTALL)
