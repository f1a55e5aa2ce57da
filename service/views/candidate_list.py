"""The recorded candidates of one problem as rows: times with their intervals, what went wrong, knobs; and as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import func, select

from tirgemm.config import Value
from tirgemm.errors import InvalidRequest, StoreError
from tirgemm.gemm import Gemm, Regime, regime_named
from tirgemm.tuning.intervals import Interval, median_interval
from tirgemm.tuning.records import SEARCHED, Candidate, SampleSet, Status
from tirgemm.tuning_db import Database, SqlStore
from tirgemm.tuning_db.models import CandidateRow, GemmRow
from tirgemm.tuning_db.shipped.layered_store import without
from tirgemm.tuning_db.shipped.records import ShippedRecords

# Why samples were taken, and the word for it; what is read first stands first. Finalists have several.
STAGES = {"selection": ("selection",), "search": SEARCHED, "report": ("report",)}
_TIME_COLUMNS = ("us", "low_us", "high_us", "samples", "clock_mhz", "at")


@dataclass(frozen=True)
class Timed:
    """A candidate's time of one stage: ``selection`` (interleaved with the other finalists), ``search``, or ``report``
    (behind the choice)."""

    stage: str
    samples: SampleSet

    @cached_property
    def interval(self) -> Interval:
        return median_interval(self.samples.samples_us)


@dataclass(frozen=True)
class ListedCandidate:
    """A candidate with its times, by stage; the first is the one to read. ``shipped``: it came with the package, and
    is not in the database."""

    candidate: Candidate
    times: tuple[Timed, ...]
    shipped: bool = False

    @property
    def us(self) -> float | None:
        """To sort by: comparable with the others' of its stage."""
        return self.times[0].samples.comparable_us if self.times else None

    @property
    def clock_mhz(self) -> int | None:
        clock = self.times[0].samples.conditions.get("clock_mhz") if self.times else None
        return int(clock) if clock else None

    @property
    def note(self) -> str:
        """What is said of a candidate that was not measured."""
        return ": ".join(word for word in (self.candidate.rule, self.candidate.message) if word)

    def to_json(self) -> dict[str, Any]:
        candidate = self.candidate
        return {
            "status": candidate.status.value,
            "shipped": self.shipped,
            "family": candidate.config.family,
            "config": dict(candidate.config.knobs),
            "config_hash": candidate.config.digest,
            "rule": candidate.rule,
            "message": candidate.message,
            "error_over_bound": candidate.error if candidate.error is None or math.isfinite(candidate.error) else None,
            "predicted_us": candidate.predicted_us,
            "attempt": candidate.attempt,
            "kernel_sha256": candidate.kernel_sha256,
            "times": {
                timed.stage: timed.interval.to_json() | {"samples": len(timed.samples.samples_us)}
                for timed in self.times
            },
            "sample_sets": [samples.to_json() for samples in candidate.sample_sets],
        }


@dataclass(frozen=True)
class Recorded:
    """The candidates of a problem on a device class in a regime: measured ones by their time, then the others."""

    gemm: Gemm
    device_key: str
    regime: Regime
    entries: tuple[ListedCandidate, ...]

    @property
    def measured(self) -> tuple[ListedCandidate, ...]:
        return tuple(entry for entry in self.entries if entry.candidate.status is Status.MEASURED)

    @property
    def others(self) -> tuple[ListedCandidate, ...]:
        """What failed, and what the rules pruned."""
        return tuple(entry for entry in self.entries if entry.candidate.status is not Status.MEASURED)

    def to_json(self) -> dict[str, Any]:
        return {
            "gemm": str(self.gemm),
            "device": self.device_key,
            "regime": self.regime,
            "candidates": [entry.to_json() for entry in self.entries],
        }

    def to_csv(self) -> str:
        """One line a candidate, complete but for raw samples; every knob has a column of its own."""
        knobs = list(dict.fromkeys(name for entry in self.entries for name, _ in entry.candidate.config.knobs))
        last = ("error", "predicted_us", "attempt", "rule", "message", "kernel_sha256")
        heads = ["gemm", "device", "regime", "status", "shipped", "family", "config_hash"]
        heads += [f"knob_{name}" for name in knobs]
        heads += [f"{stage}_{what}" for stage in STAGES for what in _TIME_COLUMNS]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([*heads, "error_over_bound", *last[1:]])
        for entry in self.entries:
            candidate, values = entry.candidate, dict(entry.candidate.config.knobs)
            row: list[Any] = [self.gemm, self.device_key, self.regime, candidate.status.value]
            row += ["yes" if entry.shipped else "", candidate.config.family]
            row += [candidate.config.digest, *(values.get(name) for name in knobs)]
            times = {timed.stage: timed for timed in entry.times}
            for stage in STAGES:
                row += _csv_time(times.get(stage))
            writer.writerow([*row, *(getattr(candidate, name) for name in last)])
        return out.getvalue()


def recorded(
    database: Database, gemm: Gemm, device: str | None, regime: Regime, shipped: ShippedRecords | None = None
) -> Recorded:
    """The candidates of ``gemm`` on the device that ``device`` names: a key, ``cpu``, ``cuda`` or an architecture:
    those of the database, and the shipped ones, whatever driver and TVM they were measured under.

    Without a name the only device that has some, or this machine's. Raises InvalidRequest where there are none.
    """
    shipped = shipped or ShippedRecords()
    key = _device(recorded_places(database, shipped, gemm), gemm, device, regime)
    own = SqlStore(database).candidates(gemm, key, regime)
    beneath = without([c for file in shipped.files_of(key) for c in file.candidates(key, str(gemm), regime)], own)
    entries = [*(_entry(c) for c in own), *(_entry(c, shipped=True) for c in beneath)]
    if not entries:
        raise StoreError(f"every candidate of {gemm} on {key} ({regime}) is damaged; tirgemm db check names them")
    return Recorded(gemm, key, regime, tuple(sorted(entries, key=_order)))


def knobs_of(entry: ListedCandidate) -> dict[str, Value]:
    """The family and the knobs of a candidate's config."""
    config = entry.candidate.config
    return {"family": config.family, **dict(config.knobs)}


def same_knobs(entries: Sequence[ListedCandidate]) -> dict[str, Value]:
    """The knobs, and the family, that all of several candidates have with one value."""
    first, *others = [knobs_of(entry) for entry in entries] or [{}]
    return {name: value for name, value in first.items() if others and all(o.get(name) == value for o in others)}


def other_knobs(entries: Sequence[ListedCandidate]) -> tuple[str, ...]:
    """The names of all other knobs of these candidates."""
    same = same_knobs(entries)
    return tuple(dict.fromkeys(name for entry in entries for name in knobs_of(entry) if name not in same))


def recorded_places(database: Database, shipped: ShippedRecords, gemm: Gemm) -> dict[tuple[str, Regime], int]:
    """How many candidates of ``gemm`` there are, by device key and regime."""
    wanted = (
        select(CandidateRow.device_key, CandidateRow.regime, func.count())
        .join(GemmRow, GemmRow.id == CandidateRow.gemm_id)
        .where(GemmRow.text == str(gemm))
        .group_by(CandidateRow.device_key, CandidateRow.regime)
    )
    with database.read() as connection:
        counts = {(key, regime_named(regime)): int(count) for key, regime, count in connection.execute(wanted)}
    for file in shipped.files():
        for key, text, regime in file.places:
            if text == str(gemm):
                counts.setdefault((key, regime), len(file.candidates(key, text, regime)))
    return counts


def _device(places: dict[tuple[str, Regime], int], gemm: Gemm, name: str | None, regime: Regime) -> str:
    if not places:
        raise InvalidRequest(f"no candidate of {gemm} is recorded here: tune it first")
    keys = [key for key, where in places if where == regime]
    if name is not None:
        keys = [key for key in keys if name == key or name in key.split(":")[:2]]
    if len(keys) > 1:
        from tirgemm.detect import devices

        keys = [device.key for device in devices() if device.key in keys][-1:] or keys
    if len(keys) == 1:
        return keys[0]
    known = "; ".join(f"{count} on {key}, {where}" for (key, where), count in sorted(places.items()))
    asked = f"{f' on {name}' if name else ''}, {regime}"
    raise InvalidRequest(
        f"{'no' if not keys else 'more than one'} device has candidates of {gemm}{asked}; recorded are {known}"
    )


def _entry(candidate: Candidate, *, shipped: bool = False) -> ListedCandidate:
    entries = []
    for stage, reasons in STAGES.items():
        mine = [samples for samples in candidate.sample_sets if samples.reason in reasons]
        if mine:
            entries.append(Timed(stage, mine[-1]))
    return ListedCandidate(candidate, tuple(entries), shipped)


def _order(entry: ListedCandidate) -> tuple[int, float, int]:
    """Measured ones by time; then what failed, and what the rules pruned last."""
    status = entry.candidate.status
    rank = 0 if status is Status.MEASURED else 2 if status is Status.PRUNED else 1
    return rank, math.inf if entry.us is None else entry.us, list(Status).index(status)


def _csv_time(timed: Timed | None) -> Sequence[Any]:
    if timed is None:
        return [None] * len(_TIME_COLUMNS)
    conditions, interval = timed.samples.conditions, timed.interval
    taken = [len(timed.samples.samples_us), conditions.get("clock_mhz"), conditions.get("at")]
    return [interval.value, interval.low, interval.high, *taken]
