"""Suites of shapes: JSON files, each with its source.

Those with a name lie in ``benchmarks/suites``; ``tirgemm/bench/shapes`` is a link to that folder, so that installing
packs it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm


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
            value = json.loads(path.read_text())
            name, source, gemms = str(value["name"]), str(value["source"]), list(value["gemms"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidRequest(f"{path} is not a suite (an object with name, source and gemms): {error}") from error
        return cls(name, source, tuple(Gemm.parse(text) for text in gemms))


def benchmarks_folder() -> Path | None:
    """The checkout's ``benchmarks`` folder: under the current folder, else beside this package; None where
    installed."""
    for root in (Path.cwd(), Path(__file__).resolve().parents[2]):
        if (root / "benchmarks" / "suites").is_dir():
            return root / "benchmarks"
    return None


def named_suites() -> dict[str, Path]:
    """The files of the suites that come with this package, by name."""
    folder = Path(str(resources.files("tirgemm.bench") / "shapes"))
    return {path.stem: path for path in sorted(folder.glob("*.json"))}


def find_suite(name: str) -> Path:
    """The file of a suite given by path or by name. Raises InvalidRequest with the names there are."""
    if name.endswith(".json"):
        return Path(name)
    known = named_suites()
    if name not in known:
        raise InvalidRequest(f"suite {name!r} is unknown; give a JSON file, or one of {', '.join(known)}")
    return known[name]
