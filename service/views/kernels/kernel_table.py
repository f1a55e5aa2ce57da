"""Table of kernels, filtered and sorted: pages by keyset, each row with its ratios and their spread."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from sqlalchemy import ColumnElement, Connection, Row, Select, func, select, tuple_

from tirgemm.errors import DamagedRow, PageNotFound
from tirgemm.gemm import Regime
from tirgemm.service.views.kernels.distributions import RatioSpread, ratio_spread
from tirgemm.service.views.kernels.kernel_timings import SAME_MEDIAN
from tirgemm.service.views.kernels.shape_filter import ShapeFilter
from tirgemm.service.views.queries import kernels_by_id
from tirgemm.status import Role
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning_db import Database
from tirgemm.tuning_db.models import CandidateRow, KernelFigureRow, KernelRow, SampleSetRow
from tirgemm.tuning_db.rows import fetch, sound

# By what rows are sorted; with a minus in front the other way round, the largest or newest first.
Order = Literal["stored", "us", "tflops", "default_ratio", "baseline_ratio", "work"]
SORTS: tuple[str, ...] = tuple(sign + order for order in get_args(Order) for sign in ("-", ""))


@dataclass(frozen=True)
class TableFilter:
    """Which kernels are listed: those that have each of these that is given."""

    shape: ShapeFilter = field(default_factory=ShapeFilter)
    dtype: str | None = None
    family: str | None = None
    device_keys: Sequence[str] | None = None
    regime: Regime | None = None
    role: Role | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """What it asks of rows of kernel_figures."""
        figures = KernelFigureRow
        conditions = self.shape.conditions()
        if self.device_keys is not None:
            conditions.append(figures.device_key.in_(list(self.device_keys)))
        pairs = (
            (figures.dtype, self.dtype),
            (figures.family, self.family),
            (figures.regime, self.regime),
            (figures.role, self.role),
        )
        return conditions + [column == value for column, value in pairs if value is not None]


@dataclass(frozen=True)
class ListedKernel:
    """A row: the kernel, its time in microseconds and speed in its regime where those were taken, and its ratios."""

    record: KernelRecord
    us: float | None
    tflops: float | None
    default: RatioSpread | None
    baseline: RatioSpread | None


def page_statements(
    wanted: TableFilter, sort: str, after: tuple[float | None, int] | None, *, few: bool = False
) -> list[Select[int]]:
    """Row numbers of kernels in the order ``sort`` from behind the value and number ``after``: one statement for those
    that have the figure, one for those without, which come last. Each is served by an index, unless ``few`` rows pass:
    then all rows are walked through as they lie, and those are sorted."""
    descending, order = sort.startswith("-"), sort.removeprefix("-")
    figures = KernelFigureRow
    rows = select(figures.seq).where(*wanted.conditions())
    if order == "stored":
        behind = [] if after is None else [figures.seq < after[1] if descending else figures.seq > after[1]]
        return [rows.where(*behind).order_by(figures.seq.desc() if descending else figures.seq)]
    column = getattr(figures, order) + 0 if few else getattr(figures, order)
    statements = []
    if after is None or after[0] is not None:
        known = rows.where(column.is_not(None))
        if after is not None:
            place, last = tuple_(column, figures.seq), tuple_(*after)
            known = known.where(place < last if descending else place > last)
        columns = (column, figures.seq)
        statements.append(known.order_by(*(each.desc() for each in columns) if descending else columns))
    lacking = rows.where(column.is_(None))
    if after is not None and after[0] is None:
        lacking = lacking.where(figures.seq < after[1])
    return [*statements, lacking.order_by(figures.seq.desc())]


def kernel_table(
    database: Database, wanted: TableFilter, *, sort: str, after: str = "", limit: int = 50, few: bool = False
) -> list[ListedKernel]:
    """At most ``limit`` kernels in the order ``sort``, one of SORTS, from behind the id ``after``; ``few``: see
    ``page_statements``.

    Raises InvalidRequest where no kernel has that id.
    """
    with database.read() as connection:
        place = _place(connection, after, sort.removeprefix("-")) if after else None
        numbers: list[int] = []
        for statement in page_statements(wanted, sort, place, few=few):
            if len(numbers) < limit:
                numbers += connection.execute(statement.limit(limit - len(numbers))).scalars()
        figures = {row.id: row for row in connection.execute(_figures(numbers))}
    order = {number: at for at, number in enumerate(numbers)}
    ids = sorted(figures, key=lambda kernel_id: order[figures[kernel_id].seq])
    kernels = [(record, figures[record.id]) for record in kernels_by_id(database, ids)]
    with database.read() as connection:
        samples = _report_samples(connection, {_key(record, row) for record, row in kernels})
    return [_listed(record, row, samples) for record, row in kernels]


def count_kernels(database: Database, wanted: TableFilter) -> int:
    """How many kernels a filter takes."""
    with database.read() as connection:
        count = select(func.count()).select_from(KernelFigureRow).where(*wanted.conditions())
        return int(connection.execute(count).scalar_one())


def _place(connection: Connection, kernel_id: str, order: str) -> tuple[float | None, int]:
    """The value that a kernel is sorted by, and its row number."""
    value = KernelFigureRow.seq if order == "stored" else getattr(KernelFigureRow, order)
    joined = select(value, KernelFigureRow.seq).join(KernelRow, KernelRow.seq == KernelFigureRow.seq)
    row = connection.execute(joined.where(KernelRow.id == kernel_id)).first()
    if row is None:
        raise PageNotFound(f"after is {kernel_id!r}; it must be the `next` of a page before")
    return row[0], row[1]


def _figures(numbers: Sequence[int]) -> Select[Any]:
    columns = [column for column in KernelFigureRow.__table__.columns if column.name != "seq"]
    rows = select(KernelRow.id, KernelRow.seq, *columns)
    return rows.join(KernelRow, KernelRow.seq == KernelFigureRow.seq).where(KernelFigureRow.seq.in_(numbers))


# Of a candidate: the number of its problem, its device, regime and config.
_RowKey = tuple[int, str, str, str]


def _report_samples(connection: Connection, keys: Collection[_RowKey]) -> dict[_RowKey, Row[Any]]:
    """The newest samples that report kernels' figures, by their candidates."""
    columns = (CandidateRow.gemm_id, CandidateRow.device_key, CandidateRow.regime, CandidateRow.config_digest)
    sets = select(*columns, SampleSetRow.samples_us, SampleSetRow.baselines, SampleSetRow.median_us).join(
        CandidateRow, CandidateRow.id == SampleSetRow.candidate_id
    )
    sets = sets.where(SampleSetRow.reason == "report").order_by(SampleSetRow.id)

    def read(part: Sequence[_RowKey]) -> list[Row[Any]]:
        # SQLite finds candidates of tuples by no index, and of values for each column by that of all four.
        values = (column.in_(sorted(set(each))) for column, each in zip(columns, zip(*part, strict=True), strict=True))
        taken = fetch(connection, sets.where(*values, tuple_(*columns).in_(part)))
        for row in taken:
            if not (isinstance(row.samples_us, list) and isinstance(row.baselines, dict)):
                raise DamagedRow(f"candidate {row.config_digest} has samples that make no sense; put a backup back")
        return list(taken)

    return {tuple(row[:4]): row for row in sound(read, sorted(keys), "what was measured of")}


def _key(record: KernelRecord, row: Row[Any]) -> _RowKey:
    return row.gemm_id, row.device_key, row.regime, record.config.digest


def _listed(record: KernelRecord, row: Row[Any], samples: Mapping[_RowKey, Row[Any]]) -> ListedKernel:
    taken = samples.get(_key(record, row))
    # Another kernel of the same config may have reported since.
    if taken is None or row.us is None or abs(taken.median_us / row.us - 1) > SAME_MEDIAN:
        ours, baselines = (), {}
    else:
        ours, baselines = taken.samples_us, taken.baselines

    def spread(name: str | None, ratio: float | None) -> RatioSpread | None:
        if name is None or ratio is None:
            return None
        return ratio_spread(name, ratio, baselines.get(name, ()), ours)

    return ListedKernel(
        record, row.us, row.tflops, spread("default", row.default_ratio), spread(row.baseline, row.baseline_ratio)
    )
