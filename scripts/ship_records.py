"""Packing of records files into the package: ``tuning_db/shipped/MODEL.jsonl.gz``, one for each device model in them,
and ``MODEL.sets.jsonl.gz`` of kernel sets.

usage: ship_records.py FILE.jsonl.gz... [RESULTS.json.gz...]
                                            files of `tirgemm db export`, later ones on top of earlier ones. What was
                                            shipped of a model before is replaced: give it, too, or start from a
                                            database that has imported it. Problems by which kernels are judged are left
                                            out, unless they are a published suite's too, and so are problems of the
                                            same m, n and k whose sizes were not shipped before. Of a search over a
                                            range of m what a kernel set is cut by is kept, where it tried all sizes,
                                            and is not in MODEL.sets.jsonl.gz. The sizes of all that is shipped are
                                            added to tirgemm/bench/recorded_sides.json: no new seed draws them. What
                                            took 60 times its estimate was disturbed, and is left out. Of what was
                                            measured again (`tirgemm db collect --recorded`) the samples of other
                                            environments, and those that name none, are left out. Of results files of
                                            suites, of problems that are shipped, the kernels that ran beside each
                                            other, in place of what ran so before: nothing is learnt from them
       ship_records.py --sets FILE.jsonl.gz...
                                            of the same files the kernel sets that are whole, each with its regime: what
                                            a set is cut by, at the sizes that are compared, and nothing else, into
                                            MODEL.sets.jsonl.gz, of which models learn nothing. What was shipped of
                                            sets before is replaced: give it, too. A smallest size whose problem is
                                            shipped in MODEL.jsonl.gz is taken from there where that answers it, and
                                            from nowhere else
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.packed_records import pack
from scripts.records_of_sets import SetKey, WholeSets, of_sets
from tirgemm.bench import held_out
from tirgemm.bench.held_out import GRID_NAME, JUDGE_SEEDS, recorded_sides, sides_of
from tirgemm.bench.results import load
from tirgemm.bench.suite_file import Suite
from tirgemm.bench.suites import named_suites, suite_named
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest
from tirgemm.families import families, is_valid
from tirgemm.gemm import Gemm
from tirgemm.tuning.records import SEARCHED, SMALLER_M, Candidate, CandidateKey, SampleSet, Status
from tirgemm.tuning.records.comparable_times import comparable_times
from tirgemm.tuning.records.json_values import merged
from tirgemm.tuning.search.collection import CONFIGS
from tirgemm.tuning_db import shipped
from tirgemm.tuning_db.shipped.layered_store import shipped_offer
from tirgemm.tuning_db.shipped.records import ShippedRecords
from tirgemm.tuning_db.transfer import read_candidates, read_devices

# Of every measurement so many samples: seven of configs that are the fastest of a problem or up to 5 % behind. Of the
# others, which are there to be learnt from and not to be chosen, the median of a search and three of a published race.
# Ranks are spread evenly, the median is kept.
SAMPLES, RACED_SAMPLES, FEW_SAMPLES = 7, 3, 1
NEAR = 1.05
# Conditions that follow from the problem, the config and the regime, or say little.
DROPPED = (
    *("regime", "device", "m", "rotated_bytes", "cache_bytes", "swapped", "shared", "clock", "temperature_c"),
    *("shared_bytes", "operand_sets", "launches_per_replay"),
)
# And of the configs that are there to be learnt from.
DROPPED_OF_OTHERS = ("power_w", "spread_us")
# No kernel is so many times slower than its estimate; of 45,000 recorded configs eight took 75 times as long or more,
# among them all that were measured within some seconds.
DISTURBED = 60
# The option by which kernel sets are packed.
SETS = "--sets"
SIDES = Path(held_out.__file__).with_name(held_out.RECORDED_SIDES)


Devices = dict[tuple[str, str], Device]


def ship(paths: list[Path], folder: Path) -> list[Path]:
    """Write the records of ``paths`` into ``folder``, a file for each model; pruned candidates are left out, and so are
    the problems of the kernel sets in the file beside."""
    records, results = [p for p in paths if ".jsonl" in p.suffixes], [p for p in paths if ".json" in p.suffixes]
    devices, candidates = _read(records)
    for path in results:
        _put_raced(candidates, path, devices.values())
    beside = _places(folder, sets=True)
    kept = [c for c in of_sets(list(candidates.values()), _classes(devices)) if _place(c) not in beside]
    return _written(kept, devices, folder, shipped.problems_file)


def ship_sets(paths: list[Path], folder: Path) -> tuple[list[Path], WholeSets]:
    """Write the records of the kernel sets of ``paths`` that are whole into ``folder``, a file for each model beside
    that of its problems, and say which these are.

    Raises InvalidRequest where none is whole.
    """
    devices, candidates = _read(paths)
    records, known = ShippedRecords(folder), _places(folder, sets=False)
    smallest = {_place(c.with_(gemm=c.gemm.with_(m=c.gemm.m_min))) for c in candidates.values()}
    sets = WholeSets(known, {place for place in smallest & known if _is_answered(records, place, devices.values())})
    sets.take(candidates.values(), _classes(devices))
    if not sets.names:
        raise InvalidRequest(f"no kernel set is whole: {'; '.join(sets.left_out) or 'no m is a range'}")
    keys = {candidate.device_key for candidate in sets.candidates}
    devices = {place: device for place, device in devices.items() if place[0] in keys}
    return _written(sets.candidates, devices, folder, shipped.kernel_sets_file), sets


def _places(folder: Path, *, sets: bool) -> set[SetKey]:
    """The problems of the shipped files of kernel sets, or of the others."""
    files = (file for file in ShippedRecords(folder).files() if shipped.holds_kernel_sets(file.path) is sets)
    return {(Gemm.parse(text), key, regime) for file in files for key, text, regime in file.places}


def _place(candidate: Candidate) -> SetKey:
    return candidate.gemm, candidate.device_key, candidate.regime


def _is_answered(records: ShippedRecords, place: SetKey, devices: Iterable[Device]) -> bool:
    """Whether shipped records answer a problem on one of the devices of its class without a race there."""
    gemm, key, regime = place
    offers = (shipped_offer(records, gemm, device, regime) for device in devices if device.key == key)
    return any(offer is not None and offer.answers for offer in offers)


def _read(paths: Iterable[Path]) -> tuple[Devices, dict[CandidateKey, Candidate]]:
    """The devices of records files and, later ones on top of earlier ones, their candidates: of one environment each,
    without what nothing is shipped of."""
    is_judged = _judged(shipped.FOLDER)
    devices: Devices = {}
    candidates: dict[CandidateKey, Candidate] = {}
    for path in paths:
        devices |= {(device.key, device.fingerprint): device for device in read_devices(path)}
        for candidate in read_candidates(path):
            if is_judged(candidate.gemm) or _disturbed(candidate, devices):
                continue
            known = candidates.get(candidate.key)
            sets = merged(known.sample_sets if known else (), candidate.sample_sets)
            candidates[candidate.key] = candidate.with_(sample_sets=sets)
    current = _of_one_environment(candidates.values(), _classes(devices))
    return devices, {candidate.key: candidate for candidate in current}


def _classes(devices: Devices) -> dict[str, Device]:
    """A device of each class."""
    return {key: device for (key, _), device in devices.items()}


def _written(
    candidates: Sequence[Candidate], devices: Devices, folder: Path, file_of: Callable[[str], Path]
) -> list[Path]:
    """Write candidates into ``folder``, a file for each model that has some; pruned ones are left out."""
    compacted = _compacted(candidates)
    written = []
    for model in dict.fromkeys(_model(key) for key, _ in devices):
        path = folder / file_of(model).name
        kept = [c for c in compacted if _model(c.device_key) == model and c.status is not Status.PRUNED]
        pack(path, [device for (key, _), device in devices.items() if _model(key) == model], kept)
        written.append(path)
    return written


def _put_raced(candidates: dict[CandidateKey, Candidate], path: Path, devices: Iterable[Device]) -> None:
    """Add the races of a results file, in the environment that it names, to the problems that are shipped: of each the
    latest, whose rows ran beside each other."""
    document = load(path)
    about = document["environment"]
    named = (device for device in devices if device.key == about["device_key"] and device.environment)
    device = next((each for each in named if all(about.get(name) == of for name, of in each.environment)), None)
    if device is None:
        raise InvalidRequest(f"{path} was measured in an environment that no device of the records has")
    known = {(key.gemm, key.regime) for key in candidates if key.device_key == device.key}
    rows = [row for row in document["rows"] if row["status"] == "measured"]
    latest = {row["gemm"]: row["at"] for row in sorted(rows, key=lambda row: row["at"])}
    rows = [row for row in rows if row["at"] == latest[row["gemm"]]]
    raced = {gemm for row in rows if ((gemm := Gemm.parse(row["gemm"])), document["regime"]) in known}
    for key, candidate in candidates.items():
        if key.gemm in raced and (key.device_key, key.regime) == (device.key, document["regime"]):
            others = tuple(samples for samples in candidate.sample_sets if samples.reason != "report")
            candidates[key] = candidate.with_(sample_sets=others)
    for row in rows:
        if (gemm := Gemm.parse(row["gemm"])) not in raced:
            continue
        conditions = {"at": row["at"], "fingerprint": device.fingerprint}
        samples = SampleSet(tuple(row["samples_us"]), "report", conditions=conditions)
        config = Config.from_json(row["config"])
        new = Candidate(gemm, device.key, document["regime"], config, Status.MEASURED, error=row["error"])
        candidate = candidates.get(new.key, new)
        if not any(sampled.reason == "report" for sampled in candidate.sample_sets):
            candidates[new.key] = candidate.with_(sample_sets=(*candidate.sample_sets, samples))


def _disturbed(candidate: Candidate, devices: Mapping[tuple[str, str], Device]) -> bool:
    """Whether it took so long that the device must have been at something else."""
    family = families().get(candidate.config.family)
    device = next((device for (key, _), device in devices.items() if key == candidate.device_key), None)
    if family is None or device is None or candidate.search_us is None:
        return False
    gemm, config = candidate.gemm, candidate.config
    if not is_valid(gemm, config, device):
        return False
    return candidate.search_us > DISTURBED * family.predict_us(gemm, config, device, candidate.regime)


def _of_one_environment(candidates: Iterable[Candidate], devices: Mapping[str, Device]) -> list[Candidate]:
    """Of each candidate that was measured in the newest environment of its problem only the sample sets of that, and of
    each problem without what another clock alone makes the fastest."""
    kept: list[Candidate] = []
    for (key, *_), group in _problems(candidates).items():
        if (newest := _newest_environment(group)) is None:
            kept += group
            continue
        # What a time is scaled by follows from all that are there: without some, others may look the fastest.
        while key in devices and (outdone := _outdone(group, newest, devices[key])):
            group = [candidate for candidate in group if candidate.config not in outdone]
        kept += (_current(candidate, newest) for candidate in group)
    return kept


def _newest_environment(group: Sequence[Candidate]) -> str | None:
    """The environment of the search that timed one of the candidates last, of those that are named."""
    sets = [s for candidate in group for s in candidate.sample_sets if s.reason in SEARCHED]
    named = [(str(s.conditions.get("at", "")), str(s.conditions["fingerprint"])) for s in sets if _environment_of(s)]
    return sorted(named, key=lambda pair: pair[0])[-1][1] if named else None


def _environment_of(samples: SampleSet) -> str | None:
    return samples.conditions.get("fingerprint")


def _current(candidate: Candidate, newest: str) -> Candidate:
    """The candidate with the search's sample sets of that environment alone, if one is, and its races in any."""
    named = [(_environment_of(samples), samples) for samples in candidate.sample_sets]
    current = tuple(s for environment, s in named if environment == newest or (environment and s.reason == "report"))
    return candidate.with_(sample_sets=current) if any(s.reason in SEARCHED for s in current) else candidate


def _outdone(before: Sequence[Candidate], newest: str, device: Device) -> set[Config]:
    """What looks the fastest of a problem that was measured again because it was not itself, and ran under another
    clock: today's families refuse it, or, by the samples of before, as many as are collected were faster, and these
    were measured again."""
    gemm, after = before[0].gemm, [_current(candidate, newest) for candidate in before]
    now = comparable_times(after)
    others = [c.with_(sample_sets=tuple(s for s in c.sample_sets if _environment_of(s) != newest)) for c in before]
    earlier = {config: us for config, us in comparable_times(others).items() if us is not None}
    searched = {c.config: {_environment_of(s) for s in c.sample_sets if s.reason in SEARCHED} for c in after}
    measured_again = {config for config, environments in searched.items() if environments == {newest}}
    again = [us for config, us in earlier.items() if config in measured_again]
    best = min((us for config, us in now.items() if us is not None and config in measured_again), default=0.0)
    return {
        config
        for config, us in now.items()
        if again and us is not None and config in earlier and config not in measured_again and us <= best
        if not is_valid(gemm, config, device) or sum(one <= earlier[config] for one in again) >= CONFIGS
    }


def _compacted(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The candidates in their order, of each what its time follows from."""
    compacted = []
    for group in _problems(candidates).values():
        times = comparable_times(group)
        limit = NEAR * min((us for us in times.values() if us is not None), default=0.0)
        for candidate in group:
            us = times.get(candidate.config)
            compacted.append(_compact(candidate, us is not None and us <= limit))
    return compacted


def _problems(candidates: Iterable[Candidate]) -> dict[tuple[str, Gemm, str], list[Candidate]]:
    """The candidates of each device class, problem and regime."""
    problems: dict[tuple[str, Gemm, str], list[Candidate]] = {}
    for candidate in candidates:
        problems.setdefault((candidate.device_key, candidate.gemm, candidate.regime), []).append(candidate)
    return problems


def _compact(candidate: Candidate, is_near: bool) -> Candidate:
    """The candidate with some of each measurement's samples, by rank, the median among them."""
    sets = tuple(_compact_samples(samples, is_near) for samples in candidate.sample_sets)
    error = None if candidate.error is None else _rounded(candidate.error)
    # Of a build or a version, which may be others where it is built again; and not to be compressed. What a model of
    # that day predicted is of no use to today's.
    hashes = {"source_sha256": "", "binary_sha256": "", "kernel_sha256": ""}
    return candidate.with_(sample_sets=sets, trace=None, error=error, predicted_us=None, **hashes)


def _compact_samples(samples: SampleSet, is_near: bool) -> SampleSet:
    """One measurement; of a race at a smaller m the m, and as many samples as of the fastest: it chooses there."""
    chooses = is_near or samples.reason == SMALLER_M
    dropped = {*DROPPED, *(() if is_near else DROPPED_OF_OTHERS)} - ({"m"} if samples.reason == SMALLER_M else set())
    count = SAMPLES if chooses else RACED_SAMPLES if samples.reason == "report" else FEW_SAMPLES
    return replace(
        samples,
        samples_us=_thinned(samples.samples_us, count),
        baselines={name: _thinned(raw, count) for name, raw in samples.baselines.items()},
        conditions={
            name: _rounded(value) if name == "yardstick_us" else value
            for name, value in samples.conditions.items()
            if name not in dropped
        },
    )


def _thinned(samples: Sequence[float], count: int) -> tuple[float, ...]:
    """The samples of ``count`` ranks, an odd number: of seven 1/14, 3/14 ... 13/14; the middle one is the median."""
    ordered = sorted(samples)
    if len(ordered) <= count:
        return tuple(map(_rounded, samples))
    chosen = [ordered[(2 * rank + 1) * len(ordered) // (2 * count)] for rank in range(count)]
    chosen[count // 2] = statistics.median(ordered)
    return tuple(map(_rounded, chosen))


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _judged(shipped_before: Path) -> Callable[[Gemm], bool]:
    """Whether a problem is of a held-out suite, or has the m, n and k of one, where none with these was shipped before;
    problems of published suites are not."""
    judged = {gemm for name in (GRID_NAME, *(f"judge-{s}" for s in JUDGE_SEEDS)) for gemm in suite_named(name).gemms}
    sides = {sides_of(gemm) for gemm in judged} - {sides_of(gemm) for gemm in _gemms(shipped_before)}
    published = _published()
    return lambda gemm: gemm not in published and (gemm in judged or sides_of(gemm) in sides)


def _published() -> set[Gemm]:
    return {gemm for path in named_suites().values() for gemm in Suite.read(path).gemms}


def _gemms(folder: Path) -> set[Gemm]:
    """Every problem that a folder of shipped records has."""
    return {gemm for file in ShippedRecords(folder).files() for gemm in file.gemms}


def add_recorded_sides(path: Path, folder: Path) -> None:
    """Add the sides of shipped and published problems to those of before, which stay: new seeds draw none of them."""
    sides = sorted(recorded_sides() | {sides_of(gemm) for gemm in _gemms(folder) | _published()})
    path.write_text("[\n" + ",\n".join(f"[{m}, {n}, {k}]" for m, n, k in sides) + "\n]\n")


def _model(device_key: str) -> str:
    return device_key.split(":")[2]


def main(arguments: list[str]) -> int:
    of_sets_alone = arguments[:1] == [SETS]
    paths = arguments[of_sets_alone:]
    if not paths or any(argument.startswith("-") for argument in paths):
        print((__doc__ or "").partition("\n\n")[2])
        return 2
    if of_sets_alone:
        written, sets = ship_sets([Path(argument) for argument in paths], shipped.FOLDER)
        print("\n".join([*(f"whole: {name}" for name in sets.names), *(f"left out: {why}" for why in sets.left_out)]))
    else:
        written = ship([Path(argument) for argument in paths], shipped.FOLDER)
    for path in written:
        print(f"{path}: {path.stat().st_size:,} bytes")
    add_recorded_sides(SIDES, shipped.FOLDER)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
