"""Knobs that remove a kernel's bank conflicts: neighbouring configs, tried by lowering them and counting again.

A neighbour differs in one knob, and in those that the family's rules then need changed (``completed``). Its addresses
are read from its IR as those of the kernel are, so that what is called free of conflicts is proved and not guessed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import chain, zip_longest
from typing import Any

from tirgemm.analysis.explanation import Explanation
from tirgemm.analysis.memory_traffic import AccessReport
from tirgemm.config import Config
from tirgemm.errors import InvalidConfig
from tirgemm.families import Family, family_named
from tirgemm.gemm import Regime
from tirgemm.hardware import BANK_BYTES, BANKS, shared_gbps
from tirgemm.tuning.explain import rolled_memory_of
from tirgemm.tuning.rivals import Difference, differences
from tirgemm.tuning.search.partial_config import completed

# Lowering and counting one takes a twentieth of a second: the search is to take no more than a second.
MOST_TRIED = 12

# Buffer, operand and operation of accesses.
AccessKey = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class ConflictFix:
    """What removes the conflicts of the accesses of ``buffer`` for ``operand`` by ``op``: ``knobs`` (``other`` is the
    value that does), None where nothing that was tried does.

    ``estimate_us`` is the family's estimate of the kernel as it is, ``slower_us`` by how much more it estimates the
    fixed one; ``spared_us``: what the passes that are spared take, one a clock of every SM.
    """

    buffer: str
    operand: str
    op: str
    knobs: tuple[Difference, ...] | None = None
    estimate_us: float = 0.0
    slower_us: float = 0.0
    spared_us: float = 0.0

    @property
    def gain_us(self) -> tuple[float, float] | None:
        """The predicted gain: without the passes that are spared, and with all of them; None without ``knobs``."""
        return None if self.knobs is None else (0.0 - self.slower_us, self.spared_us - self.slower_us)


@dataclass(frozen=True, slots=True)
class ConflictFixes:
    """A fix for each access that conflicts. Of the ``neighbours``, ``hopeless`` ones are estimated to lose more than
    all conflicts cost; of the others ``tried`` were tried."""

    fixes: tuple[ConflictFix, ...] = ()
    neighbours: int = 0
    hopeless: int = 0
    tried: int = 0

    @property
    def untried(self) -> int:
        """Neighbours that might help and were left out, for the search is bounded, or was over."""
        return self.neighbours - self.hopeless - self.tried

    def of(self, access: AccessReport) -> ConflictFix | None:
        """What is known of an access."""
        return next((fix for fix in self.fixes if access_key(fix) == access_key(access)), None)

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return asdict(self) | {
            "fixes": [asdict(fix) | {"gain_us": fix.gain_us} for fix in self.fixes],
            "untried": self.untried,
        }


# Where none was sought, or nothing conflicts.
NO_FIXES = ConflictFixes()


def access_key(access: AccessReport | ConflictFix) -> AccessKey:
    """What a fix is of: the accesses of a buffer by one operation, in the loop and around it."""
    return access.buffer, access.operand, access.op


def conflict_fixes(explained: Explanation, regime: Regime, most: int = MOST_TRIED) -> ConflictFixes:
    """What removes each conflict of a kernel, by at most ``most`` neighbours of its config; nothing where none
    conflicts."""
    conflicts = _conflicts(access for kernel in explained.kernels for access in kernel.memory.accesses)
    if not conflicts:
        return NO_FIXES
    config = explained.config
    family = family_named(config.family)
    own_us = family.predict_us(explained.estimated, config, explained.device, regime)
    total = sum(conflicts.values())
    by_knob = _neighbours(family, explained, regime)
    costs = {neighbour: us for group in by_knob for neighbour, us in group}
    hopeful = [[each for each, us in group if us <= own_us + _pass_us(explained, total)] for group in by_knob]
    # The best of each knob before the second of any.
    ordered = [each for each in chain(*zip_longest(*hopeful)) if each is not None]
    fixes: dict[AccessKey, ConflictFix] = {}
    tried = 0
    for neighbour in ordered[:most]:
        if len(fixes) == len(conflicts):
            break
        tried += 1
        left = _conflicts_of(explained, neighbour)
        if left is None or sum(left.values()) >= total:
            continue
        spared = _pass_us(explained, total - sum(left.values()))
        for key in conflicts.keys() - left.keys() - fixes.keys():
            knobs = tuple(differences(config, neighbour))
            fixes[key] = ConflictFix(*key, knobs, own_us, costs[neighbour] - own_us, spared)
    known = tuple(fixes.get(key) or ConflictFix(*key, estimate_us=own_us) for key in conflicts)
    return ConflictFixes(known, len(costs), len(costs) - len(ordered), tried)


def _neighbours(family: Family, explained: Explanation, regime: Regime) -> list[list[tuple[Config, float]]]:
    """By knob, in the order of their best: the valid configs in which it differs, with their estimates, best first."""
    gemm, config, device = explained.gemm, explained.config, explained.device
    seen = {config}
    groups = []
    for knob in family.space(gemm, device).knobs:
        group = []
        for choice in knob.choices:
            if choice == config[knob.name]:
                continue
            try:
                neighbour = completed(family, gemm, device, config, {knob.name: choice})
            except InvalidConfig:
                continue
            if neighbour not in seen:
                seen.add(neighbour)
                group.append((neighbour, family.predict_us(explained.estimated, neighbour, device, regime)))
        groups.append(sorted(group, key=lambda each: each[1]))
    return sorted(filter(None, groups), key=lambda group: group[0][1])


def _conflicts_of(explained: Explanation, config: Config) -> dict[AccessKey, int] | None:
    """The conflicts of another config as written; None where it cannot be lowered."""
    try:
        kernels = rolled_memory_of(explained.gemm, config, explained.device, m=explained.m)
    except Exception:  # TVM raises whatever its C++ raised; what cannot be built removes nothing
        return None
    return _conflicts(access for kernel in kernels for access in kernel.accesses)


def _conflicts(accesses: Iterable[AccessReport]) -> dict[AccessKey, int]:
    counts: dict[AccessKey, int] = {}
    for access in accesses:
        if access.conflicts:
            counts[access_key(access)] = counts.get(access_key(access), 0) + access.conflicts
    return counts


def _pass_us(explained: Explanation, wavefronts: int) -> float:
    """What passes of the data stage take, one a clock of every SM."""
    return wavefronts * BANKS * BANK_BYTES / (shared_gbps(explained.device) * 1e3)
