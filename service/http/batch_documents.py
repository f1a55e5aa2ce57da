"""The JSON documents of batches: what a request holds and what answers look like."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StrictBool, StrictInt

from tirgemm.gemm import Regime
from tirgemm.service.http.request_bodies import WHOLE, BudgetRequest, QueueRequest, RequestBody
from tirgemm.status import BatchStatus, EndedBatchStatus
from tirgemm.tuning.effort import Effort
from tirgemm.tuning_db.queue.batch_totals import BatchBudget, BatchTotals, ItemState
from tirgemm.tuning_db.queue.batches import MAX_ITEMS, Batch, BatchItem
from tirgemm.tuning_db.queue.budget_shares import Spending

Size = Annotated[StrictInt, Field(ge=1), WHOLE]


class BatchRequest(RequestBody):
    """Problems to be tuned together on one device in one regime: ``gemms``, ``shapes`` of one ``problem``, or both."""

    gemms: Annotated[list[str | dict[str, Any]], Field(max_length=MAX_ITEMS)] = Field(
        default=[], description="Each as in a request for one kernel.", examples=[["1023x1021x1027:f16:nt"]]
    )
    shapes: Annotated[list[tuple[Size, Size]], Field(max_length=MAX_ITEMS)] = Field(
        default=[], description="n and k of each.", examples=[[[4096, 4096], [11008, 4096]]]
    )
    problem: dict[str, Any] | None = Field(
        default=None,
        description="The other fields of the shapes' problems, m among them.",
        examples=[{"m": "1..8192", "dtype": "bf16"}],
    )
    device: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        default=None, description="A device's key or name (cpu, cuda:0, sm_90a); by default the best that a worker has."
    )
    regime: Regime = "sustained"
    effort: Effort = Field(default=Effort.STANDARD, description="How far each search goes at most.")
    budget: BudgetRequest = Field(
        default=BudgetRequest(), description="Of all searches together; what is not given is each search's own bound."
    )
    queue: QueueRequest = QueueRequest()
    seed: Annotated[StrictInt, Field(ge=0, lt=2**31), WHOLE] = 0
    other_devices: StrictBool = Field(default=False, description="As in a request for one kernel; of every problem.")


class BatchItemBody(BaseModel):
    """A problem of a batch: ``hit`` where its kernel was there, else how its job is; ``deleted`` where neither is there
    any more. ``gain``: the speed of its tuned kernel over the default's; ``times``: how often it was asked for."""

    gemm: str
    state: ItemState
    expected_gain: float
    job: str | None
    kernel: str | None
    gain: float | None
    times: int

    @classmethod
    def of(cls, item: BatchItem) -> BatchItemBody:
        return cls(
            gemm=str(item.gemm),
            state=item.state,
            expected_gain=item.expected_gain,
            job=item.job_id,
            kernel=item.kernel_id,
            gain=item.gain,
            times=item.times,
        )


class GainBody(BaseModel):
    """The geometric mean of the tuned kernels' speeds over the defaults', and of how many; null before the first."""

    geomean: float | None
    kernels: int


class BatchSummary(BaseModel):
    """A batch without its items. ``asked`` counts equal problems too, ``states`` the different ones by state."""

    id: str
    status: BatchStatus
    asked: int
    states: dict[ItemState, int]
    gain: GainBody
    budget: BatchBudget
    spent: Spending
    created_at: str
    cancelled_at: str | None
    links: dict[str, str]

    @classmethod
    def of(cls, batch: BatchTotals) -> BatchSummary:
        return cls(
            id=batch.id,
            status=batch.status,
            asked=batch.asked,
            states=dict(batch.states),
            gain=GainBody(geomean=batch.gain, kernels=batch.kernels),
            budget=batch.budget,
            spent=batch.spent,
            created_at=batch.created_at,
            cancelled_at=batch.cancelled_at,
            links={"self": f"/v1/batches/{batch.id}", "events": f"/v1/batches/{batch.id}/events"},
        )


class BatchDocument(BatchSummary):
    """A batch with its items, the largest expected gain first."""

    items: list[BatchItemBody]

    @classmethod
    def with_items(cls, batch: Batch) -> BatchDocument:
        return cls(**dict(BatchSummary.of(batch)), items=[BatchItemBody.of(item) for item in batch.items])


class BatchList(BaseModel):
    """Batches, newest first; ``next`` is the ``after`` of the next page, null at the end."""

    batches: list[BatchSummary]
    next: str | None


BatchEventKind = Literal["progress", EndedBatchStatus]
