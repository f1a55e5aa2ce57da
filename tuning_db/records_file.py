"""The text form of records: one JSON object a line, the first one a header, compressed where the name ends in
``.gz``."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Any, cast

from tirgemm.artifact.regular_file import open_regular
from tirgemm.errors import InvalidRequest, StorageFull, StoreError
from tirgemm.tuning.records.json_values import dump_json

FORMAT = "tirgemm-records"
VERSION = 1
# An artifact in base64 is the longest line; 64 MiB hold one of 48 MiB.
MAX_LINE = 64 << 20


def write(path: Path, header: dict[str, Any], records: Iterable[dict[str, Any]]) -> int:
    """Write a records file, whole or not at all; returns its bytes. StoreError and StorageFull."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            with unfinished.open("wb") as raw, _lines_of(raw, path) as out:
                for value in itertools.chain([header], records):
                    out.write(dump_json(value).encode() + b"\n")
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
        return path.stat().st_size
    except OSError as error:
        kind = StorageFull if error.errno in (28, 122) else StoreError
        raise kind(f"records file {path} cannot be written: {error.strerror}; choose another place") from error


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The header, then each record. InvalidRequest names the file and the line where it is no records file."""
    number = 0
    try:
        with open_regular(path) as raw, _lines_of(raw, path) as lines:
            while line := lines.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    raise InvalidRequest(
                        f"{path}, line {number} is longer than {MAX_LINE} bytes; it is no records file"
                    )
                yield _parsed(line, path, number)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidRequest(
            f"{path} is truncated or damaged behind line {number}: {error}; get the file again"
        ) from error
    except OSError as error:
        raise InvalidRequest(f"records file {path} cannot be read: {error.strerror}; check the name") from error


def sha256(path: Path) -> str:
    """What a file's records are known by once they are imported."""
    try:
        with open_regular(path) as raw:
            return hashlib.file_digest(raw, "sha256").hexdigest()
    except OSError as error:
        raise InvalidRequest(f"records file {path} cannot be read: {error.strerror}; check the name") from error


def check_header(header: dict[str, Any], name: str) -> None:
    """Raise InvalidRequest unless ``header`` begins a records file of a version that this tirgemm reads."""
    if header.get("format") != FORMAT:
        raise InvalidRequest(
            f"{name} does not begin with the header of a {FORMAT} file; `tirgemm db export` writes them"
        )
    if header.get("version") != VERSION:
        raise InvalidRequest(
            f"{name} has version {header.get('version')!r}; this tirgemm reads {VERSION}. Upgrade tirgemm"
        )
    if not isinstance(header.get("counts"), dict):
        raise InvalidRequest(f"{name} has a header without counts; get the file again")


def _parsed(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise InvalidRequest(f"{path}, line {number} is not JSON: {error}; get the file again") from error
    except RecursionError as error:
        raise InvalidRequest(f"{path}, line {number} is nested too deeply; it is no records file") from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"{path}, line {number} is {type(value).__name__}, not an object; it is no records file")
    return value


def _lines_of(raw: IO[bytes], path: Path) -> AbstractContextManager[IO[bytes]]:
    """What is written into a file, or read of it, before it is compressed, and once it is unpacked."""
    if path.suffix != ".gz":
        return nullcontext(raw)
    # No name and no time inside: equal records make equal files.
    lines = gzip.GzipFile(filename="", mode="wb" if raw.writable() else "rb", fileobj=raw, mtime=0)
    return cast(AbstractContextManager[IO[bytes]], lines)
