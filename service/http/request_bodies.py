"""The JSON objects of requests."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictInt, model_validator

from tirgemm.gemm import Regime
from tirgemm.service.validation_messages import TextForm
from tirgemm.tuning.budget import MAX_SECONDS, MAX_TRIALS
from tirgemm.tuning.effort import Effort
from tirgemm.tuning_db.job_values import MAX_PRIORITY, MIN_PRIORITY
from tirgemm.tuning_db.queue.batches import MAX_ITEMS
from tirgemm.tuning_db.queue.job_rows import MAX_REASON

# Refused by its meaning later: both times may be one.
WindowText = Annotated[
    str,
    TextForm(
        r"^([01][0-9]|2[0-3]):[0-5][0-9]-([01][0-9]|2[0-3]):[0-5][0-9]$",
        "two times from 00:00 to 23:59 in UTC, such as 22:00-06:00",
    ),
]


def _whole(value: object) -> object:
    """A float without a fraction as the integer that JSON's one kind of number means by it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Last of an annotation, so that the bounds before it stand in the OpenAPI document.
WHOLE = BeforeValidator(_whole)


# Unknown members of an object of which each is told.
TOLD_MEMBERS = 20


class RequestBody(BaseModel):
    """An object of a request, which may have no other members than it names."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _few_unknown(cls, value: object) -> object:
        """Without most unknown members, of many: each is an error, and a body of them would take a second."""
        if not isinstance(value, dict) or len(value) <= len(cls.model_fields) + TOLD_MEMBERS:
            return value
        unknown = islice((name for name in value if name not in cls.model_fields), TOLD_MEMBERS)
        return {name: value[name] for name in (*(cls.model_fields.keys() & value.keys()), *unknown)}


class BudgetRequest(RequestBody):
    """How much the search may spend at most; what is not given is the effort's own bound, see the limits in
    /v1/meta."""

    model_config = ConfigDict(frozen=True)

    # At most what the largest batch may spend under the widest settings, which a column of the database holds.
    trials: Annotated[StrictInt, Field(ge=1, le=MAX_TRIALS * MAX_ITEMS), WHOLE] | None = Field(
        default=None, description="Candidates built."
    )
    seconds: Annotated[float, Field(gt=0, le=MAX_SECONDS * MAX_ITEMS, allow_inf_nan=False, strict=True)] | None = None


class QueueRequest(RequestBody):
    """How a new job waits for a worker; a job that is joined gets the higher priority, and the window goes where either
    request has none."""

    model_config = ConfigDict(frozen=True)

    priority: Annotated[StrictInt, Field(ge=MIN_PRIORITY, le=MAX_PRIORITY), WHOLE] = Field(
        default=0, description="Higher first, then the oldest."
    )
    window: WindowText | None = Field(
        default=None, description="The hours of the day, in UTC, in which it may start.", examples=["22:00-06:00"]
    )


class KernelRequest(RequestBody):
    """A problem, a device and a regime; what to do where the answer is not there yet."""

    gemm: str | dict[str, Any] = Field(
        description="The text form, or an object of the fields.",
        examples=["1023x1021x1027:f16:nt", {"m": 1023, "n": 1021, "k": 1027}],
    )
    device: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        default=None, description="A device's key or name (cpu, cuda:0, sm_90a); by default the best that a worker has."
    )
    regime: Regime = "sustained"
    effort: Effort = Field(
        default=Effort.STANDARD,
        description="How far the search goes: none certifies the default, quick races the best-expected few, standard "
        "searches until little is expected of more, exhaustive until next to nothing is.",
    )
    # Frozen values, which are not copied for each request.
    budget: BudgetRequest = BudgetRequest()
    queue: QueueRequest = QueueRequest()
    seed: Annotated[StrictInt, Field(ge=0, lt=2**31), WHOLE] = 0
    retune: StrictBool = Field(
        default=False, description="true goes on with the search, by up to budget.trials further candidates."
    )
    verify: StrictBool = Field(
        default=True, description="false takes an unverified cross-compiled build where no worker has the device."
    )
    other_devices: StrictBool = Field(
        default=False,
        description="true also tries what was shipped for other devices of the architecture: verified and timed here, "
        "and marked.",
    )


class PriorityChange(RequestBody):
    """Another place in the queue for a job."""

    priority: Annotated[StrictInt, Field(ge=MIN_PRIORITY, le=MAX_PRIORITY), WHOLE]


class RetryRequest(RequestBody):
    """Why a job is put back into the queue."""

    reason: Annotated[str, Field(max_length=MAX_REASON)] = Field(default="", examples=["the disk was full"])
