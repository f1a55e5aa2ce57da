"""Which records a kernel set is cut by: those of ``scripts/ship_records.py`` whose m is a range, and the sizes of whole
sets alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.families import is_valid
from tirgemm.gemm import Gemm, Range, Regime
from tirgemm.tuning.kernel_set.partition import Loss, servers
from tirgemm.tuning.kernel_set.sizes import compared_sizes, cut_sizes, searched_sizes
from tirgemm.tuning.records import Candidate
from tirgemm.tuning.records.comparable_times import comparable_times, fastest
from tirgemm.tuning.records.races_below import RacesBelow, races_below
from tirgemm.tuning.shipped_set import OFFERED
from tirgemm.tuning.size_races import losses_at, recorded_losses

# A problem, of a kernel set that at the smallest m of its range, the device class and the regime.
SetKey = tuple[Gemm, str, Regime]


def of_sets(candidates: Sequence[Candidate], devices: Mapping[str, Device]) -> list[Candidate]:
    """Without those that no kernel set over a range of m is cut by: of the problems whose m is a range what is among
    the fastest at one of the sizes of a search, or may be the fastest between two, stays, at all of them, and what was
    raced between them."""
    wanted = {
        place: _servers(sizes, devices[place[1]])
        for place, sizes in _by_set(c for c in candidates if isinstance(c.gemm.m, Range)).items()
        # The smallest is a single m, whose problem is any other's too.
        if any({place[0].m_min, *sizes} >= {*searched_sizes(Range(place[0].m_min, high))} for high in sizes)
    }
    return [
        candidate
        for candidate in candidates
        if isinstance(candidate.gemm.m, int) or _is_kept(candidate, wanted.get(_set_of(candidate), ()))
    ]


@dataclass
class WholeSets:
    """The records of kernel sets that are whole, and why others are not.

    ``known``: the problems of a single m that are shipped in the file of problems: they are not shipped twice, and of
    those in ``answered`` a set takes the smallest size from there.
    """

    known: Collection[SetKey]
    answered: Collection[SetKey]
    candidates: list[Candidate] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def take(self, candidates: Iterable[Candidate], devices: Mapping[str, Device]) -> None:
        """Take what whole sets among these are cut by, at the sizes that are compared, and nothing else."""
        for place, sizes in _by_set(candidates).items():
            low, high = place[0].m_min, max(sizes)
            if len({low, *sizes}) <= 2:  # a single m, or a part of a set
                continue
            name = f"{place[0].with_(m=Range(low, high))}, {place[2]}"
            missing = {*searched_sizes(Range(low, high))} - {*sizes, *({low} if place in self.answered else ())}
            if low in sizes and place in self.known and place not in self.answered:
                missing.add(low)
            if missing:
                self.left_out.append(f"{name} lacks m = {', '.join(map(str, sorted(missing)))}")
                continue
            compared = {*compared_sizes(Range(low, high))} - ({low} if place in self.known else set())
            of_sizes = {size: sizes[size] for size in sorted(compared & {*sizes})}
            wanted = _servers(of_sizes, devices[place[1]])
            self.candidates += [c for of_size in of_sizes.values() for c in of_size if _is_kept(c, wanted)]
            self.names.append(name)


def _is_kept(candidate: Candidate, wanted: Collection[Config]) -> bool:
    """Whether a set is cut by a candidate: it may serve, or was raced between the sizes with what may."""
    return candidate.config in wanted or bool(wanted and races_below([candidate]))


def _by_set(candidates: Iterable[Candidate]) -> dict[SetKey, dict[int, list[Candidate]]]:
    sets: dict[SetKey, dict[int, list[Candidate]]] = {}
    for candidate in candidates:
        sets.setdefault(_set_of(candidate), {}).setdefault(candidate.gemm.m_max, []).append(candidate)
    return sets


def _servers(sizes: Mapping[int, Sequence[Candidate]], device: Device) -> set[Config]:
    """What is among the fastest at one of the sizes up to which a range was searched, and what is the fastest between
    them, by a race or an estimate."""
    offered = {config for of_size in sizes.values() for config in fastest(of_size, OFFERED)}
    gemm, regime = sizes[max(sizes)][0].gemm, sizes[max(sizes)][0].regime
    whole = Range(gemm.m_min, gemm.m_max)
    measured: dict[Gemm, dict[Config, Loss]] = {}
    races: RacesBelow = {}
    known = {candidate.config.digest: candidate.config for of_size in sizes.values() for candidate in of_size}
    for size in set(compared_sizes(whole)) & set(sizes):
        of_size = sizes[size][0].gemm
        comparable = comparable_times(sizes[size]).items()
        times = {config: us for config, us in comparable if us is not None and is_valid(of_size, config, device)}
        measured |= {of_size: losses_at(times, {}, 0)} if times else {}
        races |= races_below((candidate for candidate in sizes[size] if candidate.config in times), known)
    problems = [
        gemm.with_(m=Range(whole.low, size)) for size in cut_sizes(whole) if size > whole.low or whole.low in sizes
    ]
    return {*servers(offered, recorded_losses(problems, measured, races, device, regime, 0))}


def _set_of(candidate: Candidate) -> SetKey:
    return candidate.gemm.with_(m=candidate.gemm.m_min), candidate.device_key, candidate.regime
