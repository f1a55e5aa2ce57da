"""``SigningKeys``: the private keys of a data folder, the current and the former ones, and its list of revocations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from tirgemm._user_folders import REVOCATIONS, SIGNING_KEY
from tirgemm.artifact import private_file
from tirgemm.artifact.revocations import MAX_BYTES, MAX_REASON, RevocationList
from tirgemm.artifact.sign import Signer, public_bytes
from tirgemm.errors import InvalidRequest, UntrustedArtifact

LIST_FILE = REVOCATIONS
NEXT_KEY = f"{SIGNING_KEY}.next"
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
        kept = [Signer.load(path) for path in _former_files(self.folder)]
        data = private_file.read(self.folder / LIST_FILE, "list of revocations", 0o022, InvalidRequest)
        held = (self.current.public, *(signer.public for signer in kept))
        self.listed = None if data is None else RevocationList.read(data, held)
        # What died may have left the current key among the former ones, and a revoked one with them.
        gone = {self.current.public, *(self.listed.revoked_keys if self.listed else ())}
        self.former = tuple(signer for signer in kept if signer.public not in gone)

    @property
    def public(self) -> tuple[str, ...]:
        """The public keys that are valid, the current one first."""
        return (self.current.public, *(signer.public for signer in self.former))

    def rotate(self) -> None:
        """Make a new current key; the one until now becomes a former one, and vouches for it.

        Whatever dies in between: the new key signs nothing before the list names it, the old one is kept before the new
        one takes its place, and the next call goes on with the new key that is there.
        """
        waiting = self.folder / NEXT_KEY
        used = {self.current.public, *(self.listed.revoked_keys if self.listed else ())}
        if not waiting.exists() or Signer.load(waiting).public in used:
            private_file.replace(waiting, Signer.generated_pem())
        self._write({}, {}, Signer.load(waiting))
        if self.current.public not in {Signer.load(path).public for path in _former_files(self.folder)}:
            private_file.create(_free_name(self.folder), (self.folder / SIGNING_KEY).read_bytes())
        private_file.replace(self.folder / SIGNING_KEY, waiting.read_bytes())
        waiting.unlink()
        self._load()

    def revoke(self, what: str, reason: str = "") -> None:
        """Revoke a key, or the artifact or the kernel of a SHA-256, for good; twice is the same as once.

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
        for path in _former_files(self.folder):
            if Signer.load(path).public == what:
                path.unlink()
        self._load()

    def _write(self, keys: Mapping[str, str], artifacts: Mapping[str, str], *successor: Signer) -> None:
        before, now = self.listed or RevocationList(0, "", ()), datetime.now(UTC)
        revoked = {**keys, **before.revoked_keys}
        signers = [signer for signer in (*successor, self.current, *self.former) if signer.public not in revoked]
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


def copy_keys(source: Path, target: Path) -> None:
    """Copy the private keys of a data folder and its list of revocations into one that has no current key, which comes
    last: a folder without it has none.

    Former keys that are there stay. So does a list that a key of ``source`` signed and that is newer than that of
    ``source``; another list stays beside the copied one, under a name with ``.replaced``.
    """
    there = [path.read_bytes() for path in _former_files(target)]
    for path in reversed(_former_files(source)):
        if (pem := path.read_bytes()) not in there:
            private_file.create(_free_name(target), pem)
    old, new = target / LIST_FILE, source / LIST_FILE
    if old.exists() and not _is_newer(old, source):
        old.replace(old.with_name(f"{LIST_FILE}.replaced"))
    if new.exists() and not old.exists():
        private_file.create(old, new.read_bytes())
    private_file.create(target / SIGNING_KEY, (source / SIGNING_KEY).read_bytes())


def _is_newer(path: Path, folder: Path) -> bool:
    """Whether a key of ``folder`` signed the list in ``path``, and it is no older than the one in ``folder``."""
    keys = SigningKeys(folder)
    try:
        number = RevocationList.read(path.read_bytes(), keys.public).number
    except UntrustedArtifact:
        return False
    return keys.listed is None or number >= keys.listed.number


def _free_name(folder: Path) -> Path:
    """The file of the next former key."""
    newest = max((int(path.suffix[1:]) for path in _former_files(folder)), default=0)
    return folder / f"{SIGNING_KEY}.{newest + 1}"


def _former_files(folder: Path) -> list[Path]:
    """The files of the former keys, the newest first."""
    files = [path for path in folder.glob(f"{SIGNING_KEY}.*") if path.suffix[1:].isdigit()]
    return sorted(files, key=lambda path: -int(path.suffix[1:]))
