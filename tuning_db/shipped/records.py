"""Reading of shipped records: a folder of records files, each with an index, read one problem at a time."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from tirgemm.device import Device
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.records import Candidate
from tirgemm.tuning.records.json_values import dump_json
from tirgemm.tuning_db import records_file, shipped
from tirgemm.tuning_db.record_values import plain_candidates, value_in

_CHUNK = 64 << 10
# Problems of a file whose candidates are kept, once they were asked for.
_KEPT = 64
# And of how many is known which families they are of: that takes a tenth of making them.
_KEPT_FAMILIES = 8192
# A config as ``candidate_out`` writes it.
_FAMILY = re.compile(rb'"config":\{"family":"([^"\\]+)"')


@dataclass(frozen=True)
class _Head:
    """The first member of a file: its devices, and where the member with each problem is. ``start`` is where the first
    is."""

    devices: tuple[Device, ...]
    members: dict[tuple[str, str, Regime], tuple[int, int]]
    start: int


class ShippedFile:
    """One records file whose candidates of a device class, problem and regime lie in one gzip member.

    Nothing is read before it is asked for, and then the index and what was asked for alone. Raises InvalidRequest for a
    file that is damaged or has no index.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.candidates = lru_cache(maxsize=_KEPT)(self._read)
        self.families = lru_cache(maxsize=_KEPT_FAMILIES)(self._read_families)

    @property
    def devices(self) -> tuple[Device, ...]:
        """What was measured on, with the environment of the measurements."""
        return self._head.devices

    @property
    def places(self) -> Collection[tuple[str, str, Regime]]:
        """Device key, problem and regime of everything."""
        return self._head.members.keys()

    @property
    def gemms(self) -> set[Gemm]:
        """Every problem that has candidates here."""
        return {Gemm.parse(gemm) for gemm in {gemm for _, gemm, _ in self.places}}

    def _read(self, device_key: str, gemm: str, regime: Regime) -> tuple[Candidate, ...]:
        try:
            return tuple(plain_candidates(map(json.loads, self._lines(device_key, gemm, regime))))
        except (KeyError, ValueError) as error:
            raise self._damaged(gemm, regime, error) from error

    def _read_families(self, device_key: str, gemm: str, regime: Regime) -> frozenset[str]:
        lines = self._lines(device_key, gemm, regime)
        return frozenset(name.decode() for line in lines for name in _FAMILY.findall(line))

    def _lines(self, device_key: str, gemm: str, regime: Regime) -> list[bytes]:
        """The lines of a problem; none where there is no such problem."""
        named = zip(("device_key", "gemm", "regime"), (device_key, gemm, regime), strict=True)
        wanted = [f'"{name}":{dump_json(value)}'.encode() for name, value in named]
        return [line for line in self._member(device_key, gemm, regime).splitlines() if all(w in line for w in wanted)]

    def _member(self, device_key: str, gemm: str, regime: Regime) -> bytes:
        """The member with a problem; empty where there is none."""
        place = self._head.members.get((device_key, gemm, regime))
        if place is None:
            return b""
        offset, size = place
        try:
            with self.path.open("rb") as file:
                file.seek(self._head.start + offset)
                return gzip.decompress(file.read(size))
        except (OSError, EOFError, zlib.error) as error:
            raise self._damaged(gemm, regime, error) from error

    def _damaged(self, gemm: str, regime: Regime, error: Exception) -> InvalidRequest:
        return InvalidRequest(f"{self.path} is damaged at {gemm}, {regime}: {error}; install tirgemm again")

    @cached_property
    def _head(self) -> _Head:
        lines, start = self._first_member()
        try:
            header, *records = (json.loads(line) for line in lines)
        except ValueError as error:
            raise InvalidRequest(f"{self.path} is damaged: {error}; install tirgemm again") from error
        records_file.check_header(header, str(self.path))
        index: list[Any] | None = header.get("index")
        if index is None:
            raise InvalidRequest(f"{self.path} has no index; scripts/ship_records.py writes files that have one")
        members = {(key, gemm, regime): (int(offset), int(size)) for key, gemm, regime, offset, size in index}
        devices = (value_in(record, str(self.path)) for record in records)
        return _Head(tuple(device for device in devices if isinstance(device, Device)), members, start)

    def _first_member(self) -> tuple[list[bytes], int]:
        """The lines of the first gzip member, and where it ends."""
        unpacker, text, taken = zlib.decompressobj(wbits=31), b"", 0
        try:
            with self.path.open("rb") as file:
                while not unpacker.eof and (chunk := file.read(_CHUNK)):
                    text += unpacker.decompress(chunk)
                    taken += len(chunk)
        except (OSError, zlib.error) as error:
            raise InvalidRequest(f"{self.path} cannot be read: {error}; install tirgemm again") from error
        return text.splitlines(), taken - len(unpacker.unused_data)


class ShippedRecords:
    """The records files of a folder, by default the package's own. Making one reads nothing."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def of(self, device_key: str) -> ShippedFile | None:
        """The first of ``files_of``, which describes the devices; None where there is none."""
        return next(iter(self.files_of(device_key)), None)

    def files_of(self, device_key: str) -> tuple[ShippedFile, ...]:
        """The files of a device class, that of kernel sets last; none, which costs nothing, where its model was never
        measured. Of the package's own no two have the same problem."""
        return self._files.get(device_key.split(":")[2] if device_key.count(":") >= 2 else "", ())

    def files_of_similar_devices(self, device: Device) -> list[tuple[Device, ShippedFile]]:
        """What was measured on devices of the same architecture, the device's own class first, then by size; of one
        class the file of kernel sets last."""
        nearby = {
            (theirs.key, file.path): (theirs, file)
            for file in self.files()
            for theirs in file.devices
            if (theirs.kind, theirs.arch) == (device.kind, device.arch)
        }
        return sorted(nearby.values(), key=lambda pair: (pair[0].key != device.key, abs(pair[0].units - device.units)))

    def files(self) -> list[ShippedFile]:
        """All of them."""
        return [file for of_model in self._files.values() for file in of_model]

    @cached_property
    def _files(self) -> dict[str, tuple[ShippedFile, ...]]:
        folder = shipped.FOLDER if self.folder is None else self.folder
        paths = sorted(folder.glob(f"*{shipped.SUFFIX}"), key=lambda path: (shipped.holds_kernel_sets(path), path))
        of_models: dict[str, tuple[ShippedFile, ...]] = {}
        for path in paths:
            model = shipped.device_model(path)
            of_models[model] = (*of_models.get(model, ()), ShippedFile(path))
        return of_models
