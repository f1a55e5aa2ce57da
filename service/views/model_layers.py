"""``ModelLayers``: the problems of a batch with what each is answered with now, and their gains weighted by time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, and_, false, select

from tirgemm.gemm import Regime
from tirgemm.tuning_db import Database
from tirgemm.tuning_db.answers.answer_choice import ANSWER_ORDER, may_answer
from tirgemm.tuning_db.models import BatchItemRow, KernelRow
from tirgemm.tuning_db.queue.batch_totals import ItemState
from tirgemm.tuning_db.queue.batches import Batch
from tirgemm.tuning_db.revoked_artifacts import revocation
from tirgemm.tuning_db.rows import parts

# What answers a problem now: the kernel of a search, a family's default, or nothing yet.
Served = Literal["tuned", "default", "nothing"]


@dataclass(frozen=True, slots=True)
class Layer:
    """A problem of a batch: the ``kernel`` that it is answered with now, its median and that of the default of the same
    run in microseconds a call, ``gain``, the default's over its own (1 where the default answers), and its ``share`` of
    the time of all layers with one. None where nobody knows. ``times``: how often the batch asked for it, which is how
    often it counts."""

    gemm: str
    times: int
    state: ItemState
    served: Served
    expected_gain: float
    job: str | None
    kernel: str | None
    us: float | None
    default_us: float | None
    gain: float | None
    share: float | None


@dataclass(frozen=True, slots=True)
class ModelLayers:
    """The layers of a batch, the largest share of time first. ``total_us`` and ``default_us`` are sums over the
    ``timed`` layers, of which both are known, each as often as it was asked for, ``calls`` in all; ``gain`` is the
    second over the first."""

    layers: tuple[Layer, ...]
    served: dict[Served, int]
    timed: int
    calls: int
    total_us: float
    default_us: float
    gain: float | None


def model_layers(database: Database, batch: Batch) -> ModelLayers:
    """How the problems of a batch are answered now. Raises StoreError."""
    with database.read() as connection:
        answers = _answers(database, connection, batch.id)
    answered = [(item, *answers.get(number, _NO_ANSWER)) for number, item in enumerate(batch.items)]
    timed = [(item.times, us, default_us) for item, _, _, us, default_us in answered if us and default_us]
    total, default = sum(times * us for times, us, _ in timed), sum(times * us for times, _, us in timed)
    calls = sum(times for times, _, _ in timed)
    layers = [
        Layer(
            gemm=str(item.gemm),
            times=item.times,
            state=item.state,
            served=served,
            expected_gain=item.expected_gain,
            job=item.job_id,
            kernel=kernel,
            us=us,
            default_us=default_us,
            gain=default_us / us if us and default_us else None,
            share=item.times * us / total if us and default_us else None,
        )
        for item, kernel, served, us, default_us in answered
    ]
    layers.sort(key=lambda layer: -(layer.share or 0.0))
    kinds: tuple[Served, ...] = ("tuned", "default", "nothing")
    counts = {kind: sum(layer.served == kind for layer in layers) for kind in kinds}
    return ModelLayers(tuple(layers), counts, len(timed), calls, total, default, default / total if total else None)


_Answer = tuple[str | None, Served, float | None, float | None]
_NO_ANSWER: _Answer = None, "nothing", None, None


def _answers(database: Database, connection: Connection, batch_id: str) -> dict[int, _Answer]:
    """By the number of an item the kernel that its problem is answered with: batches ask for none of other devices'
    records."""
    item, kernel = BatchItemRow, KernelRow
    same = and_(kernel.gemm_id == item.gemm_id, kernel.device_key == item.device_key, kernel.regime == item.regime)
    wanted = (
        select(item.number, kernel.id, kernel.artifact_sha256)
        .join(kernel, same)
        .where(item.batch_id == batch_id, may_answer(false()))
        .order_by(item.number, *ANSWER_ORDER)
    )
    chosen: dict[int, str] = {}
    for number, kernel_id, artifact_sha256 in connection.execute(wanted):
        if number not in chosen and not revocation(database, artifact_sha256):
            chosen[number] = kernel_id
    answers: dict[str, _Answer] = {}
    columns = (kernel.id, kernel.role, kernel.regime, kernel.timings)
    for part in parts(sorted(set(chosen.values()))):
        for row in connection.execute(select(*columns).where(kernel.id.in_(part))):
            us, default_us = _times(row.timings, row.regime)
            if row.role == "tuned":
                answers[row.id] = row.id, "tuned", us, default_us
            else:
                answers[row.id] = row.id, "default", us, us
    return {number: answers[kernel_id] for number, kernel_id in chosen.items() if kernel_id in answers}


def _times(timings: Mapping[str, Any], regime: Regime) -> tuple[float | None, float | None]:
    """The median of a stored kernel, and that of the default in the same run."""
    timing = timings.get(regime)
    if not isinstance(timing, dict):
        return None, None
    default = timing.get("baselines", {}).get("default", {})
    return timing.get("median_us"), default.get("median_us")
