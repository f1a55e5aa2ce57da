"""Suite: a named list of shapes with its source, as a JSON file has it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tirgemm.artifact.regular_file import read_regular
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm

MAX_FILE_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Suite:
    """A named list of shapes and where they come from."""

    name: str
    source: str
    gemms: tuple[Gemm, ...]

    @classmethod
    def read(cls, path: Path) -> Suite:
        """The suite of a JSON file. Raises InvalidRequest, and InvalidGemm for a shape that cannot be."""
        try:
            value = json.loads(read_regular(path, MAX_FILE_BYTES))
            name, source, gemms = str(value["name"]), str(value["source"]), list(value["gemms"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidRequest(f"{path} is not a suite (an object with name, source and gemms): {error}") from error
        return cls(name, source, tuple(Gemm.parse(text) for text in gemms))
