"""Writing of shipped records: a records file of gzip members, with the places of its problems in the header."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tirgemm.artifact.regular_file import write_named
from tirgemm.device import Device
from tirgemm.tuning.records import Candidate
from tirgemm.tuning.records.json_values import dump_json
from tirgemm.tuning_db import records_file
from tirgemm.tuning_db.record_values import candidate_out, device_out

_LEVEL = 9
# Candidates after which a member ends with its problem: what repeats from one to the next is compressed once. With a
# member for each problem, 1.9 times as many bytes.
_CANDIDATES = 256


# Device key, problem and regime.
MemberKey = tuple[str, str, str]


def pack(path: Path, devices: Sequence[Device], candidates: Iterable[Candidate]) -> None:
    """Write ``candidates`` with the ``devices`` that they were measured on; whole or not at all.

    A member has one problem or some small ones. Members can be read one by one (``records.ShippedFile``) and the file
    from its start, as any records file: unpacking goes on from member to member. The devices are named without UUID and
    index: a class is meant. Equal records make equal files. Raises InvalidRequest.
    """
    groups: dict[MemberKey, list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault((candidate.device_key, str(candidate.gemm), candidate.regime), []).append(candidate)
    members: list[bytes] = []
    index: list[tuple[str, str, str, int, int]] = []
    offset = 0
    for places in _shared(groups):
        member = _member(candidate_out(candidate) for place in places for candidate in groups[place])
        index += [(*place, offset, len(member)) for place in places]
        members.append(member)
        offset += len(member)
    header = {
        "format": records_file.FORMAT,
        "version": records_file.VERSION,
        "counts": {"candidate": sum(map(len, groups.values())), "device": len(devices)},
        "index": index,
    }
    named = [device_out(device.with_(uuid="", index=0).to_json()) for device in devices]
    write_named(path, b"".join([_member([header, *named]), *members]))


def _shared(groups: Mapping[MemberKey, Sequence[Candidate]]) -> Iterator[list[MemberKey]]:
    """The problems of each member, in their order."""
    places: list[MemberKey] = []
    count = 0
    for place, group in groups.items():
        places.append(place)
        count += len(group)
        if count >= _CANDIDATES:
            yield places
            places, count = [], 0
    if places:
        yield places


def _member(values: Iterable[object]) -> bytes:
    """One gzip member of a line for each value, without name and time."""
    return gzip.compress(b"".join(dump_json(value).encode() + b"\n" for value in values), _LEVEL, mtime=0)
