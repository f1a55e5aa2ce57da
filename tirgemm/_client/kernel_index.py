"""Index of downloaded kernels by problem, device and regime: what a client has where its service does not answer."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tirgemm._client.cache import LOG
from tirgemm.artifact.regular_file import write_whole
from tirgemm.errors import ServiceError
from tirgemm.gemm import Gemm, Regime
from tirgemm.status import Role

FORMAT = 1
MAX_ENTRY_BYTES = 2**20
# A better role is not given up for a lesser one: what is served offline is the tuned kernel, if there ever was one.
_RANK = {"unverified": 0, "fallback": 1, "tuned": 2}


@dataclass(frozen=True, slots=True)
class CachedKernel:
    """A kernel document with the service that it came from and when its artifact was fetched (ISO 8601, UTC)."""

    gemm: str
    device: str
    regime: Regime
    role: Role
    artifact_sha256: str
    url: str
    fetched_at: str
    document: dict[str, Any]

    @property
    def age_s(self) -> float:
        """Seconds since it was fetched."""
        return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(self.fetched_at)).total_seconds())

    @property
    def age(self) -> str:
        """Its age as a person says it: ``5 minutes``, ``3 days``."""
        return _age(self.age_s)

    def __str__(self) -> str:
        return (
            f"the {self.role} kernel of {self.gemm} for {self.device} ({self.regime}) "
            f"that {self.url} gave {self.age} ago"
        )


class KernelIndex:
    """A folder of JSON files, one a problem, device, regime and service, and one more for a kernel that was chosen from
    records of another device. Several processes may use it at once.

    A file that is damaged, or written by another version, is as good as absent.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(
        self,
        gemm: Gemm,
        device: str,
        regime: Regime,
        url: str,
        *,
        verified: bool = True,
        other_devices: bool = False,
        usable: Callable[[CachedKernel], bool] = lambda _entry: True,
    ) -> CachedKernel | None:
        """The entry of a problem in a regime on ``device``, a key or a name; of several that of the service at ``url``,
        then the one fetched last. ``verified``: an unverified build does not count. A kernel that was chosen from
        records of another device counts where ``other_devices`` are asked for, or it was pinned. Only what is
        ``usable`` counts.
        """
        entries = [
            entry
            for entry in self._entries(gemm, regime)
            if device in _names(entry.document)
            and not (verified and entry.role == "unverified")
            and (other_devices or not _needs_asking(entry.document))
            and usable(entry)
        ]
        return max(entries, key=lambda entry: (entry.url == url, entry.fetched_at), default=None)

    def put(self, gemm: Gemm, document: dict[str, Any], url: str) -> None:
        """Keep a kernel document whose artifact was just fetched from ``url``; a folder that cannot be written only
        warns.

        Nothing changes where that artifact is the one that is known, or a tuned kernel is and this is none.
        """
        try:
            device, regime, role = document["device"]["key"], document["regime"], document["role"]
            sha256 = document["artifact"]["sha256"]
        except (KeyError, TypeError) as error:
            raise ServiceError(f"the kernel document lacks {error}: {document!r:.200}") from error
        other = " of another device" if _needs_asking(document) else ""
        path = self.folder / f"{_stem(gemm, regime)}-{_digest(f'{device} {url}{other}')}.json"
        known = _read(path)
        if known is not None and (known.artifact_sha256 == sha256 or _RANK.get(known.role, -1) > _RANK.get(role, -1)):
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")
        entry = CachedKernel(str(gemm), device, regime, role, sha256, url, now, document)
        data = json.dumps({"format": FORMAT} | asdict(entry)).encode()
        if len(data) > MAX_ENTRY_BYTES:
            LOG.warning("the kernel document of %s has %d bytes; it is not kept in the cache", gemm, len(data))
            return
        try:
            write_whole(path, data)
        except OSError as error:
            LOG.warning("%s is not kept in the cache: %s", path, error)

    def _entries(self, gemm: Gemm, regime: Regime) -> Iterator[CachedKernel]:
        with contextlib.suppress(OSError):
            for path in self.folder.glob(f"{_stem(gemm, regime)}-*.json"):
                entry = _read(path)
                if entry is not None and (entry.gemm, entry.regime) == (str(gemm), regime):
                    yield entry


def _read(path: Path) -> CachedKernel | None:
    try:
        value = json.loads(path.read_bytes())
        if value.pop("format") != FORMAT:
            return None
        entry = CachedKernel(**value)
        whole = entry.document["artifact"]["sha256"] == entry.artifact_sha256
        known = re.fullmatch(r"[0-9a-f]{64}", entry.artifact_sha256) and isinstance(entry.document["device"], dict)
        return entry if whole and known and entry.age_s >= 0 else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _names(document: dict[str, Any]) -> set[str]:
    """What the device of a kernel document may be asked for by, as ``Device.names``."""
    device = document["device"]
    names = {str(device.get(name)) for name in ("key", "name", "arch")}
    return names | {"cuda"} if device.get("name") == "cuda:0" else names


def _needs_asking(document: dict[str, Any]) -> bool:
    """Whether a kernel was chosen from records of another device, and not pinned, which has it answer everybody."""
    return bool(document.get("other_device")) and not document.get("pinned")


def _stem(gemm: Gemm, regime: Regime) -> str:
    return _digest(f"{gemm} {regime}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _age(seconds: float) -> str:
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return "less than a minute"
