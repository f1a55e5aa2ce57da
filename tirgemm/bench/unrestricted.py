"""The baseline ``unrestricted``: our best kernel of the same problem where its rows need not be invariant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tirgemm.bench.contest import Entrant
from tirgemm.families import supporting
from tirgemm.families.choice import ranked_defaults
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.records.comparable_times import fastest, known_candidates
from tirgemm.tuning.search.neighbourhood import fitted
from tirgemm.tuning.set_tuning import tuned_record

if TYPE_CHECKING:
    from tirgemm.tuning.tune import Tuning
    from tirgemm.tuning.workbench import Workbench

NAME = "unrestricted"
# Recorded configs that are looked at, fastest first, for one that today's rules accept.
_TRIES = 8


def unrestricted(workbench: Workbench, gemm: Gemm, regime: Regime, tuning: Tuning | None) -> dict[str, Entrant]:
    """By its name, the problem's kernel without ``invariant``; nothing where the problem is not invariant.

    It is what ``tuning``, of the problem without ``invariant``, finds. Where that is None it is the fastest recorded
    config, or where none is recorded the default. Raises what its tuning or its build fails with.
    """
    if not gemm.invariant:
        return {}
    if tuning is not None:
        record = tuned_record(tuning)
        return {NAME: Entrant(record.config, workbench.store.get_blob(record.artifact_sha256))}
    plain, device = gemm.with_(invariant=False), workbench.device
    families = supporting(plain, device)
    known = fastest(known_candidates(workbench.store, plain, device, regime), _TRIES)
    usable = fitted(known, families, plain, device)
    config = usable[0] if usable else ranked_defaults(families, plain, device, regime)[0][1]
    return {NAME: Entrant(config, workbench.package(plain, config, workbench.build(plain, config).result()))}
