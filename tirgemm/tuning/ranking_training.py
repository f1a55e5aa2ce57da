"""Training of ranking models: gradient-boosted trees that learn from records where the analytic estimates are wrong.

The target of a config is the logarithm of its estimate over its time, centred over the configs of its problem and
regime, so that shapes of any size speak one language; configs near the fastest weigh most. All families are in one
model, and so may be devices of one architecture with as many processors, on which a tile costs much the same; memory is
a feature. A frozen model ranks what nobody has measured (``tirgemm.families.common.ranking_model``).
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import numpy.typing as npt

from tirgemm._extras import needed_by
from tirgemm.artifact.regular_file import write_whole
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest
from tirgemm.families import families
from tirgemm.families.base import Family
from tirgemm.families.common.config_columns import ConfigColumns
from tirgemm.families.common.ranking_model import FORMAT, RankingModel, domain_key, kinds_of, knob_features, matrix
from tirgemm.families.common.tile_work import Features
from tirgemm.families.features import features
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.records import Candidate
from tirgemm.tuning.records.comparable_times import comparable_times

Floats = npt.NDArray[np.float64]

# A config that takes twice as long as the fastest weighs 1/8: the model must know slow ones from fast ones, too, and be
# right about the fastest.
NEARNESS = 3
# A problem of four times as many configs weighs twice as much: many were recorded of few problems, few of many.
BREADTH = 0.5
# Fewer configs of a problem than this say nothing of one another; fewer problems are no model.
LEAST_CONFIGS, LEAST_PROBLEMS = 2, 8
ROUNDS = 550
# So many of the configs that are ranked first are looked at.
FIRST = (1, 4, 8)
PARAMETERS: dict[str, Any] = {
    "objective": "reg:squarederror",
    "tree_method": "hist",
    "max_depth": 8,
    "eta": 0.06,
    "min_child_weight": 3.0,
    "subsample": 0.6,
    "colsample_bytree": 0.4,
    "seed": 0,
    "nthread": 1,
    "verbosity": 0,
}
# What a tree is trained with and nothing but training reads; without it the file is half as large.
_STATISTICS = ("loss_changes", "sum_hessian", "base_weights")


@dataclass(frozen=True)
class FamilyRows:
    """The measured configs of one family for one problem in one regime: what trees see of them, and microseconds."""

    configs: ConfigColumns
    features: Features
    us: Floats


@dataclass(frozen=True)
class ProblemRows:
    """What was measured of one problem in one regime, family by family."""

    gemm: Gemm
    regime: Regime
    families: tuple[FamilyRows, ...]

    @cached_property
    def us(self) -> Floats:
        return np.concatenate([rows.us for rows in self.families])

    @cached_property
    def estimates_us(self) -> Floats:
        each = [np.broadcast_to(rows.features["estimate_us"], len(rows.us)) for rows in self.families]
        return np.concatenate(each).astype(np.float64)

    @property
    def weights(self) -> Floats:
        weights: Floats = (self.us.min() / self.us) ** NEARNESS
        return weights

    @property
    def targets(self) -> Floats:
        gains = np.log(self.estimates_us / self.us)
        targets: Floats = gains - np.average(gains, weights=self.weights)
        return targets

    def matrix(self, names: Sequence[str]) -> npt.NDArray[np.float32]:
        return np.concatenate([matrix(names, rows.features, rows.configs) for rows in self.families])

    def log_gains(self, model: RankingModel) -> Floats:
        """What ``model`` says of each config, in the order of ``us``."""
        return np.concatenate([model.log_gain(rows.features, rows.configs) for rows in self.families])


def problem_rows(candidates: Iterable[Candidate], device: Device) -> list[ProblemRows]:
    """The problems of a device's records that have measured configs enough, as today's families understand them."""
    recorded: dict[tuple[Gemm, Regime], list[Candidate]] = {}
    for candidate in candidates:
        if candidate.device_key == device.key:
            recorded.setdefault((candidate.gemm, candidate.regime), []).append(candidate)
    known, problems = families(), []
    for (gemm, regime), tried in recorded.items():
        by_family: dict[str, dict[Config, float]] = {}
        for config, us in comparable_times(tried).items():
            if us is not None and config.family in known:
                by_family.setdefault(config.family, {})[config] = us
        rows = [_family_rows(gemm, regime, known[name], times, device) for name, times in by_family.items()]
        measured = tuple(each for each in rows if each is not None)
        if sum(len(each.us) for each in measured) >= LEAST_CONFIGS:
            problems.append(ProblemRows(gemm, regime, measured))
    return problems


def _family_rows(
    gemm: Gemm, regime: Regime, family: Family, times: Mapping[Config, float], device: Device
) -> FamilyRows | None:
    """None where none of the configs means anything today: old records may have other knobs and choices."""
    if family.supports(gemm, device) is not None:
        return None
    space = family.space(gemm, device)
    present = [config for config in times if space.has(config)]
    if not present:
        return None
    columns = ConfigColumns.of(present)
    feature_values = features(gemm, columns, device, regime, family)
    return FamilyRows(columns, feature_values, np.array([times[config] for config in present]))


def similar_devices(devices: Iterable[Device], device: Device) -> list[Device]:
    """One GPU of each other class whose records teach something of ``device``: those of its architecture with as many
    processors."""
    classes: dict[str, Device] = {}
    for other in devices:
        if device.kind == "cuda" and (other.arch, other.units) == (device.arch, device.units):
            classes.setdefault(other.key, other)
    return [other for key, other in sorted(classes.items()) if key != device.key]


def require_enough(problems: Sequence[ProblemRows], device: Device) -> None:
    """Raise InvalidRequest where there are too few problems to learn from."""
    if len(problems) < LEAST_PROBLEMS:
        raise InvalidRequest(
            f"the records of {device.key} have {len(problems)} problems with {LEAST_CONFIGS} measured configs or more; "
            f"a model needs {LEAST_PROBLEMS}"
        )


def train(
    problems: Sequence[ProblemRows],
    device: Device,
    provenance: Mapping[str, Any],
    others: Sequence[ProblemRows] = (),
) -> dict[str, Any]:
    """The document of a model that has learnt from ``problems``, and from ``others``, which were measured on devices
    ``alike``. Raises InvalidRequest, MissingExtra."""
    require_enough(problems, device)
    return _trained([*problems, *others], device, provenance)


def _trained(problems: Sequence[ProblemRows], device: Device, provenance: Mapping[str, Any]) -> dict[str, Any]:
    with needed_by("training"):
        import xgboost
    names = _names(problems)
    data = xgboost.DMatrix(
        np.concatenate([problem.matrix(names) for problem in problems]),
        label=np.concatenate([problem.targets for problem in problems]),
        weight=_weights(problems),
    )
    booster = xgboost.train(PARAMETERS, data, ROUNDS)
    # Named behind the training, which compares all names in every round.
    booster.feature_names = names
    made = {"device_key": device.key, "problems": len(problems), "rows": int(data.num_row())}
    made |= {"xgboost": xgboost.__version__, "parameters": PARAMETERS | {"rounds": ROUNDS}}
    return {
        "format": FORMAT,
        "provenance": {**provenance, **made},
        "domain": _domain(problems),
        "xgboost": _without_statistics(bytes(booster.save_raw("json")).decode()),
    }


def _weights(problems: Sequence[ProblemRows]) -> Floats:
    """Of every row, on average a half, to which the trees' regularisation is matched."""
    weights: Floats = np.concatenate([problem.weights / problem.weights.sum() ** BREADTH for problem in problems])
    weights /= 2 * weights.mean()
    return weights


WeightSizes = tuple[int, int]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What was ranked by a model that had not seen the problem's n and k: the fastest recorded time over the fastest of
    the 1, 4 and 8 configs ranked first, by the estimates and by the model.

    ``times_away``: how many times a size differs from that of the nearest problem that was trained on; ``covered``:
    whether the model says that it knows such problems. ``by_other_devices``: by a model of those alone, where one was
    trained."""

    gemm: Gemm
    regime: Regime
    configs: int
    times_away: float
    covered: bool
    estimate: tuple[float, ...]
    model: tuple[float, ...]
    by_other_devices: tuple[float, ...] = ()


def held_out(
    problems: Sequence[ProblemRows],
    device: Device,
    folds: int | None = None,
    others: Sequence[ProblemRows] = (),
    *,
    apart: bool = False,
) -> Iterator[HeldOut]:
    """Every problem as ranked by a model trained on the rest of them and of ``others``, as ``train`` has them: every
    shape of its (n, k) is held out with it, and where there are ``folds`` those of other (n, k) as well. ``apart``: and
    as ranked by a model trained on ``others`` alone."""
    groups: dict[WeightSizes, list[ProblemRows]] = {}
    for problem in problems:
        groups.setdefault((problem.gemm.n, problem.gemm.k), []).append(problem)
    names = sorted(groups, key=lambda sizes: hashlib.sha256(repr(sizes).encode()).digest())
    count = len(names) if folds is None else min(folds, len(names))
    for number in range(count):
        left_out = set(names[number::count])
        own, theirs = (
            [each for each in rows if (each.gemm.n, each.gemm.k) not in left_out] for rows in (problems, others)
        )
        model = RankingModel.of_json(_trained([*own, *theirs], device, {}))
        model_of_others = RankingModel.of_json(_trained(theirs, device, {})) if apart and theirs else None
        for sizes in sorted(left_out):
            yield from (_held_out(problem, model, model_of_others) for problem in groups[sizes])


def _held_out(problem: ProblemRows, model: RankingModel, model_of_others: RankingModel | None) -> HeldOut:
    gemm, regime = problem.gemm, problem.regime
    names = [rows.configs.family for rows in problem.families]
    away = min(model.times_away(name, gemm, regime) for name in names)
    estimates = np.log(problem.estimates_us)
    return HeldOut(
        gemm,
        regime,
        len(problem.us),
        away,
        all(model.covers(name, gemm, regime) for name in names),
        shares(problem, estimates),
        shares(problem, estimates - problem.log_gains(model)),
        shares(problem, estimates - problem.log_gains(model_of_others)) if model_of_others else (),
    )


def scores(ranked: Iterable[HeldOut]) -> dict[str, dict[str, Any]]:
    """By regime, of the problems that the model covers, the geometric mean and the least of the shares of the first."""
    summaries: dict[str, dict[str, Any]] = {}
    by_regime: dict[str, list[HeldOut]] = {}
    for each in ranked:
        if each.covered:
            by_regime.setdefault(each.regime, []).append(each)
    for regime, these in sorted(by_regime.items()):
        summaries[regime] = {"problems": len(these)}
        for name in ("estimate", "model"):
            firsts = [getattr(each, name)[0] for each in these]
            summaries[regime][name] = {"geomean": round(geometric_mean(firsts), 4), "least": round(min(firsts), 4)}
    return summaries


def records_sha256(problems: Iterable[ProblemRows]) -> str:
    """A hash over what is trained on, the same for the same measurements wherever they were kept."""
    lines = sorted(
        f"{problem.gemm} {problem.regime} {config.digest} {us!r}"
        for problem in problems
        for rows in problem.families
        for config, us in zip(rows.configs.configs(), rows.us.tolist(), strict=True)
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def write(document: Mapping[str, Any], path: Path) -> int:
    """Write a model file, in one step; the same model gives the same bytes. Returns their number."""
    data = gzip.compress(json.dumps(document, separators=(",", ":")).encode(), 9, mtime=0)
    write_whole(path, data, 0o644)
    return len(data)


def shares(problem: ProblemRows, times: Floats) -> tuple[float, ...]:
    """The fastest time over the fastest of the 1, 4 and 8 configs to which ``times`` gives the least."""
    order = np.argsort(times.astype(np.float32), kind="stable")
    return tuple(float(problem.us.min() / problem.us[order[:count]].min()) for count in FIRST)


def _names(problems: Sequence[ProblemRows]) -> list[str]:
    """Every feature that a config has, in an order that does not depend on that of the records."""
    names = {
        name
        for problem in problems
        for rows in problem.families
        for name in (*rows.features, *knob_features(rows.configs))
    }
    return sorted(names)


def _domain(problems: Sequence[ProblemRows]) -> dict[str, dict[str, list[list[int]]]]:
    """What a model that learns from ``problems`` knows: see RankingModel."""
    domain: dict[str, dict[str, list[list[int]]]] = {}
    for problem in problems:
        gemm = problem.gemm
        for rows in problem.families:
            kinds = domain.setdefault(domain_key(rows.configs.family, problem.regime), {})
            for kind in kinds_of(gemm):
                kinds.setdefault(kind, []).append([gemm.m_max, gemm.n, gemm.k])
    return {place: {kind: sorted(sizes) for kind, sizes in kinds.items()} for place, kinds in domain.items()}


def _without_statistics(text: str) -> str:
    model = json.loads(text)
    for tree in model["learner"]["gradient_booster"]["model"]["trees"]:
        for name in _STATISTICS:
            tree[name] = [0.0] * len(tree[name])
    return json.dumps(model, separators=(",", ":"))
