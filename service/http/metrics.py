"""Metrics of the server processes of one service and its database in the text format of Prometheus."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from fastapi.concurrency import run_in_threadpool
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest, multiprocess
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tirgemm.errors import StoreError
from tirgemm.service.views.service_figures import FigureReader, ServiceFigures

logger = logging.getLogger("tirgemm.service")

# However often it is asked, the database is read once in so long.
FIGURES_SECONDS = 5.0
# Where the answer to a request for a kernel may come from.
SOURCES = ("memory", "database", "job")


class Metrics:
    """The counters of a process, or with ``in_group`` of all processes that have its PROMETHEUS_MULTIPROC_DIR, dead
    ones too; and the newest figures of its database."""

    def __init__(self, reader: FigureReader, *, in_group: bool = False) -> None:
        self._reader = reader
        self._in_group = in_group
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "tirgemm_requests",
            "Requests by method, route and status.",
            ["method", "route", "status"],
            registry=self._registry,
        )
        self.seconds = Histogram(
            "tirgemm_request_seconds", "Seconds until an answer begins.", ["route"], registry=self._registry
        )
        self.answers = Counter(
            "tirgemm_kernel_answers",
            "Requests for kernels: hits answered from memory or the database, or with a job.",
            ["source"],
            registry=self._registry,
        )
        for source in SOURCES:
            self.answers.labels(source)
        self._registry.register(_FigureCollector(self))
        self.figures: ServiceFigures | None = None
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    def answered(self) -> dict[str, int]:
        """How many requests for kernels were answered since this service started, by where from."""
        samples = (sample for metric in self._told().collect() for sample in metric.samples)
        name = "tirgemm_kernel_answers_total"
        totals = {sample.labels["source"]: sample.value for sample in samples if sample.name == name}
        return {source: int(totals[source]) for source in SOURCES}

    async def text(self) -> bytes:
        """All of it, in the text format; without the database's figures where that does not answer."""
        if time.monotonic() - self._read_at > FIGURES_SECONDS:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read(), name="figures")
            await asyncio.shield(self._reading)
        return generate_latest(self._told())

    def _told(self) -> CollectorRegistry:
        if not self._in_group:
            return self._registry
        everyone = CollectorRegistry()
        registered: Callable[[CollectorRegistry], object] = multiprocess.MultiProcessCollector
        registered(everyone)
        everyone.register(_FigureCollector(self))
        return everyone

    async def _read(self) -> None:
        try:
            self.figures = await run_in_threadpool(self._reader.read)
        except StoreError as error:
            self.figures = None
            logger.error("no figures of the database: %s", error)
        self._read_at = time.monotonic()


MetricFamily = TypeVar("MetricFamily", GaugeMetricFamily, CounterMetricFamily)


class _FigureCollector(Collector):
    """The figures of the database as metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        figures = self._metrics.figures
        up = GaugeMetricFamily("tirgemm_database_up", "Whether the database answered when it was last asked.")
        up.add_metric([], 0.0 if figures is None else 1.0)
        yield up
        if figures is None:
            return
        gauges = (
            ("tirgemm_jobs", "Live jobs by state.", "state", figures.jobs),
            ("tirgemm_lease_age_seconds", "Since a worker renewed its oldest lease.", "worker", figures.lease_age_s),
            ("tirgemm_worker_age_seconds", "Since a worker was last seen.", "worker", figures.worker_age_s),
        )
        for name, words, label, values in gauges:
            yield _by_label(GaugeMetricFamily(name, words, labels=[label]), values)
        measuring = CounterMetricFamily(
            "tirgemm_measuring_seconds",
            "For how long a device of a worker has been measured on since the worker's start.",
            labels=["worker", "device", "uuid"],
        )
        for place, seconds in figures.measuring_s.items():
            measuring.add_metric([place.worker, place.device, place.uuid], seconds)
        yield measuring
        counts = (
            ("tirgemm_trials", "Candidates recorded since this server started, by status.", "status", figures.trials),
            ("tirgemm_builds", "Candidates built since this server started, by outcome.", "outcome", figures.builds),
        )
        for name, words, label, numbers in counts:
            yield _by_label(CounterMetricFamily(name, words, labels=[label]), numbers)


def _by_label(family: MetricFamily, values: Mapping[str, float]) -> MetricFamily:
    """A metric of one label with its values by that label's."""
    for value, number in values.items():
        family.add_metric([value], number)
    return family
