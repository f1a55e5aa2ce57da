"""``Trust``: the keys whose signatures are believed.

Trust comes from outside the artifact: the user's own signing keys, the user's trust file and known servers, or keys
passed in. The key that an artifact carries only says which trusted key to check it with.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tirgemm._user_folders import REVOCATIONS, SIGNING_KEY, expanded, user_config, user_data
from tirgemm.artifact import private_file
from tirgemm.artifact.known_servers import KnownServers
from tirgemm.artifact.revocations import KnownRevocations, RevocationList
from tirgemm.artifact.sign import Signer, public_bytes, public_key
from tirgemm.errors import CorruptArtifact, InvalidRequest, UntrustedArtifact

LOG = logging.getLogger("tirgemm.artifact")


@dataclass(frozen=True)
class Trust:
    """The keys whose signatures are believed. ``path`` is the file that ``add`` writes to, if there is one. What
    ``lists``, those of data folders, revoke is refused beside what the user's own do."""

    keys: frozenset[str]
    path: Path | None = None
    lists: tuple[Path, ...] = ()

    @classmethod
    def of(cls, *keys: str) -> Trust:
        """Exactly these keys. Raises InvalidRequest for a text that is none."""
        for key in keys:
            public_bytes(key)
        return cls(frozenset(keys))

    @classmethod
    def of_signer(cls, signer: Signer) -> Trust:
        """The key of ``signer`` alone, but for what the data folder that it was read from has revoked."""
        return cls(frozenset({signer.public}), lists=signer.lists)

    @classmethod
    def default(cls, data: Path | None = None) -> Trust:
        """Whom the user trusts: ``of_user``, and the servers whose keys the user accepted."""
        trust = cls.of_user(data)
        return replace(trust, keys=trust.keys | {entry.key for entry in KnownServers.default().entries()})

    @classmethod
    def of_user(cls, data: Path | None = None) -> Trust:
        """The user's trust file, ``trusted_keys`` in the configuration folder, and the signing keys of the user's data
        folder, and of the folder ``data`` where they are the user's own."""
        trust = cls.file(user_config() / "trusted_keys")
        named = () if data is None else (expanded(data).absolute(),)
        own = {key for folder in {user_data(), *named} for key in own_keys(folder)}
        return cls(trust.keys | own, trust.path, tuple(folder / REVOCATIONS for folder in named))

    @classmethod
    def file(cls, path: Path | str) -> Trust:
        """The keys of a trust file: one a line, then anything; empty lines and lines with # are comments.

        A file that is not there trusts nobody. Raises UntrustedArtifact for one that others may write, and
        InvalidRequest for a line that holds no key.
        """
        path = Path(path)
        return cls(frozenset(_trust_file(path)), path)

    @property
    def revocations(self) -> KnownRevocations:
        """The lists of what is refused."""
        return KnownRevocations.default(*self.lists)

    def comments(self) -> dict[str, str]:
        """What the file says behind each of its keys."""
        return {} if self.path is None else _trust_file(self.path)

    def add(self, key: str, comment: str = "") -> Trust:
        """Trust one more key, in the file too where there is one (made with mode 0600), and return the new Trust.

        Raises RevokedArtifact where a known list has revoked it.
        """
        public_bytes(key)
        self.revocations.refuse("the key", key)
        if self.path is not None and key not in self.file(self.path).keys:
            with private_file.locked(self.path):
                private_file.append(self.path, f"{key} {' '.join(comment.split())}".rstrip())
        return replace(self, keys=self.keys | {key})

    def remove(self, key: str) -> bool:
        """Take a key out of the file; False where the file does not hold it."""
        if self.path is None or key not in self.file(self.path).keys:
            return False
        with private_file.locked(self.path):
            lines = self.path.read_text(errors="replace").splitlines(keepends=True)
            private_file.replace(self.path, "".join(line for line in lines if line.split()[:1] != [key]).encode())
        return True

    def check_key(self, key: str) -> None:
        """Raise UntrustedArtifact unless ``key`` is trusted, RevokedArtifact where a known list has revoked it."""
        self.revocations.refuse("the key", key)
        if key not in self.keys:
            raise UntrustedArtifact(f"the artifact is signed by {key}, which {self._advice(key)}")

    def check(self, key: str, signature: bytes, data: bytes) -> None:
        """Raise UntrustedArtifact unless ``key`` is trusted, CorruptArtifact unless it signed ``data``."""
        self.check_key(key)
        from cryptography.exceptions import InvalidSignature

        try:
            public_key(key).verify(signature, data)
        except InvalidSignature as error:
            raise CorruptArtifact(f"the manifest is not what {key} signed: it was changed after signing") from error

    def _advice(self, key: str) -> str:
        """What the keys are that lack ``key``, and how it would be accepted."""
        if self.path is None:
            return "the keys given do not hold; pass that one too if you trust its owner"
        if self.path == user_config() / "trusted_keys":
            urls = [entry.url for entry in KnownServers.default().entries() if entry.key == key]
            if urls:
                return f"you accepted for {' and '.join(urls)} alone; ask as a client of that address: --url {urls[0]}"
            return (
                f"the trust file {self.path} does not hold; if you trust its owner, accept it: tirgemm trust add {key}"
            )
        return f"the trust file {self.path} does not hold; add the key there if you trust its owner"


def _trust_file(path: Path) -> dict[str, str]:
    """The keys of a trust file with what stands behind them."""
    data = private_file.read(path, "trust file", 0o022, UntrustedArtifact)
    keys = {}
    for number, line in enumerate((data or b"").decode("utf-8", "replace").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, *comment = line.split(maxsplit=1)
        try:
            public_bytes(key)
        except InvalidRequest as error:
            raise InvalidRequest(f"trust file {path}, line {number}: {error}") from error
        keys[key] = "".join(comment).strip()
    return keys


def own_key(folder: Path) -> str | None:
    """The public key of a data folder whose signing key is the user's own file, mode 600; None for any other folder."""
    path = folder / SIGNING_KEY
    try:
        status = path.stat()
    except OSError:
        return None
    if status.st_uid != os.geteuid():
        return None
    try:
        return Signer.load(path).public
    except InvalidRequest as error:
        LOG.warning("your own signing key is not trusted: %s", error)
        return None


def own_keys(folder: Path) -> tuple[str, ...]:
    """The public keys of a data folder that is the user's own: the one that it signs with first, then those that this
    one says are valid, too, in the folder's list of revocations."""
    current = own_key(folder)
    if current is None:
        return ()
    try:
        data = private_file.read(folder / REVOCATIONS, "list of revocations", 0o022, UntrustedArtifact)
        listed = None if data is None else RevocationList.read(data, [current])
    except UntrustedArtifact as error:
        LOG.warning("your own former signing keys are not trusted: %s", error)
        return (current,)
    others = () if listed is None else listed.keys
    return (current, *(key for key in others if key != current))


def trusted(keys: Trust | Iterable[str] | None) -> Trust:
    """What a caller passed as trust: a Trust, some keys, or None for whom the user trusts. Raises
    InvalidRequest for anything else."""
    if keys is None:
        return Trust.default()
    if isinstance(keys, Trust):
        return keys
    if not isinstance(keys, Iterable):
        raise InvalidRequest(f"trust is {keys!r:.80}; give a Trust, or keys (ed25519:...)")
    return Trust.of(*((keys,) if isinstance(keys, str) else keys))
