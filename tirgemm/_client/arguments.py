"""Arguments of ``Client``'s methods, as the values that the service is asked with."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, SupportsIndex, TypeAlias

from tirgemm._client.service_documents import Document
from tirgemm.artifact import Trust
from tirgemm.artifact.trust import trusted
from tirgemm.detect import device as detect_device
from tirgemm.device import Device
from tirgemm.errors import InvalidGemm, InvalidRequest
from tirgemm.gemm import Gemm, Range, regime_named

Trusted: TypeAlias = "Trust | str | Path | Iterable[str] | None"
Wait: TypeAlias = "bool | float | Literal['fallback']"


def as_gemm(
    m: SupportsIndex | Range | Gemm | str, n: SupportsIndex | None, k: SupportsIndex | None, fields: dict[str, Any]
) -> Gemm:
    """The Gemm of ``Client.kernel``'s arguments. Raises InvalidGemm, or InvalidRequest for a mixture of forms."""
    if isinstance(m, (Gemm, str)):
        if n is not None or k is not None or fields:
            raise InvalidRequest("give a whole Gemm (or its text) or m (number or Range), n, k and fields, not both")
        return m if isinstance(m, Gemm) else Gemm.parse(m)
    if n is None or k is None:
        if not isinstance(m, (SupportsIndex, Range)):
            raise InvalidGemm(f"gemm is {m!r:.80}; give a tirgemm.Gemm, or its text such as '4096x4096x4096:f16:nt'")
        raise InvalidRequest(f"m is {m}; n and k are missing")
    rows = str(m) if isinstance(m, Range) else _integer(m)
    return Gemm.from_json({"m": rows, "n": _integer(n), "k": _integer(k)} | fields)


def _integer(value: Any) -> Any:
    """NumPy's and other integers as int; anything else as it is, for Gemm to refuse."""
    return int(value) if hasattr(value, "__index__") and not isinstance(value, bool) else value


def deadline_of(wait: Wait) -> float:
    """The time of ``time.monotonic`` until which ``wait`` lets a search go on. Raises InvalidRequest."""
    if wait is True or wait == "fallback":
        return math.inf
    if isinstance(wait, (int, float)) and wait >= 0:
        return time.monotonic() + float(wait)
    raise InvalidRequest(f"wait is {wait!r}; it must be True, a number of seconds, or 'fallback'")


def check_seconds(name: str, value: float, *, positive: bool = False) -> None:
    """Raise InvalidRequest unless ``value`` is a number of seconds: above 0 and finite where it is ``positive``."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not (0 < value < math.inf if positive else value >= 0):
        limits = "above 0" if positive else "from 0"
        raise InvalidRequest(f"{name} is {value!r:.80}; it must be a number of seconds {limits}")


def device_name(device: Device | str | None) -> str:
    """What the service is asked for: the class of a device that is here, the name of one that is not."""
    if isinstance(device, str):
        return device
    # What is no device is refused there.
    target = device if isinstance(device, Device) else detect_device(device)
    return target.key if target.present else target.name


@dataclass(frozen=True, slots=True)
class SearchWish:
    """How a search is asked for; what is None is left to the service."""

    effort: str | None = None
    budget: Mapping[str, float] | None = None
    seed: int | None = None
    retune: bool = False
    verify: bool = True
    queue: Mapping[str, Any] | None = None
    other_devices: bool = False

    def __post_init__(self) -> None:
        example = "{'trials': 100, 'seconds': 60}"
        for name, value, such_as in (("budget", self.budget, example), ("queue", self.queue, "{'priority': 5}")):
            if value is not None and not isinstance(value, Mapping):
                raise InvalidRequest(f"{name} is {value!r:.80}; give a mapping such as {such_as}")

    def to_json(self) -> Document:
        """The members of a request's body that say so."""
        body: Document = {"effort": str(self.effort)} if self.effort is not None else {}
        body |= {"budget": dict(self.budget)} if self.budget is not None else {}
        body |= {"seed": self.seed} if self.seed is not None else {}
        body |= {"retune": True} if self.retune else {}
        body |= {} if self.verify else {"verify": False}
        body |= {"other_devices": True} if self.other_devices else {}
        return body | ({"queue": dict(self.queue)} if self.queue else {})


def request_body(gemm: Gemm, device: Device | str | None, regime: str, search: SearchWish) -> Document:
    """The body of ``POST /v1/kernels``. Raises InvalidRequest."""
    regime_named(regime)
    return {"gemm": str(gemm), "device": device_name(device), "regime": regime} | search.to_json()


def listing_filters(gemm: Gemm | str | None, device: Device | str | None) -> dict[str, Any]:
    """The parameters of a listing; None filters nothing."""
    gemm_filter = {} if gemm is None else {"gemm": str(as_gemm(gemm, None, None, {}))}
    return gemm_filter | ({} if device is None else {"device": device_name(device)})


def as_trust(trust: Trusted) -> Trust:
    """A Trust from a key, keys, a file of keys or a Trust; whom the user trusts for None."""
    if isinstance(trust, Path) or (isinstance(trust, str) and not trust.startswith("ed25519:")):
        return Trust.file(trust)
    return trusted(trust)
