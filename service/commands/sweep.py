"""``tirgemm tune`` for several problems or suites: one search each, scheduled on one device."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tirgemm._terminal import console
from tirgemm.errors import InvalidRequest, TirgemmError
from tirgemm.events import CandidateRecorded, Event
from tirgemm.gemm import Gemm, Range, Regime

if TYPE_CHECKING:
    from tirgemm.tuning.sweep import Outcome
    from tirgemm.tuning.tune import Tuning
    from tirgemm.tuning.tuned_kernel import TuneRequest
    from tirgemm.tuning.workbench import Workbench


def problems(gemms: Sequence[str], suites: Sequence[str]) -> list[Gemm]:
    """The problems that are named and those of the suites, each once. Raises InvalidGemm, InvalidRequest."""
    from tirgemm.bench.suites import suite_named

    named = [Gemm.parse(text) for text in gemms]
    named += [gemm for name in suites for gemm in suite_named(name).gemms]
    if not named:
        raise InvalidRequest("give at least one GEMM, or --suite NAME")
    return list(dict.fromkeys(named))


def sweep(
    requests: Sequence[TuneRequest], workbench: Workbench, *, stop: threading.Event, quiet: bool
) -> list[Outcome]:
    """Tune every problem that the store does not answer yet, all with one budget; a line for each as it is done."""
    from tirgemm.tuning.set_tuning import tuning_class
    from tirgemm.tuning.sweep import Outcome, Sweep
    from tirgemm.tuning.tuned_kernel import stored
    from tirgemm.tuning.tuning_task import Control

    store = workbench.store
    regime, budget = requests[0].regime, requests[0].budget
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed} trials"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console.err, disable=quiet and not console.err.is_terminal) as progress:
        task = progress.add_task(f"{len(requests)} problems, {regime}; {workbench.device.model}")
        outcomes: list[Outcome] = []

        def on_outcome(outcome: Outcome) -> None:
            outcomes.append(outcome)
            progress.console.print(_line(outcome, regime), highlight=False, markup=False, soft_wrap=True)

        def on_event(event: Event) -> None:
            if isinstance(event, CandidateRecorded):
                progress.advance(task)

        tunings: list[Tuning] = []
        ranged: list[Tuning] = []
        for request in requests:
            gemm = request.gemm
            try:
                known = stored(store, request, workbench.signer)
                if known is not None:
                    on_outcome(Outcome(gemm, known.record))
                    continue
                tuning = tuning_class(gemm)(
                    gemm,
                    workbench,
                    regime,
                    request.budget_on(store),
                    seed=request.seed,
                    families=request.families,
                    control=Control(on_event, stop=stop),
                    other_devices=request.other_devices,
                )
                (ranged if isinstance(gemm.m, Range) else tunings).append(tuning)
            except TirgemmError as error:
                on_outcome(Outcome(gemm, error=error))
        progress.update(task, total=sum(tuning.budget.trials for tuning in tunings))
        if tunings:
            Sweep(tunings, seconds=budget.seconds * len(tunings), on_outcome=on_outcome).run()
        for tuning in ranged:  # each a sweep of its own, over sizes of m
            try:
                on_outcome(Outcome(tuning.gemm, tuning.run()))
            except TirgemmError as error:
                on_outcome(Outcome(tuning.gemm, error=error))
    return outcomes


def _line(outcome: Outcome, regime: Regime) -> str:
    if outcome.record is None:
        return f"{outcome.gemm}  {outcome.error}"
    timing = outcome.record.timings.of(regime)
    us, baselines = (timing.median_us, timing.baselines) if timing else (math.nan, {})
    ratios = "".join(f"  {beside.ratio:.3f} x {name}" for name, beside in baselines.items())
    return f"{outcome.gemm}  {us:.2f} us{ratios}  {outcome.record.config}"
