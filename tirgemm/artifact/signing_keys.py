"""``SigningKeys``: the private keys of a data folder, the current and the former ones, and its list of revocations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from tirgemm._user_folders import SIGNING_KEY
from tirgemm.artifact import private_file
from tirgemm.artifact.revocations import MAX_BYTES, MAX_REASON, RevocationList
from tirgemm.artifact.sign import Signer, public_bytes
from tirgemm.errors import InvalidRequest

LIST_FILE = "revocations.json"
_SHA256 = re.compile(r"[0-9a-f]{64}")


class SigningKeys:
    """The keys of a data folder, read when it is made: ``current`` signs what is made, the artifacts of the ``former``
    ones stay valid until they are revoked. ``listed`` is the signed list, None before the first change.

    Raises InvalidRequest for a file that others may read or write.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._load()

    def _load(self) -> None:
        self.current = Signer.load_or_create(self.folder / SIGNING_KEY)
        self.former = tuple(Signer.load(path) for path in _former_files(self.folder))
        data = private_file.read(self.folder / LIST_FILE, "list of revocations", 0o022, InvalidRequest)
        self.listed = None if data is None else RevocationList.read(data, self.public)

    @property
    def public(self) -> tuple[str, ...]:
        """The public keys that are valid, the current one first."""
        return (self.current.public, *(signer.public for signer in self.former))

    def rotate(self) -> None:
        """Make a new current key; the one until now becomes a former one, and vouches for it.

        Whatever dies in between: the old key is kept before the new one takes its place.
        """
        pem = private_file.read(self.folder / SIGNING_KEY, "private key", 0o077, InvalidRequest)
        assert pem is not None
        newest = max((int(path.suffix[1:]) for path in _former_files(self.folder)), default=0)
        if self.current.public not in {signer.public for signer in self.former}:
            private_file.create(self.folder / f"{SIGNING_KEY}.{newest + 1}", pem)
        private_file.replace(self.folder / SIGNING_KEY, Signer.generated_pem())
        self._load()
        self._write({}, {})

    def revoke(self, what: str, reason: str = "") -> None:
        """Revoke a key, or the artifact of a SHA-256, for good; twice is the same as once.

        The file of a former key is deleted. Raises InvalidRequest for what is neither, and for the current key.
        """
        if len(reason) > MAX_REASON or not reason.isprintable():
            raise InvalidRequest(f"the reason is {reason!r:.80}; it must be at most {MAX_REASON} printable characters")
        if _SHA256.fullmatch(what):
            self._write({}, {what: reason})
            return
        public_bytes(what)
        if what == self.current.public:
            raise InvalidRequest(f"{what} is the key that is signed with; rotate it first, then revoke it")
        # The list first: a key without a file is no longer listed as valid, and must not be forgotten.
        self._write({what: reason}, {})
        for path, signer in zip(_former_files(self.folder), self.former, strict=True):
            if signer.public == what:
                path.unlink()
        self._load()

    def _write(self, keys: Mapping[str, str], artifacts: Mapping[str, str]) -> None:
        before, now = self.listed or RevocationList(0, "", ()), datetime.now(UTC)
        revoked = {**keys, **before.revoked_keys}
        signers = [signer for signer in (self.current, *self.former) if signer.public not in revoked]
        fresh = replace(
            before,
            # Also beyond those that a folder which was restored from a backup has shown since.
            number=max(before.number + 1, int(now.timestamp())),
            issued_at=now.isoformat(timespec="seconds"),
            keys=tuple(signer.public for signer in signers),
            revoked_keys=revoked,
            revoked_artifacts={**artifacts, **before.revoked_artifacts},
        )
        data = fresh.signed(signers)
        if len(data) > MAX_BYTES:
            raise InvalidRequest(
                f"the list of revocations would have {len(data):,} bytes; the limit is {MAX_BYTES:,}: rotate the key "
                "and revoke the old one instead of each of its artifacts"
            )
        private_file.replace(self.folder / LIST_FILE, data)
        self.listed = fresh


def key_files(folder: Path) -> list[Path]:
    """Everything of a data folder that makes its SigningKeys, the current key last: a folder without it has none."""
    files = (*_former_files(folder), folder / LIST_FILE, folder / SIGNING_KEY)
    return [path for path in files if path.is_file()]


def _former_files(folder: Path) -> list[Path]:
    """The files of the former keys, the newest first."""
    files = [path for path in folder.glob(f"{SIGNING_KEY}.*") if path.suffix[1:].isdigit()]
    return sorted(files, key=lambda path: -int(path.suffix[1:]))
