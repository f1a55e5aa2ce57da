"""``Device``: what a kernel runs on, as one frozen value. Detection is in ``tirgemm.detect``.

``key`` names the class of interchangeable devices: records and kernels are stored under it. Two GPUs of one model
share a key; the environment (driver, CUDA, TVM) is the fingerprint's, not the key's.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from tirgemm.errors import InvalidDevice

Kind = Literal["cpu", "cuda"]
_KEY = re.compile(r"(cpu:[a-z0-9.-]+(:[a-z0-9.-]+){3}|cuda:sm_\d+a?:[a-z0-9-]+:\d+(:\d+w)?)", re.ASCII)
_PLACE = re.compile(r"cpu|cuda(:\d{1,4})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one block, one SM and the whole device can hold. Bytes, registers, threads. Zeros on a CPU."""

    shared_per_block: int = 0
    shared_per_sm: int = 0
    shared_reserved_per_block: int = 0
    registers_per_sm: int = 0
    registers_per_thread: int = 0
    threads_per_block: int = 0
    threads_per_sm: int = 0
    blocks_per_sm: int = 0
    l2_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Device:
    """A device, present or named for cross-compilation.

    ``arch`` is ``sm_80`` and so on for CUDA, the micro-architecture level for a CPU (``x86-64-v3``, ``x86-64-v4``);
    ``units`` counts SMs, or the hardware threads that this process may use; ``memory_bytes`` is what problems must
    fit; clocks in MHz; ``peak_tflops`` and ``peak_gbps`` are nominal; ``features`` the CPU features (sorted) that
    generated code may use; ``uuid`` of the one physical device, empty where the device is only named; ``environment``
    is the fingerprint: driver, CUDA, TVM and so on; ``power_limit_w`` is set where somebody has given the device
    another power limit than its model has, which makes it another class.
    """

    kind: Kind
    arch: str
    model: str
    units: int
    memory_bytes: int
    limits: Limits = Limits()
    clock_mhz: int = 0
    memory_clock_mhz: int = 0
    peak_tflops: tuple[tuple[str, float], ...] = ()
    peak_gbps: float = 0.0
    features: tuple[str, ...] = ()
    uuid: str = ""
    index: int = 0
    environment: tuple[tuple[str, str], ...] = ()
    power_limit_w: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("cpu", "cuda"):
            raise InvalidDevice(f"device kind is {self.kind!r}; it must be cpu or cuda")
        if self.units < 1 or self.memory_bytes < 1:
            raise InvalidDevice(
                f"device {self.model!r} has {self.units} units and {self.memory_bytes} bytes; both must be positive"
            )

    @property
    def present(self) -> bool:
        """Whether this is a device of this machine rather than a named one."""
        return bool(self.uuid)

    @property
    def key(self) -> str:
        """``cuda:sm_90a:nvidia-h200:132``, with ``:450w`` behind where its power is limited to that, or
        ``cpu:x86-64-v4:amd-epyc-9575f:2:1f0c9a3b`` (threads, digest of the features)."""
        model = re.sub(r"[^a-z0-9]+", "-", self.model.lower()).strip("-") or self.kind
        if self.kind == "cuda":
            limited = f":{self.power_limit_w}w" if self.power_limit_w else ""
            return f"cuda:{self.arch}:{model}:{self.units}{limited}"
        digest = hashlib.sha256(",".join(self.features).encode()).hexdigest()[:8]
        return f"cpu:{self.arch}:{model}:{self.units}:{digest}"

    @property
    def device_class(self) -> Device:
        """The class of interchangeable devices, without what tells two of them apart: one value for all of them."""
        return replace(self, uuid="", index=0, environment=())

    @property
    def name(self) -> str:
        """What a person reads and types: ``cpu``, ``cuda:0``, or ``sm_80`` where only named."""
        if self.kind == "cpu":
            return "cpu"
        return f"cuda:{self.index}" if self.present else self.arch

    @property
    def names(self) -> frozenset[str]:
        """Everything that a person may call it by: its key, its name, its architecture, ``cuda`` for the first GPU."""
        return frozenset({self.key, self.name, self.arch} | ({"cuda"} if self.name == "cuda:0" else set()))

    @property
    def only_named(self) -> str:
        """The sentence that refuses to measure on a device that is not of this machine."""
        return (
            f"device {self.name} is only named: it is an architecture to compile for, no device of this machine, so "
            "that nothing can be measured on it"
        )

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits over the environment."""
        return hashlib.sha256(json.dumps(self.environment).encode()).hexdigest()[:16]

    @property
    def lock_key(self) -> str:
        """What the host-wide lock of this device is named by: the GPU's UUID, or ``cpu``."""
        if not self.present:
            raise InvalidDevice(self.only_named)
        return "cpu" if self.kind == "cpu" else self.uuid

    def with_(self, **changes: Any) -> Device:
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """Every field, and ``key`` and ``name`` beside them; the power limit only where there is one, as older versions
        do not know it."""
        out = asdict(self) | {"key": self.key, "name": self.name}
        if not self.power_limit_w:
            del out["power_limit_w"]
        return out | {
            "peak_tflops": dict(self.peak_tflops),
            "environment": dict(self.environment),
            "features": list(self.features),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Device:
        """The Device that ``to_json`` wrote. Raises InvalidDevice."""
        try:
            fields = {k: v for k, v in value.items() if k not in ("key", "name")}
            fields["limits"] = Limits(**fields.get("limits", {}))
            for name in ("peak_tflops", "environment"):
                fields[name] = tuple((str(k), v) for k, v in fields.get(name, {}).items())
            return cls(**fields | {"features": tuple(fields.get("features", ()))})
        except (TypeError, AttributeError) as error:
            raise InvalidDevice(f"{value!r:.200} does not describe a device: {error}") from error


def is_device_key(text: str) -> bool:
    """Whether ``text`` has the form of a device's key, whatever devices there are."""
    return _KEY.fullmatch(text) is not None


def is_device_place(text: str) -> bool:
    """Whether ``text`` names a device by its place in a machine: ``cpu``, ``cuda`` or ``cuda:1``."""
    return _PLACE.fullmatch(text) is not None
