"""Lookup of the kernels that answer several requests, in one statement, with their documents as they were rendered."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import JSON, Executable, LargeBinary, Text, and_, bindparam, cast, func, select, type_coerce
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.sql.expression import ColumnElement, FromClause

from tirgemm.gemm import Regime
from tirgemm.status import Role
from tirgemm.timings import SearchSummary
from tirgemm.tuning.records.json_values import plain_text
from tirgemm.tuning_db.answers.answer_choice import ANSWER_ORDER, may_answer
from tirgemm.tuning_db.answers.kernel_document import RENDERING, DocumentRow, Rendered, stored_document
from tirgemm.tuning_db.database import Database
from tirgemm.tuning_db.models import GemmRow, KernelDocumentRow, KernelRow

logger = logging.getLogger("tirgemm.tuning_db")


class WantedAnswer(NamedTuple):
    """What is asked for: the text form of a gemm, as it is stored, the key of a device class, a regime, and whether a
    kernel that was chosen from records of other devices will do."""

    gemm: str
    device_key: str
    regime: Regime
    other_devices: bool = False


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """The kernel that answers: what decides whether its search did what a request asks for (``search`` holds no more),
    and its document; that is None where this version's rendering is not stored or is damaged, and then ``search``, too,
    is not known."""

    kernel_id: str
    role: Role
    pinned: bool
    trials: int
    artifact_sha256: str
    search: SearchSummary | None
    document: Rendered | None

    @property
    def interrupted(self) -> bool:
        """Whether the search was ended by its user before its budget was spent."""
        return self.search is not None and self.search.ended == "interrupted"


def stored_answers(db: Database, wanted: Sequence[WantedAnswer]) -> list[StoredAnswer | None]:
    """For each the stored answer, as ``SqlStore.kernel`` chooses it; None where there is none. Raises StoreError."""
    answers: list[StoredAnswer | None] = [None] * len(wanted)
    statement = _SQLITE if db.is_sqlite else _POSTGRES
    texts = json.dumps([(plain_text(each.gemm), *each[1:]) for each in wanted])
    with db.read() as connection:
        read = connection.execute(statement, {"wanted": texts}).all()
    for number, kernel_id, role, pinned_at, trials, artifact, search, text, sha256 in read:
        row, pinned = DocumentRow(search, text, sha256), pinned_at is not None
        document = stored_document(row, kernel_id, pinned=pinned)
        if document is None and row.json is not None:
            logger.warning("kernel %s: its stored document is damaged; it is rendered again", kernel_id)
        summary = _summary(row.search) if document is not None and row.search else None
        answers[number] = StoredAnswer(kernel_id, role, pinned, trials, artifact, summary, document)
    return answers


@lru_cache(maxsize=4096)  # searches end in few ways
def _summary(search: str | bytes) -> SearchSummary:
    return SearchSummary.from_json(json.loads(search))


_Column = ColumnElement[Any] | InstrumentedAttribute[Any]


def _statement(
    entries: FromClause,
    number: ColumnElement[int],
    read: Callable[[InstrumentedAttribute[str]], _Column],
) -> Executable:
    """The lookup for rows of which each has its ``number`` from 0 and the ``value``, a WantedAnswer; ``read`` is how
    the columns of the document are read."""
    value = type_coerce(entries.c.value, JSON)
    answer = (
        select(KernelRow.seq)
        .join(GemmRow, GemmRow.id == KernelRow.gemm_id)
        .where(
            GemmRow.text == value[0].as_string(),
            KernelRow.device_key == value[1].as_string(),
            KernelRow.regime == value[2].as_string(),
            may_answer(value[3].as_boolean()),
        )
        .order_by(*ANSWER_ORDER)
        .limit(1)
        .correlate(entries)
        .scalar_subquery()
    )
    kept = and_(KernelDocumentRow.seq == KernelRow.seq, KernelDocumentRow.rendering == RENDERING)
    return (
        select(
            number,
            KernelRow.id,
            KernelRow.role,
            KernelRow.pinned_at,
            KernelRow.trials,
            KernelRow.artifact_sha256,
            read(KernelDocumentRow.search),
            read(KernelDocumentRow.json),
            read(KernelDocumentRow.sha256),
        )
        .select_from(entries)
        .join(KernelRow, KernelRow.seq == answer)
        .outerjoin(KernelDocumentRow, kept)
    )


# Built once: to build them takes longer than to run them.
_LIST = bindparam("wanted", type_=Text)
_ENTRIES = func.json_each(_LIST).table_valued("key", "value", name="entries")
_NUMBERED = (
    func.json_array_elements(cast(_LIST, JSON))
    .table_valued("value", with_ordinality="number")
    .render_derived("entries")
)
# In SQLite a damaged text need not be UTF-8, and to read one as a text would fail the whole lookup.
_SQLITE = _statement(_ENTRIES, _ENTRIES.c.key, lambda column: cast(column, LargeBinary))
_POSTGRES = _statement(_NUMBERED, _NUMBERED.c.number - 1, lambda column: column)
