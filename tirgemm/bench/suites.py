"""Suites of shapes by name or path: JSON files, and those that a seed draws.

Those that come with the package lie in ``benchmarks/suites``; ``tirgemm/bench/shapes`` is a link to that folder, so
that installing packs it.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from tirgemm.bench.held_out import GRID_NAME, JUDGE_SEEDS, held_out
from tirgemm.bench.suite_file import Suite
from tirgemm.errors import InvalidRequest


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


def suite_named(name: str) -> Suite:
    """The suite of a JSON file, of the package, or held out (``held_out.py``), by path or by name. Raises
    InvalidRequest, with the names there are, and InvalidGemm for a shape that cannot be."""
    if name.endswith(".json"):
        return Suite.read(Path(name))
    known = named_suites()
    if name in known:
        return Suite.read(known[name])
    drawn = held_out(name)
    if drawn is None:
        judges = [f"judge-{seed}" for seed in JUDGE_SEEDS]
        names = ", ".join([*known, GRID_NAME, *judges, "twice-SEED", "fit-SEED", "rows16-SEED", "kinds-SEED"])
        raise InvalidRequest(f"suite {name!r} is unknown; give a JSON file, or one of {names}")
    return drawn
