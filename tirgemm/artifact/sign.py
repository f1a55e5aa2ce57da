"""Ed25519 signatures over manifests: the private key that makes them, and how keys and signatures are written."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from tirgemm._user_folders import REVOCATIONS
from tirgemm.artifact import private_file
from tirgemm.errors import InvalidRequest, MissingExtra

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ed25519

_PREFIX = "ed25519:"


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


def is_public_key(key: object) -> TypeGuard[str]:
    """Whether ``key`` is a text of that form."""
    try:
        return isinstance(key, str) and bool(public_bytes(key))
    except InvalidRequest:
        return False


class Signer:
    """A private key. ``public`` is what others put into their trust file; ``lists`` are those of revocations beside its
    file."""

    def __init__(self, key: ed25519.Ed25519PrivateKey, *lists: Path) -> None:
        self._key = key
        self.lists = lists
        self.public = _PREFIX + encode(key.public_key().public_bytes_raw())

    def sign(self, data: bytes) -> bytes:
        """The 64 bytes of the signature over ``data``; the same for the same data."""
        return self._key.sign(data)

    @classmethod
    def generate(cls) -> Signer:
        return cls(_ed25519().generate())

    @staticmethod
    def generated_pem() -> bytes:
        """A new private key in PEM (PKCS 8), unencrypted."""
        maker = _ed25519()
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        return maker.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @classmethod
    def load(cls, path: Path | str) -> Signer:
        """The key of a PEM file (PKCS 8) that only its owner may read. Raises InvalidRequest."""
        wanted, path = _ed25519(), Path(path)
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        data = private_file.read(path, "private key", 0o077, InvalidRequest)
        if data is None:
            raise InvalidRequest(f"private key {path} does not exist")
        try:
            key = load_pem_private_key(data, password=None)
        except (ValueError, TypeError) as error:
            raise InvalidRequest(f"private key {path} is not an unencrypted PEM key: {error}") from error
        if not isinstance(key, wanted):
            raise InvalidRequest(f"private key {path} is of type {type(key).__name__}; it must be Ed25519")
        return cls(key, path.with_name(REVOCATIONS))

    @classmethod
    def load_or_create(cls, path: Path | str) -> Signer:
        """The key of that file, made first (mode 0600) where there is none; two processes at once get the same one.
        What a process that was killed left of such a file beside it is deleted."""
        path = Path(path)
        private_file.sweep(path)
        if not path.exists():
            try:
                private_file.create(path, cls.generated_pem())
            except OSError as error:
                raise InvalidRequest(
                    f"private key {path} cannot be made: {error.strerror}; name a data folder that you can write "
                    f"(TIRGEMM_DATA)"
                ) from error
        return cls.load(path)


def public_key(key: str) -> ed25519.Ed25519PublicKey:
    """The key object of ``ed25519:<base64>``."""
    _ed25519()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(public_bytes(key))
