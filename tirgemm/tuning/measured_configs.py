"""Configs measured for many problems, as one small file: what a search over whole suites leaves, and goes on from.

A file (``.json.gz``) holds the device, the runs (when, at which commit), sessions and entries. A **session** is one
interleaved run over several configs of one gemm in one regime beside one reference (``torch.matmul``); an **entry** is
what became of one config in it. Everything is in columns, references to other tables as differences from the row
before, so that thousands of entries compress to a few tens of kilobytes.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest, TirgemmError
from tirgemm.gemm import Gemm
from tirgemm.tuning import gzip_json
from tirgemm.tuning.records import Candidate, SampleSet, Status

FORMAT = "tirgemm-measured-configs/1"
_DIGITS = 3
# A reference that is this many times faster or slower than usual was disturbed.
_CLOCKS = 1.6


@dataclass(frozen=True, slots=True)
class Session:
    """What several configs were measured under, together. ``seconds`` counts from the start of run number ``run``.

    ``reference_us`` is the median of the reference in the same session, None where it could not run the problem.
    """

    gemm: Gemm
    regime: str
    run: int
    seconds: float
    reference_us: float | None = None
    clock_mhz: int | None = None
    power_w: float | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One config in session number ``session``. ``us`` is the median of ``samples``, ``spread_us`` their interquartile
    range; ``error`` the largest over its bound that verification saw; the resources are the compiler's.
    """

    session: int
    config: Config
    status: Status
    us: float | None = None
    spread_us: float | None = None
    samples: int = 0
    error: float | None = None
    predicted_us: float | None = None
    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    message: str = ""


@dataclass
class MeasuredConfigs:
    """Sessions and entries of one class of devices. ``reference`` names what ran beside the configs."""

    device: Device
    reference: str
    runs: list[dict[str, Any]] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    _of: dict[Gemm, list[tuple[Session, list[Entry]]]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._of = {}
        entries: list[list[Entry]] = [[] for _ in self.sessions]
        for entry in self.entries:
            entries[entry.session].append(entry)
        for session, found in zip(self.sessions, entries, strict=True):
            self._of.setdefault(session.gemm, []).append((session, found))

    def add(self, session: Session, entries: Sequence[Entry]) -> None:
        """Append a session with its entries, whose ``session`` is set to its number."""
        found = [replace(entry, session=len(self.sessions)) for entry in entries]
        self.sessions.append(session)
        self.entries += found
        self._of.setdefault(session.gemm, []).append((session, found))

    def of(self, gemm: Gemm) -> Iterator[tuple[Session, Entry]]:
        """Every entry of a problem with its session, oldest first."""
        for session, entries in self._of.get(gemm, []):
            yield from ((session, entry) for entry in entries)

    def reference_us(self, gemm: Gemm, regime: str) -> float | None:
        """Median of the reference over the sessions of a problem."""
        found = [s.reference_us for s, _ in self._of.get(gemm, []) if s.regime == regime and s.reference_us]
        return statistics.median(found) if found else None

    def times(self, gemm: Gemm, regime: str) -> dict[Config, float | None]:
        """Microseconds of every config that was tried, None where it failed.

        Sessions ran under different clocks: a time is taken relative to its session's reference, then scaled by the
        median of the reference over all sessions, unless that is further off than clocks go. Of several sessions the
        median counts.
        """
        overall = self.reference_us(gemm, regime)
        found: dict[Config, list[float]] = {}
        for session, entry in self.of(gemm):
            taken = found.setdefault(entry.config, [])
            if entry.us is not None and session.regime == regime:
                scale = overall / session.reference_us if overall and session.reference_us else 1.0
                taken.append(entry.us * (scale if 1 / _CLOCKS < scale < _CLOCKS else 1.0))
        failed = {e.config for _, e in self.of(gemm) if e.status is not Status.MEASURED}
        return {
            config: None if config in failed else statistics.median(taken)
            for config, taken in found.items()
            if taken or config in failed
        }

    def best(self, gemm: Gemm, regime: str, count: int = 1) -> list[Config]:
        """The fastest configs of a problem, fastest first; a config that failed in any session is never among them."""
        times = {config: us for config, us in self.times(gemm, regime).items() if us is not None}
        return sorted(times, key=lambda config: times[config])[:count]

    def candidates(self) -> list[Candidate]:
        """The tuner's records of every entry, so that its cost model learns from them: one for each config and regime."""
        found: dict[tuple[Gemm, str, Config], Candidate] = {}
        for entry in self.entries:
            session = self.sessions[entry.session]
            sets: tuple[SampleSet, ...] = ()
            if entry.us is not None:
                others: dict[str, tuple[float, ...]] = {}
                if session.reference_us:
                    others[self.reference] = (session.reference_us,)
                sets = (SampleSet((entry.us,), "search", others, {"clock_mhz": session.clock_mhz}),)
            key = session.gemm, session.regime, entry.config
            known = found.get(key)
            found[key] = Candidate(
                session.gemm, self.device.key, session.regime, entry.config, entry.status, entry.message,
                error=entry.error, predicted_us=entry.predicted_us,
                sample_sets=(known.sample_sets if known else ()) + sets,
            )  # fmt: skip
        return list(found.values())

    # -- files ---------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write the file; the same entries give the same bytes. Replaces an earlier one in one step."""
        gemms = _Table([session.gemm for session in self.sessions])
        configs = _Table([entry.config for entry in self.entries])
        layouts = _Table([(c.family, tuple(name for name, _ in c.knobs)) for c in configs.rows])
        names = list(dict.fromkeys(name for _, knobs in layouts.rows for name in knobs))
        messages = _Table([entry.message for entry in self.entries])
        sessions = _columns(self.sessions, Session)
        sessions["gemm"] = _differences(gemms.numbers)
        entries = _columns(self.entries, Entry)
        entries |= {
            "session": _differences(entries["session"]), "config": _differences(configs.numbers),
            "message": messages.numbers, "status": [entry.status.value for entry in self.entries],
        }  # fmt: skip
        value = {
            "format": FORMAT, "device": self.device.to_json(), "reference": self.reference, "runs": self.runs,
            "gemms": [str(gemm) for gemm in gemms.rows], "messages": messages.rows,
            "layouts": [[family, list(knobs)] for family, knobs in layouts.rows],
            "configs": {"layout": layouts.numbers}
            | {f"knob {name}": [dict(config.knobs).get(name) for config in configs.rows] for name in names},
            "sessions": sessions, "entries": entries,
        }  # fmt: skip
        gzip_json.write(path, value)

    @classmethod
    def load(cls, path: Path) -> MeasuredConfigs:
        """Read a file. Raises InvalidRequest for one that holds no measured configs."""
        try:
            value = gzip_json.read(path)
            if value["format"] != FORMAT:
                raise ValueError(f"its format is {value['format']!r}")
            gemms = [Gemm.parse(text) for text in value["gemms"]]
            configs = [_config(value["layouts"], row) for row in _rows(value["configs"])]
            sessions = value["sessions"] | {"gemm": [gemms[i] for i in _sums(value["sessions"]["gemm"])]}
            entries = value["entries"] | {
                "session": _sums(value["entries"]["session"]),
                "config": [configs[i] for i in _sums(value["entries"]["config"])],
                "status": [Status(text) for text in value["entries"]["status"]],
                "message": [value["messages"][i] for i in value["entries"]["message"]],
            }
            return cls(
                Device.from_json(value["device"]), value["reference"], list(value["runs"]),
                [Session(**row) for row in _rows(sessions)], [Entry(**row) for row in _rows(entries)],
            )  # fmt: skip
        except (OSError, EOFError, ValueError, KeyError, IndexError, TypeError, TirgemmError) as error:
            raise InvalidRequest(f"{path.name} is not a file of the form {FORMAT}: {error}") from error


class _Table:
    """Distinct values in the order of their first appearance, and for each given value the number of its row."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.rows = list(dict.fromkeys(values))
        places = {value: number for number, value in enumerate(self.rows)}
        self.numbers = [places[value] for value in values]


def _columns(rows: Sequence[Session] | Sequence[Entry], kind: type[Session] | type[Entry]) -> dict[str, list[Any]]:
    return {f.name: [_rounded(getattr(row, f.name)) for row in rows] for f in fields(kind)}


def _rows(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _rounded(value: Any) -> Any:
    return round(value, _DIGITS) if isinstance(value, float) else value


def _differences(numbers: Sequence[int]) -> list[int]:
    return [number - before for before, number in itertools.pairwise([0, *numbers])]


def _sums(differences: Sequence[int]) -> list[int]:
    return list(itertools.accumulate(differences))


def _config(layouts: list[Any], row: dict[str, Any]) -> Config:
    family, knobs = layouts[row["layout"]]
    return Config(family, tuple((name, row[f"knob {name}"]) for name in knobs))
