"""A space measured point by point, as a file: what the search is judged on without a device.

A file (``.json.gz``) holds the problem, the device, the regime, where the times come from, the knobs with their
choices, and a row for each point of their product: [number, status, microseconds or null, predicted microseconds].
It needs neither the family nor the device that it was recorded with.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tirgemm.bench.results import load
from tirgemm.config import Config, Knob, Space
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest
from tirgemm.families.base import Program, Rule
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.records import Candidate, SampleSet, Status

FORMAT = "tirgemm-recorded-space/1"


@dataclass(frozen=True, slots=True)
class RecordedPoint:
    """What became of one point."""

    status: Status
    us: float | None
    predicted_us: float  # 0 where the point was pruned


@dataclass
class RecordedSpace:
    """A space with the times of its points."""

    gemm: Gemm
    device: Device
    regime: Regime
    space: Space
    default: Config
    rows: dict[int, RecordedPoint] = field(default_factory=dict)

    @property
    def times(self) -> list[float]:
        """The time of every measured point."""
        return [row.us for row in self.rows.values() if row.us is not None]

    @property
    def optimum_us(self) -> float:
        """The fastest measured time."""
        return min(self.times)

    def number(self, config: Config) -> int:
        """The number of a point, the inverse of ``Space.at``."""
        number = 0
        for knob, index in zip(self.space.knobs, self.space.indices(config).values(), strict=True):
            number = number * len(knob.choices) + index
        return number

    def candidate(self, config: Config) -> Candidate:
        """The record of one config, as if it had just been measured. KeyError where it has no row."""
        row = self.rows[self.number(config)]
        samples = (SampleSet((row.us,)),) if row.us is not None else ()
        return Candidate(self.gemm, self.device.key, self.regime, config, row.status, sample_sets=samples)

    def family(self) -> RecordedFamily:
        """A family whose space, rules, default and estimates are the recorded ones."""
        return RecordedFamily(self)

    @classmethod
    def load(cls, path: Path) -> RecordedSpace:
        """Read a file. Raises InvalidRequest for one that is no recorded space."""
        try:
            value = load(path)
            if value["format"] != FORMAT:
                raise ValueError(f"its format is {value['format']!r}")
            space = Space(value["family"], tuple(Knob(name, tuple(choices)) for name, choices in value["knobs"]))
            default = Config(value["family"], tuple(value["default"].items()))
            rows = {n: RecordedPoint(Status(status), us, predicted) for n, status, us, predicted in value["rows"]}
            return cls(
                Gemm.parse(value["gemm"]),
                Device.from_json(value["device"]),
                value["regime"],
                space,
                default,
                rows,
            )
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            raise InvalidRequest(f"{path.name} is not a recorded space of the form {FORMAT}: {error}") from error


class RecordedFamily:
    """The family protocol over a recorded space; what is not measured there is rejected by the rule ``unrecorded``."""

    def __init__(self, recorded: RecordedSpace) -> None:
        self.recorded = recorded
        self.name = recorded.space.family

    def supports(self, gemm: Gemm, device: Device) -> str | None:
        recorded = self.recorded.gemm
        return None if gemm == recorded else f"{recorded} was recorded, not {gemm}"

    def space(self, gemm: Gemm, device: Device) -> Space:
        return self.recorded.space

    @property
    def rules(self) -> tuple[Rule, ...]:
        return (Rule("unrecorded", self._unrecorded),)

    def default(self, gemm: Gemm, device: Device, regime: Regime) -> Config:
        return self.recorded.default

    def predict_us(self, gemm: Gemm, config: Config, device: Device, regime: Regime) -> float:
        return self.recorded.rows[self.recorded.number(config)].predicted_us

    def instantiate(self, gemm: Gemm, config: Config, device: Device) -> Program:
        raise InvalidRequest(f"{config} is a row of a recorded space; the family itself instantiates it")

    def _unrecorded(self, gemm: Gemm, config: Config, device: Device) -> str | None:
        row = self.recorded.rows.get(self.recorded.number(config))
        if row is None:
            return "the point was not recorded"
        return "a rule rejected the point when it was recorded" if row.status is Status.PRUNED else None
