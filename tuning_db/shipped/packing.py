"""Writing of shipped records: a records file whose problems are gzip members, with their places in the header."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from tirgemm.device import Device
from tirgemm.errors import StoreError
from tirgemm.tuning.records import Candidate
from tirgemm.tuning.records.json_values import dump_json
from tirgemm.tuning_db import records_file
from tirgemm.tuning_db.record_values import candidate_out, device_out

_LEVEL = 9


def pack(path: Path, devices: Sequence[Device], candidates: Iterable[Candidate]) -> None:
    """Write ``candidates`` with the ``devices`` that they were measured on; whole or not at all.

    Members can be read one by one (``records.ShippedFile``) and the file from its start, as any records file: unpacking
    goes on from member to member. The devices are named without UUID and index: a class is meant. Equal records make
    equal files. Raises StoreError.
    """
    groups: dict[tuple[str, str, str], list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault((candidate.device_key, str(candidate.gemm), candidate.regime), []).append(candidate)
    members = [_member(map(candidate_out, group)) for group in groups.values()]
    index: list[tuple[str, str, str, int, int]] = []
    offset = 0
    for place, member in zip(groups, members, strict=True):
        index.append((*place, offset, len(member)))
        offset += len(member)
    header = {
        "format": records_file.FORMAT,
        "version": records_file.VERSION,
        "counts": {"candidate": sum(map(len, groups.values())), "device": len(devices)},
        "index": index,
    }
    named = [device_out(device.with_(uuid="", index=0).to_json()) for device in devices]
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        unfinished.write_bytes(b"".join([_member([header, *named]), *members]))
        unfinished.replace(path)
    except OSError as error:
        raise StoreError(f"records file {path} cannot be written: {error.strerror}; choose another place") from error
    finally:
        unfinished.unlink(missing_ok=True)


def _member(values: Iterable[object]) -> bytes:
    """One gzip member of a line for each value, without name and time."""
    return gzip.compress(b"".join(dump_json(value).encode() + b"\n" for value in values), _LEVEL, mtime=0)
