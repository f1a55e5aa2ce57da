"""Records as JSON objects and back: devices, candidates, and kernels with their artifacts."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest, TirgemmError
from tirgemm.gemm import REGIMES, Gemm, regime_named
from tirgemm.status import ROLES
from tirgemm.timings import Timing, Timings
from tirgemm.tuning.records import Candidate, Certificate, KernelRecord, SampleSet, Status
from tirgemm.tuning.records.json_values import plain_candidate, plain_json

# A picosecond: no call of a kernel is shorter.
LEAST_US = 1e-6
# Of kernels, jobs and batches: what is none has no address in a service.
RECORD_ID = re.compile("[0-9a-f]{1,32}")
# What a candidate's members are where its record does not say.
USUAL_MEMBERS: dict[str, Any] = {
    "message": "",
    "rule": "",
    "error": None,
    "trace": None,
    "source_sha256": "",
    "binary_sha256": "",
    "kernel_sha256": "",
    "attempt": 1,
    "predicted_us": None,
    "sample_sets": [],
}
# Of a kernel, under one name in its value, its row and its record: as they are, and as JSON has them.
PLAIN_MEMBERS = ("regime", "role", "kernel_sha256", "artifact_sha256", "trials")
DOCUMENT_MEMBERS = ("device", "config", "timings")


@dataclass(frozen=True)
class KernelIn:
    """A kernel of a records file with its artifact, when the exporter stored it, and whether it was pinned there."""

    kernel: KernelRecord
    artifact: bytes
    stored_at: str
    pinned: bool = False


def device_out(device: dict[str, Any]) -> dict[str, Any]:
    """The record of a device that is described as JSON."""
    return {"kind": "device", "device": device}


def candidate_out(candidate: Candidate) -> dict[str, Any]:
    """The record of a candidate, without what has its usual value."""
    values = {
        "kind": "candidate",
        "gemm": str(candidate.gemm),
        "device_key": candidate.device_key,
        "regime": candidate.regime,
        "config": candidate.config.to_json(),
        "status": str(candidate.status),
        "sample_sets": [samples.to_json() for samples in candidate.sample_sets],
        "error": "inf" if candidate.error == math.inf else candidate.error,
    }
    values |= {name: getattr(candidate, name) for name in USUAL_MEMBERS if name not in values}
    return {name: value for name, value in values.items() if name not in USUAL_MEMBERS or value != USUAL_MEMBERS[name]}


def kernel_out(kernel: KernelRecord, artifact: bytes, stored_at: str) -> dict[str, Any]:
    """The record of a kernel with its artifact, and when it was stored; it says where the kernel is pinned."""
    record = {
        "kind": "kernel",
        "id": kernel.id,
        "gemm": str(kernel.gemm),
        **{name: getattr(kernel, name) for name in PLAIN_MEMBERS},
        **{name: getattr(kernel, name).to_json() for name in DOCUMENT_MEMBERS},
        "certificate": None if kernel.certificate is None else kernel.certificate.to_json(),
        "created_at": kernel.created_at,
        "stored_at": stored_at,
        "artifact": base64.b64encode(artifact).decode(),
    }
    return record | ({"pinned": True} if kernel.pinned else {})


def value_in(record: dict[str, Any], place: str) -> Device | Candidate | KernelIn:
    """The value of one record. InvalidRequest names its place."""
    try:
        kind = record["kind"]
        if kind == "device":
            return _device_in(record["device"])
        if kind == "candidate":
            return _candidate_in(record)
        if kind == "kernel":
            return _kernel_in(record)
        raise InvalidRequest(f"kind is {kind!r:.80}; it must be device, candidate or kernel")
    except KeyError as error:
        raise InvalidRequest(f"{place} is no record: field {error} is missing; nothing was imported") from error
    except (TirgemmError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise InvalidRequest(f"{place} is no record: {error}; nothing was imported") from error


def plain_candidates(records: Iterable[dict[str, Any]]) -> Iterator[Candidate]:
    """The candidates of records that were written by ``candidate_out`` and checked then: five times as quick."""
    gemms: dict[str, Gemm] = {}
    for record in records:
        text = record["gemm"]
        gemm = gemms.get(text) or gemms.setdefault(text, Gemm.parse(text))
        yield _candidate(record, gemm)


def _candidate_in(record: dict[str, Any]) -> Candidate:
    for name in ("message", "rule", "source_sha256", "binary_sha256", "kernel_sha256"):
        _text(record.get(name, ""), name)
    _count_in(record.get("attempt", 1), "attempt")
    _word(record, "device_key")
    regime_named(record["regime"])
    candidate = plain_candidate(_candidate(record, Gemm.parse(record["gemm"])))
    for number, samples in enumerate(candidate.sample_sets):
        place = f"sample_sets.{number}"
        _text(samples.reason, f"{place}.reason")
        _conditions(samples.conditions, place)
        for name, taken in (("samples_us", samples.samples_us), *samples.baselines.items()):
            _time(min(taken, default=None), f"{place}.{name}")
    return candidate


def _candidate(record: dict[str, Any], gemm: Gemm) -> Candidate:
    values: dict[str, Any] = USUAL_MEMBERS | {name: record[name] for name in USUAL_MEMBERS if name in record}
    for name in ("error", "predicted_us"):
        values[name] = None if values[name] is None else float(values[name])
    values["sample_sets"] = tuple(SampleSet.from_json(samples) for samples in values["sample_sets"])
    return Candidate(
        gemm=gemm,
        device_key=record["device_key"],
        regime=record["regime"],
        config=Config.from_json(record["config"]),
        status=Status(record["status"]),
        **values,
    )


def _kernel_in(record: dict[str, Any]) -> KernelIn:
    artifact = base64.b64decode(record["artifact"], validate=True)
    sha256, certificate = hashlib.sha256(artifact).hexdigest(), record["certificate"]
    if sha256 != record["artifact_sha256"]:
        raise InvalidRequest(f"the artifact has the hash {sha256}, not {record['artifact_sha256']!r:.80}")
    if record["role"] not in ROLES:
        raise InvalidRequest(f"role is {record['role']!r:.80}; it must be fallback, tuned or unverified")
    kernel = KernelRecord(
        gemm=Gemm.parse(record["gemm"]),
        device=_device_in(record["device"]),
        regime=regime_named(record["regime"]),
        role=record["role"],
        config=Config.from_json(record["config"]),
        kernel_sha256=_word(record, "kernel_sha256"),
        artifact_sha256=sha256,
        artifact_bytes=len(artifact),
        certificate=None if certificate is None else _certificate_in(plain_json(certificate)),
        timings=_timings_in(plain_json(record["timings"])),
        trials=_count_in(record["trials"], "trials"),
        created_at=_word(record, "created_at"),
        id=_kernel_id(record["id"]),
    )
    pinned = record.get("pinned", False)
    if not isinstance(pinned, bool) or (pinned and kernel.role == "unverified"):
        raise InvalidRequest(f"pinned is {pinned!r:.80}; it must be true or false, and is false of an unverified build")
    return KernelIn(kernel, artifact, _word(record, "stored_at"), pinned)


def _device_in(value: dict[str, Any]) -> Device:
    device = Device.from_json(value)
    for name in ("arch", "model", "uuid"):
        _text(getattr(device, name), f"device.{name}")
    for feature in device.features:
        _text(feature, "device.features")
    _texts(dict(device.environment), "device.environment")
    return device


def _certificate_in(value: dict[str, Any]) -> Certificate:
    certificate = Certificate.from_json(value)
    for name in ("kernel_sha256", "reference", "at"):
        _text(getattr(certificate, name), f"certificate.{name}")
    if not isinstance(certificate.passed, bool):
        raise InvalidRequest(f"certificate.passed is {certificate.passed!r:.80}; it must be true or false")
    for test in certificate.tests:
        if not isinstance(test, dict) or len({"m", "n", "k"} - test.keys()) not in (0, 3):
            raise InvalidRequest(f"certificate.tests has {test!r:.80}; each must be an object, with m, n and k or none")
    _texts(certificate.environment, "certificate.environment")
    return certificate


def _timings_in(value: dict[str, Any]) -> Timings:
    timings = Timings.from_json(value)
    for name in (*REGIMES, "predicted_us"):
        if name in timings.other:
            raise InvalidRequest(f"timings.{name} is {timings.other[name]!r:.80}, which tells of no time")
    _time(timings.predicted_us, "timings.predicted_us")
    for number, member in enumerate(timings.members or ()):
        _time(member.median_us, f"timings.members.{number}.median_us")
    for regime, timing in timings.regimes.items():
        if isinstance(timing, Timing):
            place = f"timings.{regime}"
            _time(timing.median_us, f"{place}.median_us")
            _count_in(timing.samples or 0, f"{place}.samples")
            _conditions(timing.conditions, place)
            for name, baseline in timing.baselines.items():
                _time(baseline.median_us, f"{place}.baselines.{name}.median_us")
    return timings


def _time(us: Any, name: str) -> None:
    if us is not None and (type(us) not in (int, float) or us < LEAST_US):
        raise InvalidRequest(f"{name} is {us!r:.80}; it must be a number of microseconds from {LEAST_US:g}")


def _conditions(conditions: Mapping[str, Any], place: str) -> None:
    """Check those that others are computed or written from."""
    if conditions.get("at") is not None:
        _text(conditions["at"], f"{place}.conditions.at")
    _time(conditions.get("yardstick_us"), f"{place}.conditions.yardstick_us")


def _kernel_id(value: Any) -> str:
    if not isinstance(value, str) or not RECORD_ID.fullmatch(value):
        raise InvalidRequest(f"id is {value!r:.80}; a kernel's is 1 to 32 hexadecimal digits in lower case")
    return value


def _text(value: Any, name: str) -> None:
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} is {value!r:.80}; it must be a text")


def _texts(value: Any, name: str) -> None:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{name} is {value!r:.80}; it must be an object")
    for key, text in value.items():
        _text(text, f"{name}.{key}")


def _word(record: dict[str, Any], name: str) -> str:
    value = record[name]
    if not isinstance(value, str) or not 1 <= len(value) <= 255:
        raise InvalidRequest(f"{name} is {value!r:.80}; it must be a text of 1 to 255 characters")
    return value


def _count_in(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value < 2**31:
        raise InvalidRequest(f"{name} is {value!r:.80}; it must be an integer from 0 to {2**31 - 1}")
    return value
