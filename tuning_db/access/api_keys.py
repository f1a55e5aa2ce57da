"""``KeyTable``: API keys by the SHA-256 of their secrets, with scope, expiry, last use and quotas.

A secret has 256 random bits, so that its plain SHA-256 can be neither guessed nor looked up in a table; a slow hash is
for passwords, which people choose.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from sqlalchemy import Row, or_, select, update

from tirgemm.errors import InvalidRequest
from tirgemm.tuning_db.database import ClockedTables
from tirgemm.tuning_db.models import ApiKeyRow
from tirgemm.tuning_db.times import iso

Scope = Literal["read", "tune", "admin"]
# Each may what those before it may.
SCOPES: tuple[Scope, ...] = ("read", "tune", "admin")
SECRET_PREFIX = "tirgemm_"
SHOWN_CHARACTERS = 6
MAX_NAME = 100
MAX_EXPIRY_DAYS = 3650.0
# With less a key would wait for hours between two requests.
MIN_REQUESTS_PER_SECOND = 0.001


@dataclass(frozen=True, slots=True)
class Quotas:
    """What one key may use; None is the service's default. Raises InvalidRequest for what is not above 0, and for less
    than MIN_REQUESTS_PER_SECOND."""

    requests_per_second: float | None = None
    live_jobs: int | None = None
    trials_a_day: int | None = None
    bytes_stored: int | None = None
    batch_problems_a_day: int | None = None

    def __post_init__(self) -> None:
        rate = self.requests_per_second
        if rate is not None and rate < MIN_REQUESTS_PER_SECOND:
            raise InvalidRequest(
                f"quota requests_per_second is {rate:g}; it must be at least {MIN_REQUESTS_PER_SECOND:g}"
            )
        for name, value in asdict(self).items():
            if value is not None and not 0 < value < 2**63:
                raise InvalidRequest(f"quota {name} is {value}; it must be above 0 and below 2^63")

    def over(self, defaults: Quotas) -> Quotas:
        """These, with ``defaults`` where one is None."""
        return replace(defaults, **{name: value for name, value in asdict(self).items() if value is not None})


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key without its secret; times are ISO 8601 in UTC. ``prefix`` is how the secret begins."""

    id: str
    name: str
    prefix: str
    sha256: str
    scope: Scope
    created_at: str
    expires_at: str | None
    revoked_at: str | None
    last_used_at: str | None
    quotas: Quotas

    def allows(self, scope: Scope) -> bool:
        return SCOPES.index(self.scope) >= SCOPES.index(scope)

    def fault(self, now: float) -> str:
        """Why the key is not valid at ``now`` (seconds since 1970); empty where it is."""
        if self.revoked_at is not None:
            return f"was revoked at {self.revoked_at}"
        if self.expires_at is not None and self.expires_at <= iso(now):
            return f"expired at {self.expires_at}"
        return ""

    def to_json(self) -> dict[str, Any]:
        """All but the hash."""
        members = asdict(self)
        del members["sha256"]
        return members


def secret_hash(secret: str) -> str:
    """The SHA-256 by which a secret is stored and looked up."""
    return hashlib.sha256(secret.encode()).hexdigest()


class KeyTable(ClockedTables):
    """The API keys of a Database."""

    def create(
        self, name: str, scope: str, *, expires_days: float | None = None, quotas: Quotas | None = None
    ) -> tuple[ApiKey, str]:
        """A new key and its secret, which is kept nowhere. Raises InvalidRequest."""
        if scope not in SCOPES:
            raise InvalidRequest(f"scope is {scope!r:.80}; it must be one of {', '.join(SCOPES)}")
        if not (name.isprintable() and 0 < len(name) <= MAX_NAME):
            raise InvalidRequest(f"name is {name!r:.120}; it must be 1 to {MAX_NAME} printable characters")
        if expires_days is not None and not 0 < expires_days <= MAX_EXPIRY_DAYS:
            raise InvalidRequest(f"expiry is {expires_days} days; it must be above 0 and at most {MAX_EXPIRY_DAYS:g}")
        secret = SECRET_PREFIX + secrets.token_urlsafe(32)
        with self.db.write() as connection:
            now = self._now(connection)
            values = {
                "id": secrets.token_hex(8),
                "name": name,
                "prefix": secret[: len(SECRET_PREFIX) + SHOWN_CHARACTERS],
                "sha256": secret_hash(secret),
                "scope": scope,
                "created_at": iso(now),
                "expires_at": None if expires_days is None else iso(now + expires_days * 86400),
                **asdict(quotas or Quotas()),
            }
            statement = self.db.insert(ApiKeyRow).values(values).returning(*ApiKeyRow.__table__.columns)
            return _key(connection.execute(statement).one()), secret

    def entries(self) -> list[ApiKey]:
        """Every key that there ever was, oldest first."""
        wanted = select(*ApiKeyRow.__table__.columns).order_by(ApiKeyRow.created_at, ApiKeyRow.id)
        with self.db.read() as connection:
            return [_key(row) for row in connection.execute(wanted)]

    def revoke(self, name: str) -> ApiKey:
        """End a key, named by its id or prefix, for good; twice is the same as once. Raises InvalidRequest."""
        wanted = or_(ApiKeyRow.id == name, ApiKeyRow.prefix == name)
        with self.db.write() as connection:
            ids = connection.execute(select(ApiKeyRow.id).where(wanted)).scalars().all()
            if len(ids) != 1:
                number = "no key has" if not ids else f"{len(ids)} keys have"
                # A whole secret may have been pasted: no more of it is repeated than is shown anyway.
                shown = name[: len(SECRET_PREFIX) + SHOWN_CHARACTERS]
                raise InvalidRequest(f"{number} the id or prefix {shown!r}; `tirgemm keys list` shows them")
            now = iso(self._now(connection))
            mine = ApiKeyRow.id == ids[0]
            connection.execute(update(ApiKeyRow).where(mine, ApiKeyRow.revoked_at.is_(None)).values(revoked_at=now))
            return _key(connection.execute(select(*ApiKeyRow.__table__.columns).where(mine)).one())

    def used(self, last: Mapping[str, float]) -> None:
        """Write when keys were last used: seconds since 1970 by the key's id. An earlier time than is there changes
        nothing."""
        with self.db.write() as connection:
            for key_id, at in last.items():
                later = or_(ApiKeyRow.last_used_at.is_(None), ApiKeyRow.last_used_at < iso(at))
                connection.execute(update(ApiKeyRow).where(ApiKeyRow.id == key_id, later).values(last_used_at=iso(at)))


def _key(row: Row[Any]) -> ApiKey:
    quotas = {field.name: getattr(row, field.name) for field in fields(Quotas)}
    if quotas["requests_per_second"] is not None:
        # A row of before there was a least rate may have less.
        quotas["requests_per_second"] = max(MIN_REQUESTS_PER_SECOND, quotas["requests_per_second"])
    members = {field.name: getattr(row, field.name) for field in fields(ApiKey) if field.name != "quotas"}
    return ApiKey(**members, quotas=Quotas(**quotas))
