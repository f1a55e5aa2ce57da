"""List of spaces: every problem that has recorded candidates, on a device in a regime, with how many and the fastest.

The database's own come first, those of the newest problem first; then the shipped ones, in the order of their files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import quote, urlencode

from sqlalchemy import ColumnElement, func, select

from tirgemm.errors import PageNotFound
from tirgemm.gemm import REGIMES, Regime
from tirgemm.service.views.queries import device_keys
from tirgemm.tuning.records import Status
from tirgemm.tuning_db import Database
from tirgemm.tuning_db.models import CandidateRow, GemmRow
from tirgemm.tuning_db.rows import parsed_gemm, parts
from tirgemm.tuning_db.shipped.records import ShippedRecords

OWN, SHIPPED = "own", "shipped"
# Gemm as text, device key, regime.
Place = tuple[str, str, Regime]


@dataclass(frozen=True, slots=True)
class SpaceFilter:
    """Which spaces are listed: only those of each that is given. ``gemm`` is a part of the problem's text, ``device`` a
    key or a name."""

    gemm: str = ""
    dtype: str = ""
    family: str = ""
    device: str = ""
    regime: str = ""


@dataclass(frozen=True, slots=True)
class SpaceSummary:
    """How many candidates a space has, by ``statuses`` and by ``families``, and how many of them came with the package.
    ``best_us``: the least time of the search's samples, of the family ``best_family``; None where nothing was
    measured."""

    gemm: str
    device: str
    regime: Regime
    statuses: dict[str, int]
    families: dict[str, int]
    shipped: int
    best_us: float | None
    best_family: str | None
    url: str

    @property
    def measured(self) -> int:
        return self.statuses.get(Status.MEASURED, 0)

    @property
    def pruned(self) -> int:
        return self.statuses.get(Status.PRUNED, 0)

    @property
    def failed(self) -> int:
        return sum(self.statuses.values()) - self.measured - self.pruned


@dataclass(frozen=True, slots=True)
class _CandidateGroup:
    """Candidates of one family and status; ``us``: the least time among them."""

    family: str
    status: Status
    count: int
    us: float | None
    shipped: bool


def space_url(gemm: str, device: str, regime: Regime, **more: str | Sequence[str]) -> str:
    """The address of a space's page. The text form of a problem may stand in a path as it is."""
    return f"/spaces/{quote(gemm, safe=':=')}?{urlencode({'device': device, 'regime': regime, **more}, doseq=True)}"


def candidate_url(gemm: str, device: str, regime: Regime, config_hash: str) -> str:
    """The address of a candidate's page."""
    return f"/candidates/{config_hash}?{urlencode({'gemm': gemm, 'device': device, 'regime': regime})}"


def list_spaces(
    database: Database, shipped: ShippedRecords, wanted: SpaceFilter, after: str = "", limit: int = 50
) -> tuple[list[SpaceSummary], str | None]:
    """At most ``limit`` spaces from behind ``after``, and the ``after`` of the next page, None at the end.

    Raises PageNotFound where ``after`` names none.
    """
    source, place = _start(after)
    if source == OWN:
        rows = _own_places(database, shipped, wanted, place, limit + 1)
        listed = [(OWN, each) for each in rows]
        if len(rows) <= limit:
            rest = _shipped_places(database, shipped, wanted, None)
            listed += [(SHIPPED, each) for each in islice(rest, limit + 1 - len(rows))]
    else:
        rest = _shipped_places(database, shipped, wanted, place)
        listed = [(SHIPPED, each) for each in islice(rest, limit + 1)]
    more = " ".join((listed[limit - 1][0], *listed[limit - 1][1])) if len(listed) > limit else None
    return summaries(database, shipped, [each for _, each in listed[:limit]]), more


def recorded_devices(database: Database, shipped: ShippedRecords) -> list[str]:
    """The keys of the devices that candidates are recorded of."""
    keys: set[str] = {key for file in shipped.files() for key, _, _ in file.places}
    key: str | None = ""
    with database.read() as connection:
        # One look into an index for each: to read them all off the candidates takes long where there are many.
        while key is not None:
            key = connection.execute(
                select(func.min(CandidateRow.device_key)).where(CandidateRow.device_key > key)
            ).scalar()
            keys |= {key} if key else set()
    return sorted(keys)


def _start(after: str) -> tuple[str, Place | None]:
    if not after:
        return OWN, None
    source, *place = after.split(" ")
    regime = next((regime for regime in REGIMES if regime == place[-1]), None) if len(place) == 3 else None
    if source not in (OWN, SHIPPED) or regime is None:
        raise PageNotFound(f"after is {after[:200]!r}; it must be the `next` of a page before")
    return source, (place[0], place[1], regime)


def _keys(database: Database, shipped: ShippedRecords, name: str) -> list[str] | None:
    """The keys that a filter's device can mean; None for every one."""
    if not name:
        return None
    return device_keys(database, name, (device for file in shipped.files() for device in file.devices))


def _conditions(wanted: SpaceFilter, keys: Collection[str] | None) -> list[ColumnElement[bool]]:
    """What a filter asks of candidates."""
    conditions: list[ColumnElement[bool]] = []
    if keys is not None:
        conditions.append(CandidateRow.device_key.in_(keys))
    if wanted.regime:
        conditions.append(CandidateRow.regime == wanted.regime)
    if wanted.family:
        conditions.append(CandidateRow.family == wanted.family)
    return conditions


def _own_places(
    database: Database, shipped: ShippedRecords, wanted: SpaceFilter, after: Place | None, limit: int
) -> list[Place]:
    """Spaces of the database, newest problem first, and of one problem by device and regime."""
    conditions = _conditions(wanted, _keys(database, shipped, wanted.device))
    # The problem that the page before ended in may have nothing more.
    gemms = select(GemmRow.id).order_by(GemmRow.id.desc()).limit(limit + (after is not None))
    gemms = gemms.where(select(CandidateRow.id).where(CandidateRow.gemm_id == GemmRow.id, *conditions).exists())
    if wanted.gemm:
        gemms = gemms.where(GemmRow.text.contains(wanted.gemm, autoescape=True))
    if wanted.dtype:
        gemms = gemms.where(GemmRow.dtype == wanted.dtype)
    with database.read() as connection:
        first: int | None = None
        if after is not None:
            first = connection.execute(select(GemmRow.id).where(GemmRow.text == after[0])).scalar()
            if first is None:
                raise PageNotFound(f"after names the problem {after[0][:200]!r}, which is no more; begin anew")
            gemms = gemms.where(GemmRow.id <= first)
        numbers = connection.execute(gemms).scalars().all()
        places = (
            select(CandidateRow.gemm_id, GemmRow.text, CandidateRow.device_key, CandidateRow.regime)
            .join(GemmRow, GemmRow.id == CandidateRow.gemm_id)
            .where(CandidateRow.gemm_id.in_(numbers), *conditions)
            .group_by(CandidateRow.gemm_id, GemmRow.text, CandidateRow.device_key, CandidateRow.regime)
        )
        rows = sorted(connection.execute(places).all(), key=lambda row: (-row[0], row[2], row[3]))
    behind = [row for row in rows if after is None or row.gemm_id != first or (row.device_key, row.regime) > after[1:]]
    return [(row.text, row.device_key, row.regime) for row in behind[:limit]]


def _shipped_places(
    database: Database, shipped: ShippedRecords, wanted: SpaceFilter, after: Place | None
) -> Iterator[Place]:
    """Spaces of the records files that the same filter does not list of the database."""
    keys = _keys(database, shipped, wanted.device)
    every = [(file, (text, key, regime)) for file in shipped.files() for key, text, regime in file.places]
    if after is not None:
        start = next((at for at, (_, place) in enumerate(every) if place == after), None)
        if start is None:
            raise PageNotFound(f"after names {' '.join(after)[:200]!r}, which is not shipped; begin anew")
        every = every[start + 1 :]
    asked = [(file, place) for file, place in every if _is_wanted(place, wanted, keys)]
    for part in parts(asked, 64):
        own = _places_of(database, {place[0] for _, place in part}, _conditions(wanted, keys))
        for file, place in part:
            text, key, regime = place
            if place not in own and (not wanted.family or wanted.family in file.families(key, text, regime)):
                yield place


def _is_wanted(place: Place, wanted: SpaceFilter, keys: Collection[str] | None) -> bool:
    text, key, regime = place
    return (
        wanted.gemm in text
        and (keys is None or key in keys)
        and wanted.regime in ("", regime)
        and (not wanted.dtype or parsed_gemm(text).dtype == wanted.dtype)
    )


def _places_of(database: Database, gemms: Collection[str], conditions: Iterable[ColumnElement[bool]]) -> set[Place]:
    """Those spaces of some problems that are in the database."""
    columns = (GemmRow.text, CandidateRow.device_key, CandidateRow.regime)
    wanted = select(*columns).join(CandidateRow, CandidateRow.gemm_id == GemmRow.id)
    with database.read() as connection:
        rows = connection.execute(wanted.where(GemmRow.text.in_(gemms), *conditions).group_by(*columns))
        return {(row.text, row.device_key, row.regime) for row in rows}


def summaries(database: Database, shipped: ShippedRecords, places: Collection[Place]) -> list[SpaceSummary]:
    """What is listed of some spaces, in their order."""
    groups: dict[Place, list[_CandidateGroup]] = {place: [] for place in places}
    names = (GemmRow.text, CandidateRow.device_key, CandidateRow.regime)
    columns = (*names, CandidateRow.family, CandidateRow.status)
    counted = (
        select(*columns, func.count(), func.min(CandidateRow.search_us))
        .join(GemmRow, GemmRow.id == CandidateRow.gemm_id)
        .where(GemmRow.text.in_({place[0] for place in places}))
        .group_by(*columns)
    )
    with database.read() as connection:
        rows: list[Any] = list(connection.execute(counted))
    for text, key, regime, family, status, count, us in rows:
        if (text, key, regime) in groups:
            groups[text, key, regime].append(_CandidateGroup(family, status, count, us, shipped=False))
    for place, own in groups.items():
        own += _beneath(database, shipped, place, has_own=bool(own))
    return [_summary(place, own) for place, own in groups.items()]


def _beneath(database: Database, shipped: ShippedRecords, place: Place, *, has_own: bool) -> Iterator[_CandidateGroup]:
    """The shipped candidates of a space that the database has not, a group each."""
    text, key, regime = place
    candidates = [candidate for file in shipped.files_of(key) for candidate in file.candidates(key, text, regime)]
    known: set[str] = set()
    if has_own and candidates:
        digests = select(CandidateRow.config_digest).join(GemmRow, GemmRow.id == CandidateRow.gemm_id)
        of_place = (GemmRow.text == text, CandidateRow.device_key == key, CandidateRow.regime == regime)
        with database.read() as connection:
            known = set(connection.execute(digests.where(*of_place)).scalars())
    for candidate in candidates:
        if not known or candidate.config.digest not in known:
            yield _CandidateGroup(candidate.config.family, candidate.status, 1, candidate.search_us, shipped=True)


def _summary(place: Place, groups: list[_CandidateGroup]) -> SpaceSummary:
    statuses: Counter[str] = Counter()
    families: Counter[str] = Counter()
    for group in groups:
        statuses[group.status] += group.count
        families[group.family] += group.count
    measured = [(group.us, group.family) for group in groups if group.us is not None and group.status == "measured"]
    best_us, best_family = min(measured, default=(None, None))
    return SpaceSummary(
        *place,
        statuses={status.value: statuses[status.value] for status in Status if statuses[status.value]},
        families=dict(families.most_common()),
        shipped=sum(group.count for group in groups if group.shipped),
        best_us=best_us,
        best_family=best_family,
        url=space_url(*place),
    )
