"""Trained ranking models: by how much a config is faster or slower than its analytic estimate says.

A model is of one class of devices and comes from records of it (``tirgemm db train``). One made on this machine lies in
the user's data folder and goes before the one that ships beside this module; a device that has neither takes one that
ships for another device of its architecture with as many processors. Where a problem is far from what a model was
trained on, the analytic estimate decides alone.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tirgemm._user_folders import user_data
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest
from tirgemm.families.common.alignment import access_width
from tirgemm.families.common.config_columns import ConfigColumns
from tirgemm.families.common.tree_ensemble import TreeEnsemble
from tirgemm.gemm import DTYPE_BYTES, Gemm, Operand, Regime

# Its number changes with what a feature means: trees that were trained on another meaning rank by chance.
FORMAT = "tirgemm-ranking-2"
FOLDER = "rankings"
# No size of a problem may be this many times larger or smaller than that of the nearest one that was trained on. Held
# out, problems were ranked better than by their estimates up to this distance and beyond (docs/tuning.md).
FARTHEST = 8
# A kind of problem counts as known to the model where it was trained on so many of it.
LEAST_PROBLEMS = 4
_OPERANDS: tuple[Operand, ...] = ("a", "b", "d")

# Rows of m, n, k.
Sizes = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class RankingModel:
    """``trees``: the logarithm of estimate over time, centred over each problem's configs. ``domain``: by family and
    regime, then by the kind of problem (``kinds_of``), the sizes m, n, k that it was trained on."""

    trees: TreeEnsemble
    domain: Mapping[str, Mapping[str, Sizes]]
    provenance: Mapping[str, Any]

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> RankingModel:
        """The model of a file. Raises ValueError."""
        if document.get("format") != FORMAT:
            raise ValueError(f"its format is {document.get('format')!r}, not {FORMAT!r}")
        try:
            domain = {
                place: {kind: np.array(sizes, np.float64).reshape(-1, 3) for kind, sizes in kinds.items()}
                for place, kinds in document["domain"].items()
            }
            return cls(TreeEnsemble.of_xgboost(document["xgboost"]), domain, dict(document["provenance"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{error!r} is missing or of another type") from error

    def covers(self, family: str, gemm: Gemm, regime: Regime) -> bool:
        """Whether problems of its kind and with its traits were trained on with this family, one near it in size."""
        return _covers(self, family, gemm, regime)

    def times_away(self, family: str, gemm: Gemm, regime: Regime) -> float:
        """How many times larger or smaller a size is than that of the nearest problem of its kind that was trained on:
        of the size that differs most. Infinite where there is none."""
        sizes = self.domain.get(domain_key(family, regime), {}).get(kinds_of(gemm)[0])
        if sizes is None or not len(sizes):
            return math.inf
        ratios = sizes / (gemm.m_max, gemm.n, gemm.k)
        return float(np.maximum(ratios, 1 / ratios).max(axis=1).min())

    def log_gain(self, features: Mapping[str, Any], configs: ConfigColumns) -> npt.NDArray[np.float64]:
        """For each config the logarithm of its estimate over the time that the model expects, beside a constant."""
        return self.trees.predict(matrix(self.trees.features, features, configs))


@lru_cache(maxsize=512)
def _covers(model: RankingModel, family: str, gemm: Gemm, regime: Regime) -> bool:
    """Asked for with each config of a problem; it takes as long as the trees of one."""
    known = model.domain.get(domain_key(family, regime), {})
    seen = all(len(known.get(kind, ())) >= LEAST_PROBLEMS for kind in kinds_of(gemm))
    return seen and model.times_away(family, gemm, regime) <= FARTHEST


def matrix(names: Sequence[str], features: Mapping[str, Any], configs: ConfigColumns) -> npt.NDArray[np.float32]:
    """The columns of these names: physical features, and knobs as numbers (``family.knob``) or indicators
    (``family.knob=word``, ``family=name``). Missing ones are NaN."""
    filled = np.full((len(names), len(configs)), np.nan, np.float32)
    for row, name in zip(filled, names, strict=True):
        if name in features:
            row[:] = features[name]
            continue
        place, _, word = name.partition("=")
        family, _, knob = place.partition(".")
        if not knob:
            row[:] = word == configs.family
        elif family == configs.family and knob in configs.knobs:
            row[:] = configs[knob] == word if word else configs[knob]
    return filled.T


def knob_features(configs: ConfigColumns) -> list[str]:
    """The names that ``matrix`` knows the knobs of these configs by."""
    names = [f"family={configs.family}"]
    for knob, column in configs.knobs.items():
        words = column.dtype.kind == "U"
        names += [f"{configs.family}.{knob}={word}" for word in sorted(set(column.tolist()))] if words else []
        names += [] if words else [f"{configs.family}.{knob}"]
    return names


def domain_key(family: str, regime: Regime) -> str:
    return f"{family} {regime}"


def kinds_of(gemm: Gemm) -> tuple[str, ...]:
    """Kinds of problems: first what two must have in common for one to say something of the other, then that with each
    trait which trees see by a feature, and which they must have seen.

    Bias, alpha and activation change little of what is loaded and stored, and a range of m is timed at its high end:
    such problems are ranked like those without.
    """
    said = ["16-bit" if DTYPE_BYTES[gemm.dtype] == 2 else gemm.dtype, gemm.acc]
    said += ["16-bit out" if DTYPE_BYTES[gemm.out] == 2 else f"{gemm.out} out"]
    said += ["beta"] if gemm.beta else []
    said += ["batch"] if gemm.batch > 1 else []
    kind = " ".join(said)
    traits = [gemm.dtype, gemm.layout, *(f"{name}:{access_width(gemm, name)}" for name in _OPERANDS)]
    return kind, *(f"{kind}, {trait}" for trait in traits)


# -- files ---------------------------------------------------------------------------------------


def file_name(device_key: str) -> str:
    """The name of the model file of a class of devices."""
    return f"{device_key.replace(':', '.')}.json.gz"


def user_file(device_key: str) -> Path:
    """Where this user's own model for a class of devices lies, or would."""
    return user_data() / FOLDER / file_name(device_key)


def shipped_file(device_key: str) -> Path:
    """Where the package's model for a class of devices lies, if it has one."""
    return Path(__file__).parent / FOLDER / file_name(device_key)


def files_of_devices_alike(device: Device) -> list[Path]:
    """The package's models for other devices of this one's architecture with as many processors."""
    if device.kind != "cuda":
        return []
    return sorted((Path(__file__).parent / FOLDER).glob(file_name(f"cuda:{device.arch}:*:{device.units}")))


def ranking_model(device: Device) -> RankingModel | None:
    """The model for this class of devices: the user's own, else the one that ships, else that of the same model with
    the usual power limit, else one that ships for a device alike. None where there is none.

    Raises InvalidRequest for a file that is none.
    """
    for path in _files(device):
        try:
            stat = path.stat()
        except OSError:
            continue
        return _read(path, stat.st_mtime_ns, stat.st_size)
    return None


def _files(device: Device) -> Iterator[Path]:
    """Where a model for a device may lie, in the order in which they count; folders are listed where no file of its
    own is taken."""
    for key in dict.fromkeys((device.key, device.with_(power_limit_w=0).key)):
        yield user_file(key)
        yield shipped_file(key)
    yield from files_of_devices_alike(device)


@lru_cache(maxsize=8)
def _read(path: Path, changed_ns: int, size: int) -> RankingModel:  # noqa: ARG001 - a changed file is read again
    try:
        return RankingModel.of_json(json.loads(gzip.decompress(path.read_bytes())))
    except (OSError, EOFError, ValueError) as error:
        raise InvalidRequest(
            f"{path} is no ranking model: {error}; make it anew with `tirgemm db train`, or delete it"
        ) from error
