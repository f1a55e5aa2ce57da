"""Suite measurement: every shape in every variant, beside its baselines, into results files.

A shape's default, what each effort chooses and its best run in one race, whose baseline samples all rows hold; where
the best had to be chosen, a race before that one did, whose samples the rows keep apart. Builds of the shapes to come
are under way while one is measured, unless answers are clocked.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tirgemm.artifact import Trust
from tirgemm.bench import results
from tirgemm.bench.contest import Contest, Entrant, chosen_baselines, failed_row
from tirgemm.bench.effort_answers import (
    EFFORTS,
    VARIANTS,
    EffortAnswer,
    MakeTuning,
    chosen_answers,
    clocked_answers,
    fresh_tuning,
    require_variants,
)
from tirgemm.bench.results import ResultsFile, Row
from tirgemm.bench.suite_file import Suite
from tirgemm.bench.unrestricted import unrestricted
from tirgemm.config import Config
from tirgemm.errors import DoesNotFit, InvalidRequest, TirgemmError, Unsupported
from tirgemm.events import EventHandler
from tirgemm.families import family_named
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.budget import Budget
from tirgemm.tuning.measure.race import RaceResult
from tirgemm.tuning.records.comparable_times import fastest, known_candidates
from tirgemm.tuning.records.memory_store import MemoryStore
from tirgemm.tuning.search.neighbourhood import fitted
from tirgemm.tuning.set_tuning import tuning_class
from tirgemm.tuning.tune import Tuning
from tirgemm.tuning.tuning_task import Control

if TYPE_CHECKING:
    from tirgemm.tuning.build.binary import Binary
    from tirgemm.tuning.measure import Measurer
    from tirgemm.tuning.workbench import Workbench

SECONDS = 1.0
# Of the recorded configs so many run again beside the default; the fastest of them all is the tuned one.
FINALISTS = 2
# How often the contest of a shape is run: what is published shows how far its races lie apart.
RACES = 2
# Shapes whose builds are under way ahead of the one that is measured, for each build process.
AHEAD = 3

OnRow = Callable[[Row, bool], None]


@dataclass(frozen=True)
class Work:
    """A suite in a regime, and the file that its rows go to."""

    suite: Suite
    regime: Regime
    file: ResultsFile


@dataclass
class _Shape:
    """One shape of one work: its configs, the default first, and what is still to be done; ``fresh`` is for efforts, on
    a store of its own."""

    work: Work
    gemm: Gemm
    configs: list[Config]
    tuning: Tuning | None = None
    fresh: Tuning | None = None
    refused: TirgemmError | None = None


@dataclass
class _Field:
    """The kernels of a shape: the default and its rivals, with their errors over their bounds, and what has
    ``failed``."""

    default: Entrant
    errors: dict[Config, float]
    rivals: list[Entrant] = dataclasses.field(default_factory=list)
    answers: dict[str, EffortAnswer] = dataclasses.field(default_factory=dict)
    failed: dict[Config, TirgemmError] = dataclasses.field(default_factory=dict)
    has_default_again: bool = False
    """Whether another config makes the default's very kernel."""

    @property
    def lost(self) -> tuple[Config, TirgemmError] | None:
        """The first failure where nothing but the default is left."""
        if self.has_default_again or any(rival.config not in self.failed for rival in self.rivals):
            return None
        return next(iter(self.failed.items()), None)


@dataclass(frozen=True)
class BenchOptions:
    """How suites are measured.

    ``baselines`` None is everything that can be measured beside ours on the device, ``families`` None all that support
    a shape. With ``recorded`` the tuned config is the best of the ``finalists`` fastest that the store has, else each
    shape is tuned within ``budget``. ``seconds`` is about how long the contest of a shape takes in a regime, which is
    run ``races`` times. An effort's kernel is what its search chooses from an empty store, with neither certificate nor
    figures of its own; with ``clock`` it is the whole answer, each from a store of its own, with nothing built ahead,
    by processes that have answered before, and its row says how long that took. ``on_shape`` is told each shape as it
    begins, its number and of how many.
    Raises InvalidRequest for a family that there is not and for counts below 1.
    """

    baselines: tuple[str, ...] | None = None
    budget: Budget | None = None
    seed: int = 0
    families: tuple[str, ...] | None = None
    recorded: bool = False
    seconds: float = SECONDS
    finalists: int = FINALISTS
    races: int = RACES
    clock: bool = False
    on_event: EventHandler | None = None
    on_shape: Callable[[Gemm, int, int], None] | None = None

    def __post_init__(self) -> None:
        for name in self.families or ():
            family_named(name)  # refuses a name that there is not
        for name, count in (("finalists", self.finalists), ("races", self.races)):
            if count < 1:
                raise InvalidRequest(f"{name} are {count}; there must be at least 1")


class Bench:
    """Measures suites on one workbench."""

    def __init__(self, workbench: Workbench, options: BenchOptions) -> None:
        self.workbench = workbench
        self.options = options
        wanted = self.measurer.baselines() if options.baselines is None else options.baselines
        chosen = chosen_baselines(self.measurer, workbench.device, wanted)
        self.contest = Contest(self.measurer, chosen, options.seconds, options.seed)
        self._builds: dict[tuple[Gemm, Config], Future[Binary]] = {}
        self._read_gbps: dict[int, float] = {}
        self._is_warm = False

    @property
    def measurer(self) -> Measurer:
        if self.workbench.measurer is None:
            raise InvalidRequest(self.workbench.device.only_named)
        return self.workbench.measurer

    def run(
        self, works: Sequence[Work], variants: Iterable[str], on_row: OnRow, *, limit_s: float | None = None
    ) -> int:
        """Measure what the files do not hold yet; how many shapes are left where ``limit_s`` seconds were not enough.

        ``on_row(row, kept)`` sees every row; each is saved at once.
        """
        chosen = tuple(variants)
        require_variants(chosen, clock=self.options.clock)
        started = time.monotonic()
        shapes = list(self._shapes(works, chosen, on_row))
        done = 0
        for shape in self._ahead(shapes):
            if limit_s is not None and time.monotonic() - started > limit_s:
                break
            if self.options.on_shape is not None:
                self.options.on_shape(shape.gemm, done + 1, len(shapes))
            rows = self._rows(shape, chosen)
            shape.work.file.put(*rows)
            done += 1
            for row in rows:
                on_row(row, False)
        for build in self._builds.values():
            build.cancel()
        for work in works:
            work.file.arrange(work.suite.gemms, VARIANTS)
        return len(shapes) - done

    # -- what is to be done --------------------------------------------------------------------

    def _shapes(self, works: Sequence[Work], variants: Sequence[str], on_row: OnRow) -> Iterator[_Shape]:
        """The shapes that lack a row, in order; the rows of the others are told."""
        for work in works:
            for gemm in work.suite.gemms:
                shape = self._shape(work, gemm, variants)
                kept = [self._kept(shape, variant) for variant in variants]
                if None in kept:
                    yield shape
                else:
                    for row in kept:
                        on_row(row or {}, True)

    def _shape(self, work: Work, gemm: Gemm, variants: Sequence[str]) -> _Shape:
        try:
            make = self._tuning(work, gemm)
            tuning = make(self.workbench, self.options.budget)
            configs = [tuning.default()[1]]
            fresh = fresh_tuning(variants, self.workbench, make)
        except (Unsupported, DoesNotFit, InvalidRequest) as error:  # the last of a family that was asked for
            return _Shape(work, gemm, [], refused=error)
        if "tuned" not in variants or not self.options.recorded:
            return _Shape(work, gemm, configs, tuning if "tuned" in variants else None, fresh)
        candidates = known_candidates(self.workbench.store, gemm, self.workbench.device, work.regime)
        offered = fastest(candidates, 2 * self.options.finalists)
        configs += fitted(offered, tuning.families, gemm, self.workbench.device)
        return _Shape(work, gemm, list(dict.fromkeys(configs))[: 1 + self.options.finalists], fresh=fresh)

    def _tuning(self, work: Work, gemm: Gemm, *, again: bool = False) -> MakeTuning:
        """``again``: with another seed."""
        seed, families, control = self.options.seed + again, self.options.families, Control(self.options.on_event)
        return lambda bench, budget: tuning_class(gemm)(
            gemm, bench, work.regime, budget, seed=seed, families=families, control=control
        )

    def _kept(self, shape: _Shape, variant: str) -> Row | None:
        """The row to keep: of a config that would be measured, beside everything; a searched one is whatever it was."""
        if shape.refused is not None:
            return None
        row = shape.work.file.find(shape.gemm, variant)
        unsearched = variant in ("default", "zero_shot")
        allowed = {config.digest for config in (shape.configs[:1] if unsearched else shape.configs)}
        tuned = (variant == "tuned" and shape.tuning is not None) or (variant in EFFORTS and not unsearched)
        whole = row is not None and "left_out" not in row.get("conditions", {})
        return row if row and whole and (tuned or row["config_hash"] in allowed) else None

    def _ahead(self, shapes: Iterable[_Shape]) -> Iterator[_Shape]:
        """The same shapes, with builds submitted some shapes ahead."""
        waiting: deque[_Shape] = deque()
        for shape in shapes:
            if self.options.clock:
                yield shape
                continue
            for config in shape.configs:
                self._build(shape.gemm, config)
            builds = 1
            if shape.fresh is not None:
                self.workbench.build_ahead(shape.gemm, shape.configs[0], self._build(shape.gemm, shape.configs[0]))
                shape.fresh.build_ahead()
                builds += shape.fresh.budget.effort.first
            most = max(2, AHEAD * self.workbench.pool.processes // builds)
            waiting.append(shape)
            if len(waiting) > most:
                yield waiting.popleft()
        yield from waiting

    def _build(self, gemm: Gemm, config: Config) -> Future[Binary]:
        """One build for all regimes."""
        key = gemm, config
        if key not in self._builds:
            self._builds[key] = self.workbench.build(gemm, config)
        return self._builds[key]

    # -- rows ----------------------------------------------------------------------------------

    def _rows(self, shape: _Shape, variants: Sequence[str]) -> list[Row]:
        """A row for each variant."""
        if shape.refused is not None:
            return [failed_row(shape.gemm, None, variant, shape.refused) for variant in variants]
        try:
            return self._measured(shape, variants)
        except TirgemmError as error:
            if error.outcome is None and not isinstance(error, (Unsupported, DoesNotFit)):
                raise
            config = None if error.outcome is None else shape.configs[0]
            return [failed_row(shape.gemm, config, variant, error) for variant in variants]

    def _measured(self, shape: _Shape, variants: Sequence[str]) -> list[Row]:
        field = self._field(shape, variants)
        chosen, selection = self._chosen(shape, field)
        distinct = {
            entrant.name: entrant for entrant in (field.default, chosen, *(a.entrant for a in field.answers.values()))
        }
        regime = shape.work.regime
        conditions: dict[str, Any] = {"read_gbps": self._stream(shape.work.file)}
        beside = self._unrestricted(shape, conditions)
        reports = self.contest.report(shape.gemm, list(distinct.values()), regime, self.options.races, beside)
        failed = {name: error for report in reports for name, error in report.failed.items()}
        raced = [entrant.name for entrant in (field.default, *field.rivals)]
        conditions["entrants"] = [name for name in raced if name in selection.samples or name in reports[0].samples]
        if selection.samples:
            conditions["selection_us"] = {
                name: results.rounded(taken.samples_us) for name, taken in selection.samples.items()
            }
        rows = []
        for variant in variants:
            answer = field.answers.get(variant)
            entrant = answer.entrant if answer else field.default if variant == "default" else chosen
            if variant == "tuned" and chosen is field.default and field.lost is not None:
                rows.append(failed_row(shape.gemm, field.lost[0], variant, field.lost[1]))
            elif entrant.name in failed:
                rows.append(failed_row(shape.gemm, entrant.config, variant, failed[entrant.name]))
            else:
                races = [report.samples[entrant.name] for report in reports]
                if variant != "default" and field.default.name not in failed:
                    defaults = [report.samples[field.default.name].samples_us for report in reports]
                    races = [taken.beside("default", us) for taken, us in zip(races, defaults, strict=True)]
                kernel = entrant.measured(shape.gemm, field.errors[entrant.config], self._trust)
                about = results.race_conditions(races) | conditions
                row = results.measured_row(shape.gemm, entrant.config, variant, races, kernel, about)
                rows.append(row if answer is None or answer.seconds is None else row | {"seconds": answer.seconds})
        return rows

    def _unrestricted(self, shape: _Shape, conditions: dict[str, Any]) -> dict[str, Entrant]:
        """Our kernel without ``invariant``, as the invariant one is made; one that fails is left out, and the
        ``conditions`` say why."""
        tuning = None
        if shape.tuning is not None and shape.gemm.invariant:
            make = self._tuning(shape.work, shape.gemm.with_(invariant=False))
            tuning = make(self.workbench, shape.tuning.budget)
        try:
            return unrestricted(self.workbench, shape.gemm, shape.work.regime, tuning)
        except TirgemmError as error:
            if error.outcome is None:
                raise
            conditions["unrestricted_failed"] = f"{error.code}: {error}"
            return {}

    def _field(self, shape: _Shape, variants: Sequence[str]) -> _Field:
        """The kernels of a shape, each verified. Raises what the default fails with."""
        default = Entrant(shape.configs[0], self._package(shape.gemm, shape.configs[0]))
        field = _Field(default, {default.config: self.contest.verify(default)})
        served: dict[Config, bytes] = {}
        if shape.tuning is not None:
            record = shape.tuning.run()
            served[record.config] = self.workbench.store.get_blob(record.artifact_sha256)
            shape.configs = list(dict.fromkeys([default.config, record.config]))
        for config in shape.configs[1:]:
            try:
                entrant = Entrant(config, served.get(config) or self._package(shape.gemm, config))
                if entrant.is_same_kernel(default, self._trust):
                    field.has_default_again = True
                    continue
                field.errors[config] = self.contest.verify(entrant)
                field.rivals.append(entrant)
            except TirgemmError as error:
                if error.outcome is None:
                    raise
                field.failed[config] = error
        if shape.fresh is not None:
            field.answers = self._answers(shape, shape.fresh, field, variants)
        return field

    def _answers(self, shape: _Shape, fresh: Tuning, field: _Field, variants: Sequence[str]) -> dict[str, EffortAnswer]:
        """What each effort that is asked for chooses, verified, its errors in ``field``."""
        if self.options.clock:
            make, warm = self._tuning(shape.work, shape.gemm), self._is_warm
            answers, self._is_warm = clocked_answers(variants, self.workbench, make, warm=warm), True
        else:
            again = self._tuning(shape.work, shape.gemm, again=True)
            answers = chosen_answers(
                variants, fresh, field.default, lambda: again(self.workbench.on(MemoryStore()), fresh.budget)
            )
        for name, answer in answers.items():
            if answer.entrant.is_same_kernel(field.default, self._trust):
                answers[name] = EffortAnswer(field.default, answer.seconds)
            config = answers[name].entrant.config
            field.errors.setdefault(config, self.contest.verify(answers[name].entrant))
        self.workbench.forget_ahead(shape.gemm)
        return answers

    def _chosen(self, shape: _Shape, field: _Field) -> tuple[Entrant, RaceResult]:
        """The kernel of the tuned row, and the race that chose it: none where tuning did, or where there is no
        choice."""
        if shape.tuning is not None or not field.rivals:
            return (*field.rivals, field.default)[0], RaceResult({})
        entrants = [field.default, *field.rivals]
        result = self.contest.choose(shape.gemm, entrants, shape.work.regime)
        field.failed |= {one.config: result.failed[one.name] for one in field.rivals if one.name in result.failed}
        running = [entrant for entrant in entrants if entrant.name in result.samples]
        best = min(running, key=lambda entrant: result.samples[entrant.name].median_us, default=field.default)
        return best, result

    @property
    def _trust(self) -> Trust:
        return Trust.of_signer(self.workbench.signer)

    def _stream(self, file: ResultsFile) -> float:
        """The bandwidth of reading alone, measured once a run for each file."""
        if id(file) not in self._read_gbps:
            self._read_gbps[id(file)] = file.add_stream(self.measurer.stream())
        return self._read_gbps[id(file)]

    def _package(self, gemm: Gemm, config: Config) -> bytes:
        return self.workbench.package(gemm, config, self._build(gemm, config).result())
