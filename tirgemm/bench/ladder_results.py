"""Stored results of the ladder: files that ``tirgemm ladder`` wrote, for drawing on a machine without a GPU.

Those that come with the package are the ladder's files under ``benchmarks/results``; ``tirgemm/bench/measured`` is a
link to that folder, so that installing packs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from tirgemm.bench.results import FORMAT, Row, load
from tirgemm.errors import InvalidGemm, InvalidRequest
from tirgemm.families.simt import ladder
from tirgemm.gemm import Gemm, Regime, regime_named

SHIPPED = "shipped"
_FILES = ("ladder.*.json", "ladder.*.json.gz")


@dataclass(frozen=True, slots=True)
class StoredLadder:
    """What a results file has of the ladder: its ``rows``, their ``gemms`` in order, and what they were taken on."""

    regime: Regime
    environment: dict[str, Any]
    rows: tuple[Row, ...]
    gemms: tuple[Gemm, ...]

    @property
    def place(self) -> str:
        """Device, regime, commit and time of the measurement, in words."""
        known = self.environment
        commit = str(known["commit"] or "unknown")[:12]
        return f"{known['device']}, {self.regime}, measured at commit {commit} on {known['date']}"


def stored_ladders(where: str) -> list[StoredLadder]:
    """The ladders of a results file, of a folder's files of the ladder and of those of its folders, or of those that
    come with the package (``shipped``). Raises InvalidRequest for a file that is no results file of the ladder, and
    where there is none."""
    if where == SHIPPED:
        files = _of_folder(Path(str(resources.files("tirgemm.bench") / "measured")))
        if not files:
            raise InvalidRequest(
                "this version of tirgemm comes with no results of the ladder; give --from-results a file that `tirgemm "
                "ladder --output FILE` wrote on a GPU"
            )
        return [_stored(file) for file in files]
    path = Path(where)
    files = _of_folder(path) if path.is_dir() else [path]
    if not files:
        raise InvalidRequest(f"{where} has no results file of the ladder: no {' or '.join(_FILES)}")
    return [_stored(file) for file in files]


def _of_folder(folder: Path) -> list[Path]:
    """The ladder's files in a folder and in its folders."""
    return sorted(file for name in _FILES for deep in (name, f"*/{name}") for file in folder.glob(deep))


def _stored(path: Path) -> StoredLadder:
    rungs = {rung.name for rung in (*ladder.RUNGS, ladder.TUNED)}
    try:
        document = load(path)
        written = document["format"]
        rows = tuple(row for row in document["rows"] if row["variant"] in rungs)
        gemms = tuple(map(Gemm.parse, dict.fromkeys(row["gemm"] for row in rows)))
        environment = {name: document["environment"][name] for name in ("device", "device_key", "commit", "date")}
        stored = StoredLadder(regime_named(str(document["regime"])), environment, rows, gemms)
    except FileNotFoundError as error:
        raise InvalidRequest(f"there is no results file {path}") from error
    except (OSError, EOFError, ValueError, KeyError, TypeError, InvalidGemm, InvalidRequest) as error:
        raise InvalidRequest(f"{path} is not a results file: {type(error).__name__}: {error}") from error
    if written != FORMAT:
        raise InvalidRequest(f"{path} has format {written!r:.80}; this version of tirgemm reads {FORMAT}")
    if not rows:
        raise InvalidRequest(f"{path} has no row of the ladder: its suite is {document.get('suite')!r:.80}")
    return stored
