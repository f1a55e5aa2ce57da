"""Paths of a service's jobs, kernels and batches by their ids: nothing but an id ever becomes a part of a path."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from tirgemm.errors import InvalidRequest

Resource: TypeAlias = Literal["jobs", "kernels", "batches"]
NOUNS: dict[Resource, str] = {"jobs": "job", "kernels": "kernel", "batches": "batch"}
MAX_ID = 32
# A service makes 16 hexadecimal digits; what else a later one may make has no character that means anything in a path.
_ID = re.compile(rf"[0-9a-z]{{1,{MAX_ID}}}")


def is_id(value: object) -> bool:
    """Whether a value can be the id of a job, a kernel or a batch."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def path_of(resource: Resource, name: str, below: str = "") -> str:
    """The path of one job, kernel or batch, such as ``/v1/jobs/3f2a``, with what is ``below`` it.

    Raises InvalidRequest for a name that is no id: ``../kernels/3f2a`` would be another thing than was meant.
    """
    if not is_id(name):
        raise InvalidRequest(
            f"{name!r:.80} is no id of a {NOUNS[resource]}, which has 1 to {MAX_ID} lower-case letters and digits; "
            f"`tirgemm {resource} list` shows those that there are"
        )
    return f"/v1/{resource}/{name}{below}"
