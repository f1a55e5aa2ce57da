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
        form = f"{path} is not a suite (an object with name, source and gemms)"
        try:
            value = json.loads(read_regular(path, MAX_FILE_BYTES))
        except (OSError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"{form}: {error}") from error
        if not isinstance(value, dict):
            raise InvalidRequest(f"{form}: it is {value!r:.80}")
        for member, kind, meaning in (("name", str, "a text"), ("source", str, "a text"), ("gemms", list, "a list")):
            if member not in value:
                raise InvalidRequest(f"{form}: it has no member {member!r}")
            if not isinstance(value[member], kind):
                raise InvalidRequest(f"{form}: {member} is {value[member]!r:.80}; it must be {meaning}")
        return cls(value["name"], value["source"], tuple(dict.fromkeys(map(Gemm.parse, value["gemms"]))))
