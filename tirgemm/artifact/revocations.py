"""Signed lists of a service's valid keys and of the keys, artifacts and kernels that it has revoked, and those that the
user knows.

A list is signed with every valid key of the service, so that whoever accepted one of them learns of a new one, and is
believed where one of the keys that are trusted has signed it. Its number grows: an older one is refused. What a known
list revokes is refused whoever serves it, also where the service is away.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tirgemm._user_folders import REVOCATIONS, user_config, user_data
from tirgemm.artifact import private_file
from tirgemm.artifact.known_servers import address
from tirgemm.artifact.sign import decode, encode, is_public_key, public_key
from tirgemm.errors import RevokedArtifact, UntrustedArtifact

if TYPE_CHECKING:
    from tirgemm.artifact.sign import Signer

LOG = logging.getLogger("tirgemm.client")
FORMAT = 1
MAX_BYTES = 1 << 20
MAX_REASON = 200
# Lists that were believed and whose files could not be written.
_UNWRITTEN: dict[Path, bytes] = {}


@dataclass(frozen=True, slots=True)
class RevocationList:
    """The ``keys`` that are valid, the newest first, and what is revoked, each with the reason; ``issued_at`` is ISO
    8601."""

    number: int
    issued_at: str
    keys: tuple[str, ...]
    revoked_keys: Mapping[str, str] = field(default_factory=dict)
    revoked_artifacts: Mapping[str, str] = field(default_factory=dict)

    @property
    def revoked(self) -> dict[str, str]:
        """Keys and hashes, of artifacts and of kernels, with their reasons."""
        return {**self.revoked_keys, **self.revoked_artifacts}

    def signed(self, signers: Sequence[Signer]) -> bytes:
        """The bytes of the list with the signatures of ``signers``."""
        text = json.dumps({"format": FORMAT} | asdict(self))
        signatures = {signer.public: encode(signer.sign(text.encode())) for signer in signers}
        return (json.dumps({"list": text, "signatures": signatures}) + "\n").encode()

    @classmethod
    def read(cls, data: bytes, trusted: Collection[str]) -> RevocationList:
        """The list in ``data``. Raises UntrustedArtifact where none of the keys ``trusted`` signed it, or it is no
        list."""
        text, signatures = _signatures(_document(data))
        if not any(_signed_by(key, signature, text) for key, signature in signatures.items() if key in trusted):
            keys = ", ".join(sorted(str(key)[:60] for key in signatures)[:5]) or "nobody"
            raise UntrustedArtifact(f"the list of revocations is signed by {keys}, and by no key that you trust")
        return _parsed(text)


@dataclass(frozen=True)
class KnownRevocations:
    """A folder of lists, one of each service, as they were last believed; and ``own``, the lists of data folders, each
    of which counts where it is the user's own file."""

    folder: Path
    own: tuple[Path, ...] = ()

    @classmethod
    def default(cls, *own: Path) -> KnownRevocations:
        """The user's: ``revocations`` in the configuration folder, the list of the user's data folder, and ``own``."""
        return cls(user_config() / "revocations", (user_data() / REVOCATIONS, *own))

    def path(self, url: str) -> Path:
        """The file of the service at ``url``."""
        return self.folder / f"{hashlib.sha256(address(url).encode()).hexdigest()[:32]}.json"

    def known(self, url: str) -> bytes | None:
        """The list of that service that was believed last."""
        path = self.path(url)
        return _UNWRITTEN.get(path) or private_file.read(path, "list of revocations", 0o022, UntrustedArtifact)

    def keep(self, url: str, data: bytes, trusted: Collection[str]) -> RevocationList:
        """Believe a list of the service from now on; where its file cannot be written in this process alone, told from
        the log.

        Raises UntrustedArtifact for one that no key of ``trusted`` signed which is not revoked, or that is older than
        the known one.
        """
        # Whoever stole a key that was revoked since signs with it, too.
        valid = [key for key in trusted if self._revoked(key) is None]
        fresh, before = RevocationList.read(data, valid), self.known(url)
        if before is not None and before != data:
            known = _parsed(_document(before)["list"])
            if fresh.number <= known.number:
                raise UntrustedArtifact(
                    f"{address(url)} shows list {fresh.number} of its revocations and has shown list {known.number} "
                    "before: an old list hides what was revoked since, so that nothing of it is taken"
                )
        if before != data:
            self._write(self.path(url), data)
        return fresh

    def _write(self, path: Path, data: bytes) -> None:
        try:
            private_file.replace(path, data)
            _UNWRITTEN.pop(path, None)
        except OSError as error:
            _UNWRITTEN[path] = data
            LOG.warning("what is revoked is known to this process alone, as %s is not written: %s", path, error)

    def refuse(self, what: str, name: str, error: type[RevokedArtifact] = RevokedArtifact) -> None:
        """Raise ``error`` where a known list revokes ``name``, a key or the SHA-256 of an artifact or a kernel;
        ``what`` is said of it."""
        if (revoked := self._revoked(name)) is not None:
            reason, path = revoked
            raise error(f"{what} {name} was revoked: {reason or 'no reason is given'} (list {path})")

    def _revoked(self, name: str) -> tuple[str, Path] | None:
        """Why ``name`` is revoked and the list that says so; None where it is not."""
        for path, data in tuple(_UNWRITTEN.items()):
            if path.parent == self.folder and name in (revoked := _parsed(_document(data)["list"]).revoked):
                return revoked[name], path
        for path, listed in self._written():
            if name in listed:
                return listed[name], path
        return None

    def _written(self) -> Iterator[tuple[Path, Mapping[str, str]]]:
        """The lists that are written, with what they revoke."""
        yield from ((path, revoked_by(path)) for path in self.own)
        if self.folder.is_dir():
            yield from ((path, _listed(path, path.stat())) for path in sorted(self.folder.glob("*.json")))


def revoked_by(path: Path) -> Mapping[str, str]:
    """What the list of a data folder revokes, with the reasons; nothing where it is not the user's own file. Raises
    UntrustedArtifact for one that cannot be read."""
    own = path.is_file() and (status := path.stat()).st_uid == os.geteuid()
    return _listed(path, status) if own else {}


def signers(data: bytes) -> frozenset[str]:
    """The keys that a list says signed it, believed or not. Raises UntrustedArtifact for what is no list."""
    return frozenset(_signatures(_document(data))[1])


def _listed(path: Path, status: os.stat_result) -> Mapping[str, str]:
    return _revoked(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=64)
def _revoked(path: Path, changed_ns: int, size: int) -> dict[str, str]:  # noqa: ARG001 - a changed file is read again
    data = private_file.read(path, "list of revocations", 0o022, UntrustedArtifact)
    try:
        return {} if data is None else _parsed(_signatures(_document(data))[0]).revoked
    except UntrustedArtifact as error:
        raise UntrustedArtifact(
            f"{path}: {error}; where that is a service's list, move it away, and the service is asked for it again"
        ) from error


def _document(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_BYTES:
        raise UntrustedArtifact(f"the list of revocations has more than {MAX_BYTES:,} bytes; it is not read")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UntrustedArtifact(f"the list of revocations is no JSON: {error!s:.200}") from error
    if not isinstance(document, dict):
        raise UntrustedArtifact("the list of revocations is no JSON object")
    return document


def _signatures(document: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    text, signatures = document.get("list"), document.get("signatures")
    if not isinstance(text, str) or not isinstance(signatures, dict):
        raise UntrustedArtifact("the list of revocations is not signed: it has no `list` and `signatures`")
    return text, signatures


def _signed_by(key: str, signature: object, text: str) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        public_key(key).verify(decode(str(signature), 64), text.encode())
    except (InvalidSignature, ValueError):
        return False
    return True


def _parsed(text: str) -> RevocationList:
    """A list that is believed, so that what is wrong with it is its service's fault."""
    try:
        value = json.loads(text)
        if value["format"] != FORMAT:
            raise ValueError(f"its format is {value['format']!r:.40}; this tirgemm reads {FORMAT}")
        number, keys = value["number"], tuple(value["keys"])
        if type(number) is not int or number < 1 or not all(map(is_public_key, keys)):
            raise ValueError("it needs a number from 1 and public keys")
        revoked = (_texts(value["revoked_keys"]), _texts(value["revoked_artifacts"]))
        return RevocationList(number, str(value["issued_at"]), keys, *revoked)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UntrustedArtifact(f"the list of revocations is none: {error!s:.200}") from error


def _texts(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise TypeError("what is revoked must be an object of names and reasons")
    return {str(name): str(reason)[:MAX_REASON] for name, reason in value.items()}
