"""Ed25519 signatures over manifests: ``Signer`` makes them, ``Trust`` says whose are believed.

Trust comes from outside the artifact: the user's trust file, or keys passed in. The key that an artifact carries only
says which trusted key to check it with.
"""

from __future__ import annotations

import base64
import binascii
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tirgemm.errors import CorruptArtifact, InvalidRequest, MissingExtra, UntrustedArtifact

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ed25519

_PREFIX = "ed25519:"
_TRUST_FILE_BYTES = 1 << 20


def _ed25519() -> type[ed25519.Ed25519PrivateKey]:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise MissingExtra(
            "signatures need the package cryptography, which is not installed: pip install 'tirgemm[client]'"
        ) from error
    return Ed25519PrivateKey


def encode(data: bytes) -> str:
    """Standard base64, as keys and signatures are written."""
    return base64.b64encode(data).decode("ascii")


def decode(text: str, size: int) -> bytes:
    """The bytes of the one base64 text that ``encode`` writes for them. Raises ValueError for any other."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ValueError(f"{text!r:.80} is not base64") from error
    if len(data) != size or encode(data) != text:
        raise ValueError(f"{text!r:.80} is not the base64 of {size} bytes")
    return data


def public_bytes(key: str) -> bytes:
    """The 32 bytes of ``ed25519:<base64>``. Raises InvalidRequest."""
    try:
        if not isinstance(key, str) or not key.startswith(_PREFIX):
            raise ValueError(f"{key!r:.80} does not begin with {_PREFIX}")
        return decode(key.removeprefix(_PREFIX), 32)
    except ValueError as error:
        raise InvalidRequest(f"not a public key of the form {_PREFIX}<base64>: {error}") from error


class Signer:
    """A private key. ``public`` is what others put into their trust file."""

    def __init__(self, key: ed25519.Ed25519PrivateKey) -> None:
        self._key = key
        self.public = _PREFIX + encode(key.public_key().public_bytes_raw())

    def sign(self, data: bytes) -> bytes:
        """The 64 bytes of the signature over ``data``; the same for the same data."""
        return self._key.sign(data)

    @classmethod
    def generate(cls) -> Signer:
        return cls(_ed25519().generate())

    @classmethod
    def load(cls, path: Path | str) -> Signer:
        """The key of a PEM file (PKCS 8) that only its owner may read. Raises InvalidRequest."""
        wanted, path = _ed25519(), Path(path)
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        data = _private_file(path, "private key", 0o077, InvalidRequest)
        if data is None:
            raise InvalidRequest(f"private key {path} does not exist")
        try:
            key = load_pem_private_key(data, password=None)
        except (ValueError, TypeError) as error:
            raise InvalidRequest(f"private key {path} is not an unencrypted PEM key: {error}") from error
        if not isinstance(key, wanted):
            raise InvalidRequest(f"private key {path} is of type {type(key).__name__}; it must be Ed25519")
        return cls(key)

    @classmethod
    def load_or_create(cls, path: Path | str) -> Signer:
        """The key of that file, made first (mode 0600) where there is none; two processes at once get the same one."""
        maker, path = _ed25519(), Path(path)
        if not path.exists():
            from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

            pem = maker.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            draft = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
            try:
                with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.write(pem)
                    file.flush()
                    os.fsync(file.fileno())
                os.link(draft, path)  # unlike a rename, this fails where another process was first
            except FileExistsError:
                pass
            finally:
                draft.unlink(missing_ok=True)
        return cls.load(path)


@dataclass(frozen=True)
class Trust:
    """The keys whose signatures are believed. ``path`` is the file that ``add`` writes to, if there is one."""

    keys: frozenset[str]
    path: Path | None = None

    @classmethod
    def of(cls, *keys: str) -> Trust:
        """Exactly these keys. Raises InvalidRequest for a text that is none."""
        for key in keys:
            public_bytes(key)
        return cls(frozenset(keys))

    @classmethod
    def default(cls) -> Trust:
        """The user's trust file, ``tirgemm/trusted_keys`` in the XDG configuration folder."""
        base = os.environ.get("XDG_CONFIG_HOME", "")
        folder = Path(base) if base.startswith("/") else Path.home() / ".config"
        return cls.file(folder / "tirgemm" / "trusted_keys")

    @classmethod
    def file(cls, path: Path | str) -> Trust:
        """The keys of a trust file: one a line, then anything; empty lines and lines with # are comments.

        A file that is not there trusts nobody. Raises UntrustedArtifact for one that others may write, and
        InvalidRequest for a line that holds no key.
        """
        path = Path(path)
        data = _private_file(path, "trust file", 0o022, UntrustedArtifact)
        keys = []
        for number, line in enumerate((data or b"").decode("utf-8", "replace").splitlines(), 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            key = line.split()[0]
            try:
                public_bytes(key)
            except InvalidRequest as error:
                raise InvalidRequest(f"trust file {path}, line {number}: {error}") from error
            keys.append(key)
        return cls(frozenset(keys), path)

    def add(self, key: str, comment: str = "") -> Trust:
        """Trust one more key, in the file too where there is one (made with mode 0600), and return the new Trust."""
        public_bytes(key)
        if self.path is not None and key not in self.file(self.path).keys:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            line = f"{key} {' '.join(comment.split())}".rstrip() + "\n"
            with os.fdopen(os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "r+b") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - 1))
                ends_mid_line = size > 0 and file.read(1) != b"\n"
                file.write((b"\n" if ends_mid_line else b"") + line.encode())
        return Trust(self.keys | {key}, self.path)

    def check(self, key: str, signature: bytes, data: bytes) -> None:
        """Raise UntrustedArtifact unless ``key`` is trusted, CorruptArtifact unless it signed ``data``."""
        if key not in self.keys:
            where = f"the trust file {self.path}" if self.path else "the keys given"
            raise UntrustedArtifact(
                f"the artifact is signed by {key}, which {where} does not hold; add the key there if you trust its owner"
            )
        from cryptography.exceptions import InvalidSignature

        try:
            public_key(key).verify(signature, data)
        except InvalidSignature as error:
            raise CorruptArtifact(f"the manifest is not what {key} signed: it was changed after signing") from error


def public_key(key: str) -> ed25519.Ed25519PublicKey:
    """The key object of ``ed25519:<base64>``."""
    _ed25519()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(public_bytes(key))


def trusted(keys: Trust | Iterable[str] | None) -> Trust:
    """What a caller passed as trust: a Trust, some keys, or None for the user's trust file."""
    if keys is None:
        return Trust.default()
    if isinstance(keys, Trust):
        return keys
    return Trust.of(*((keys,) if isinstance(keys, str) else keys))


def _private_file(path: Path, what: str, forbidden: int, refuse: Callable[[str], Exception]) -> bytes | None:
    """The bytes of a file whose mode has none of ``forbidden`` and which is the user's or root's; None if absent."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise refuse(f"{what} {path} is not a regular file")
            if found.st_mode & forbidden:
                want = "600" if forbidden & 0o044 else "644"
                raise refuse(
                    f"{what} {path} has mode {stat.S_IMODE(found.st_mode):o}; others must be kept out: chmod {want} {path}"
                )
            if found.st_uid not in (os.geteuid(), 0):
                raise refuse(f"{what} {path} belongs to user {found.st_uid}; it must be yours or root's")
            data = file.read(_TRUST_FILE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise refuse(f"{what} {path} cannot be read: {error.strerror}") from error
    if len(data) > _TRUST_FILE_BYTES:
        raise refuse(f"{what} {path} has more than {_TRUST_FILE_BYTES} bytes")
    return data
