"""Measuring suites: every shape in every variant, beside its baselines, into results files.

Default and best of a shape run in one contest, whose baseline samples both rows hold. Builds of the shapes to come are
under way while one is measured.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from service import results
from service.contest import Contest, Entrant
from service.results import ResultsFile, Row
from service.suites import Suite
from tirgemm.artifact import Trust, read
from tirgemm.config import Config
from tirgemm.errors import (
    BuildFailed,
    DoesNotFit,
    InvalidRequest,
    MeasurementFailed,
    TirgemmError,
    Unsupported,
    VerificationFailed,
)
from tirgemm.families import family_named
from tirgemm.gemm import Gemm
from tirgemm.tuning.candidates import adapted
from tirgemm.tuning.measure import MeasurementTimedOut
from tirgemm.tuning.records import SampleSet
from tirgemm.tuning.tune import Budget, Tuning

if TYPE_CHECKING:
    from tirgemm.tuning.compile import Binary
    from tirgemm.tuning.measure import Measurer
    from tirgemm.tuning.measured_configs import MeasuredConfigs
    from tirgemm.tuning.workbench import Workbench

VARIANTS = ("default", "tuned")
SECONDS = 1.0
# Of a search's configs so many run again beside the default; the fastest of them all is the tuned one.
FINALISTS = 2
# Shapes whose builds are under way ahead of the one that is measured, for each build process.
AHEAD = 3

OnRow = Callable[[Row, bool], None]


@dataclass(frozen=True)
class Work:
    """A suite in a regime, and the file that its rows go to."""

    suite: Suite
    regime: str
    file: ResultsFile


@dataclass
class _Shape:
    """One shape of one work: its configs, the default first, and what is still to be done."""

    work: Work
    gemm: Gemm
    configs: list[Config]
    tuning: Tuning | None = None
    refused: TirgemmError | None = None


class Bench:
    """Measures suites on one workbench.

    ``baselines`` None is everything that can be measured beside ours on the device. ``configs`` are a search's: the
    tuned config is then the best of their ``finalists`` fastest, else each shape is tuned within ``budget``. ``seconds`` is
    about how long the contest of a shape takes in a regime.
    """

    def __init__(
        self,
        workbench: Workbench,
        *,
        baselines: Iterable[str] | None = None,
        budget: Budget | None = None,
        seed: int = 0,
        families: Iterable[str] | None = None,
        configs: MeasuredConfigs | None = None,
        seconds: float = SECONDS,
        finalists: int = FINALISTS,
        on_event: Callable[[str, dict[str, Any]], None] | None = None,
    ) -> None:
        self.workbench = workbench
        self.budget = budget
        self.seed = seed
        self.families = None if families is None else tuple(families)
        for name in self.families or ():
            family_named(name)  # refuses a name that there is not
        if finalists < 1:
            raise InvalidRequest(f"finalists are {finalists}; there must be at least 1")
        self.configs = configs
        self.finalists = finalists
        self.on_event = on_event
        offered = self.measurer.baselines()
        chosen = offered if baselines is None else tuple(baselines)
        unknown = [name for name in chosen if name not in offered]
        if unknown:
            raise InvalidRequest(
                f"baseline {unknown[0]!r} cannot be measured on {workbench.device.name} here;"
                f" baselines are {', '.join(offered) or 'none'}"
            )
        self.contest = Contest(self.measurer, chosen, seconds, seed)
        self._builds: dict[tuple[Gemm, Config], Future[Binary]] = {}
        self._read_gbps: dict[int, float] = {}

    @property
    def measurer(self) -> Measurer:
        if self.workbench.measurer is None:
            raise InvalidRequest(f"device {self.workbench.device.name} is only named; nothing can be measured on it")
        return self.workbench.measurer

    def run(
        self, works: Sequence[Work], variants: Iterable[str], on_row: OnRow, *, limit_s: float | None = None
    ) -> int:
        """Measure what the files do not hold yet; how many shapes are left where ``limit_s`` seconds were not enough.

        ``on_row(row, kept)`` sees every row; each is saved at once.
        """
        chosen = tuple(variants)
        for variant in chosen:
            if variant not in VARIANTS:
                raise InvalidRequest(f"variant {variant!r} is unknown; variants are {', '.join(VARIANTS)}")
        started = time.monotonic()
        shapes = list(self._shapes(works, chosen, on_row))
        done = 0
        for shape in self._ahead(shapes):
            if limit_s is not None and time.monotonic() - started > limit_s:
                break
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
            tuning = Tuning(gemm, self.workbench, work.regime, self.budget, seed=self.seed, families=self.families,
                            on_event=self.on_event)  # fmt: skip
            configs = [tuning.default()[1]]
        except (Unsupported, DoesNotFit, InvalidRequest) as error:  # the last of a family that was asked for
            return _Shape(work, gemm, [], refused=error)
        if "tuned" not in variants or self.configs is None:
            return _Shape(work, gemm, configs, tuning if "tuned" in variants else None)
        for family in tuning.families:
            space = family.space(gemm, self.workbench.device)
            best = [c for c in self.configs.best(gemm, work.regime, 2 * self.finalists) if c.family == family.name]
            best = [adapted(config, space) for config in best]
            configs += [c for c in best if all(r.check(gemm, c, self.workbench.device) is None for r in family.rules)]
        return _Shape(work, gemm, list(dict.fromkeys(configs))[: 1 + self.finalists])

    def _kept(self, shape: _Shape, variant: str) -> Row | None:
        """The row to keep: of a config that would be measured, beside everything; a tuned one is whatever tuning found then."""
        if shape.refused is not None:
            return None
        found = shape.work.file.find(shape.gemm, variant)
        allowed = {config.digest for config in (shape.configs[:1] if variant == "default" else shape.configs)}
        tuned = variant == "tuned" and shape.tuning is not None
        if found and "left_out" in found.get("conditions", {}):
            return None
        return found if found and (tuned or found["config_hash"] in allowed) else None

    def _ahead(self, shapes: Iterable[_Shape]) -> Iterator[_Shape]:
        """The same shapes, with builds submitted some shapes ahead."""
        waiting: deque[_Shape] = deque()
        most = AHEAD * self.workbench.pool.processes
        for shape in shapes:
            for config in shape.configs:
                self._build(shape.gemm, config)
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
        gemm = shape.gemm
        if shape.refused is not None:
            return [results.unmeasured_row(gemm, None, variant, "skipped", str(shape.refused)) for variant in variants]
        try:
            return self._measured(shape, variants)
        except (Unsupported, DoesNotFit) as error:
            return [results.unmeasured_row(gemm, None, variant, "skipped", str(error)) for variant in variants]
        except (BuildFailed, VerificationFailed, MeasurementFailed) as error:
            config = shape.configs[0]
            return [results.unmeasured_row(gemm, config, v, _status(error), str(error)) for v in variants]

    def _measured(self, shape: _Shape, variants: Sequence[str]) -> list[Row]:
        default = shape.configs[0]
        entrants = [Entrant(default, self._package(shape.gemm, default))]
        errors = {default: self.contest.verify(entrants[0])}
        failed: dict[Config, TirgemmError] = {}
        served: dict[Config, bytes] = {}
        if shape.tuning is not None:
            record = shape.tuning.run()
            served[record.config] = self.workbench.store.get_blob(record.artifact_sha256)
            shape.configs = list(dict.fromkeys([default, record.config]))
        for config in shape.configs[1:]:
            try:
                entrant = Entrant(config, served.get(config) or self._package(shape.gemm, config))
                errors[config] = self.contest.verify(entrant)
                entrants.append(entrant)
            except (BuildFailed, VerificationFailed, MeasurementFailed) as error:
                failed[config] = error
        if failed and len(entrants) == 1 and "tuned" in variants:
            return self._without_tuned(shape, variants, entrants[0], errors, failed)
        found = self.contest.run(shape.gemm, entrants, shape.work.regime)
        rows = []
        for variant in variants:
            chosen = [config for config in served if config in found] or list(found)
            best = default if variant == "default" else min(chosen, key=lambda config: found[config].median_us)
            samples = found[best]
            if variant != "default":
                samples = _beside(samples, found[default])
            entrant = next(e for e in entrants if e.config == best)
            rows.append(self._row(shape, variant, entrant, samples, errors[best], found))
        return rows

    def _without_tuned(
        self, shape: _Shape, variants: Sequence[str], default: Entrant, errors: dict[Config, float],
        failed: dict[Config, TirgemmError],
    ) -> list[Row]:  # fmt: skip
        """Rows where every tuned config failed here: the failure is a row, the default is measured."""
        found = self.contest.run(shape.gemm, [default], shape.work.regime)
        config, error = next(iter(failed.items()))
        rows = {
            "default": self._row(shape, "default", default, found[default.config], errors[default.config], found),
            "tuned": results.unmeasured_row(shape.gemm, config, "tuned", _status(error), str(error)),
        }
        return [rows[variant] for variant in variants]

    def _row(
        self, shape: _Shape, variant: str, entrant: Entrant, samples: SampleSet, error: float,
        found: Mapping[Config, SampleSet],
    ) -> Row:  # fmt: skip
        launch = read(entrant.package, Trust.of(self.workbench.signer.public)).manifest.launch
        conditions = {name: samples.conditions[name] for name in _CONDITIONS if name in samples.conditions}
        picked = {name: samples.conditions.get(name) for name in samples.baselines}  # by baselines that are tuned
        labels = {name: found["label"] for name, found in picked.items() if isinstance(found, dict)}
        conditions |= {"baseline_configs": labels} if labels else {}
        return results.measured_row(
            shape.gemm, entrant.config, variant, samples, error=error, artifact_sha256=entrant.sha256,
            workspace_bytes=launch.workspace_bytes(shape.gemm.m_max),
            conditions=conditions | {
                "entrants": [config.digest for config in found], "read_gbps": self._stream(shape.work.file),
            },
        )  # fmt: skip

    def _stream(self, file: ResultsFile) -> float:
        """The bandwidth of reading alone, measured once a run for each file."""
        if id(file) not in self._read_gbps:
            self._read_gbps[id(file)] = file.add_stream(self.measurer.stream())
        return self._read_gbps[id(file)]

    def _package(self, gemm: Gemm, config: Config) -> bytes:
        return self.workbench.package(gemm, config, self._build(gemm, config).result())


_CONDITIONS = ("at", "swapped", "operand_sets", "temperature_c", "absent", "left_out")


def _beside(samples: SampleSet, default: SampleSet) -> SampleSet:
    """The samples with the default's among the baselines, also where the best is the default itself."""
    baselines = samples.baselines | {"default": default.samples_us}
    return SampleSet(samples.samples_us, samples.reason, baselines, samples.conditions)


def _status(error: TirgemmError) -> str:
    """The status of a candidate that ended so."""
    if isinstance(error, BuildFailed):
        return "build_failed"
    if isinstance(error, VerificationFailed):
        return "wrong"
    return "timed_out" if isinstance(error, MeasurementTimedOut) else "crashed"
