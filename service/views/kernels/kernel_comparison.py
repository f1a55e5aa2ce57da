"""Several stored kernels side by side: times in one regime, the knobs in which any differ, machine code, roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tirgemm.analysis.figures.charts import roofline_picture
from tirgemm.config import Value
from tirgemm.gemm import Regime
from tirgemm.service.views.comparison import ComparedTime, PairedTimes, not_comparable, recorded_time
from tirgemm.service.views.kernel_samples import samples_of
from tirgemm.timings import Timings
from tirgemm.tuning.records import KernelRecord, SampleSet
from tirgemm.tuning.records.store import Store

MIN_KERNELS, MAX_KERNELS = 2, 6
LETTERS = "ABCDEF"


@dataclass(frozen=True)
class ComparedKernel:
    """A kernel with its raw samples, and the ``letter`` that it goes by."""

    letter: str
    record: KernelRecord
    samples: tuple[SampleSet, ...]

    @property
    def timings(self) -> Timings:
        return self.record.timings

    def time(self, regime: Regime) -> ComparedTime | None:
        """Its best recorded time."""
        return recorded_time(self, regime)

    def against(self, other: ComparedKernel, regime: Regime) -> PairedTimes:
        """The times of ``other`` and of this one."""
        one, two = ((k.gemm, k.device, k.kernel_sha256) for k in (other.record, self.record))
        return PairedTimes.of(other, self, regime, not_comparable(one, two))


def compared(store: Store, records: Sequence[KernelRecord]) -> list[ComparedKernel]:
    """Kernels of ``store`` with their samples, by the letters in order."""
    return [
        ComparedKernel(
            letter,
            record,
            samples_of(store, record.gemm, record.device.key, record.config, record.kernel_sha256),
        )
        for letter, record in zip(LETTERS, records, strict=False)
    ]


def differing_knobs(records: Sequence[KernelRecord]) -> list[tuple[str, list[Value | None]]]:
    """Each knob in which any two differ with its value in each, None where a config does not have it; the family
    first."""
    configs = [record.config for record in records]
    knobs = [dict(config.knobs) for config in configs]
    names = dict.fromkeys(name for each in knobs for name in each)
    rows: list[tuple[str, list[Value | None]]] = [("family", [config.family for config in configs])]
    rows += [(name, [each.get(name) for each in knobs]) for name in names]
    return [(name, values) for name, values in rows if len({repr(value) for value in values}) > 1]


def common_roofline(explanations: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The picture of all kernels, by letter, whose explanation has a roofline: FLOP for a byte of device memory across,
    their speed up. None where none has one."""
    peaks: dict[str, float] = {}
    memories: dict[str, float] = {}
    places: dict[tuple[float, float], list[str]] = {}
    for letter, explanation in explanations.items():
        roofline, model = explanation["roofline"], explanation["device"]["model"]
        rates = {ceiling["name"]: ceiling["rate"] for ceiling in roofline["ceilings"]} if roofline else {}
        if not {"compute", "dram"} <= rates.keys() or not roofline["tflops"]:
            continue
        peaks[f"{model}, {roofline['peak']}"] = rates["compute"]
        memories[f"memory of {model}"] = rates["dram"]
        # One dot with all their letters for kernels in the same place, to three digits.
        place = (float(f"{roofline['intensity']['dram']:.3g}"), float(f"{roofline['tflops']:.3g}"))
        places.setdefault(place, []).append(letter)
    if not places:
        return None
    points = [(", ".join(letters), *place) for place, letters in places.items()]
    return roofline_picture([*peaks.items()], [*memories.items()], points, "Roofline of device memory")
