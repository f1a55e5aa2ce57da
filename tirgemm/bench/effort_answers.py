"""Answers of efforts: the kernels that a user without any records gets, chosen alone, or made whole and clocked."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from tirgemm.bench.contest import Entrant
from tirgemm.errors import InvalidRequest
from tirgemm.tuning.budget import Budget
from tirgemm.tuning.effort import Effort
from tirgemm.tuning.records.memory_store import MemoryStore
from tirgemm.tuning.tune import Tuning

if TYPE_CHECKING:
    from tirgemm.tuning.workbench import Workbench

# What a second search from nothing chooses, which draws with another seed: how far two users' kernels lie apart.
AGAIN = "standard_again"
# The variants of a results file that are what an effort gives.
EFFORTS = {"zero_shot": Effort.NONE, "quick": Effort.QUICK, "standard": Effort.STANDARD, AGAIN: Effort.STANDARD}

VARIANTS = ("default", *EFFORTS, "tuned")

MakeTuning = Callable[["Workbench", Budget | None], Tuning]


@dataclass(frozen=True)
class EffortAnswer:
    """What an effort chooses, and the seconds from the request to the certified kernel, where that was clocked."""

    entrant: Entrant
    seconds: float | None = None


def require_variants(names: Collection[str], *, clock: bool) -> None:
    """Raise InvalidRequest for a variant that there is not, and for one that lacks what it is compared with."""
    if unknown := [name for name in names if name not in VARIANTS]:
        raise InvalidRequest(f"variant {unknown[0]!r} is unknown; variants are {', '.join(VARIANTS)}")
    if AGAIN in names and ("standard" not in names or clock):
        raise InvalidRequest(f"variant {AGAIN!r} is compared with 'standard': ask for both, and without --clock")
    if clock and not _asked(names):
        timed = ", ".join(name for name in EFFORTS if name != AGAIN)
        raise InvalidRequest(f"--clock times whole answers of efforts, of the variants {timed}: ask for one of them")


def fresh_tuning(variants: Iterable[str], workbench: Workbench, tuning: MakeTuning) -> Tuning | None:
    """A tuning with the largest effort of ``variants`` but ``AGAIN`` on a store of its own, which is empty; None where
    there is none."""
    asked = [effort for name, effort in _asked(variants).items() if name != AGAIN]
    if not asked:
        return None
    return tuning(workbench.on(MemoryStore()), Budget.of(max(asked, key=lambda effort: effort.level)))


def chosen_answers(
    variants: Iterable[str], fresh: Tuning, default: Entrant, again: Callable[[], Tuning]
) -> dict[str, EffortAnswer]:
    """What the search of each effort chooses, the least first, each on from the one before, but ``AGAIN``, which
    searches with the tuning that ``again`` makes; there is no certificate."""
    answers: dict[str, EffortAnswer] = {}
    for name, effort in _asked(variants).items():
        answers[name] = EffortAnswer(default)
        if effort is not Effort.NONE:
            finalist = (again() if name == AGAIN else fresh).selected(Budget.of(effort))
            answers[name] = EffortAnswer(Entrant(finalist.config, finalist.package))
    return answers


def clocked_answers(
    variants: Iterable[str], workbench: Workbench, tuning: MakeTuning, *, warm: bool
) -> dict[str, EffortAnswer]:
    """The whole answer of each effort, each from nothing, by processes that are warm: unless they are, one answer to
    the same problem that is not kept comes first, of the largest effort, with no more candidates than there are build
    processes."""
    import_module("tvm")
    answers: dict[str, EffortAnswer] = {}
    asked = _asked(variants)
    if not warm:
        largest = max(asked.values(), key=lambda effort: effort.level)
        trials = min(largest.usual_trials, max(1, workbench.pool.processes))
        tuning(workbench.on(MemoryStore()), Budget.of(largest, trials)).run()
    for name, effort in asked.items():
        store = MemoryStore()
        bench = workbench.on(store)
        started = time.monotonic()
        record = tuning(bench, Budget.of(effort)).run()
        seconds = round(time.monotonic() - started, 3)
        answers[name] = EffortAnswer(Entrant(record.config, store.get_blob(record.artifact_sha256)), seconds)
    return answers


def _asked(variants: Iterable[str]) -> dict[str, Effort]:
    names = set(variants)
    return {name: effort for name, effort in EFFORTS.items() if name in names}
