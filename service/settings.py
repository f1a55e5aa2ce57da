"""Settings of the service process: from the command line, then ``TIRGEMM_*`` variables, then defaults."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, SettingsConfigDict

from tirgemm._user_folders import DATABASE, SERVER_LOCK, SIGNING_KEY, expanded, lock_folder, user_data
from tirgemm.errors import InvalidRequest
from tirgemm.service.log_lines import LogFormat
from tirgemm.service.validation_messages import TextForm, refusal
from tirgemm.tuning.budget import MAX_SECONDS, MAX_TRIALS
from tirgemm.tuning.process.locks import default_lock_dir
from tirgemm.tuning_db.access.api_keys import MIN_REQUESTS_PER_SECOND
from tirgemm.tuning_db.database import damage_marker
from tirgemm.tuning_db.job_values import MAX_PRIORITY, MIN_PRIORITY
from tirgemm.tuning_db.queue.job_leases import LONGEST_LEASE_S
from tirgemm.tuning_db.queue.job_rows import MAX_RETRIES

MAX_BODY_BYTES = 64 * 1024
# Holds as many problems as a batch may have, with every field written out and indented.
MAX_BATCH_BODY_BYTES = 1024 * 1024
MAX_HEADER_BYTES = 64 * 1024
ALL_DEVICES = "all"
# How long the headers, the body, or a reader of an answer may take.
REQUEST_SECONDS = 30.0
# Well beyond the longest step of a worker without a sign of life: a proposal of the search over a large space, a
# database that is waited for.
HANG_SECONDS = 120.0


# A host name or an address, as a Host header has it but for a port.
_BARE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*|\[?[0-9A-Fa-f.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*\]?")

EngineName = Literal["local", "ray"]


def _bare_names(names: str) -> str:
    for name in map(str.strip, names.split(",")):
        if name and name != "*" and _BARE_NAME.fullmatch(name) is None:
            words = "names with commas, each without scheme, port, path and wildcard, or * alone for any"
            raise PydanticCustomError("host_names", "Input should be {words}", {"words": words})
    return names


class Settings(BaseSettings):
    """Settings of ``tirgemm serve`` and ``tirgemm worker``; the variable of ``data`` is ``TIRGEMM_DATA``."""

    model_config = SettingsConfigDict(env_prefix="TIRGEMM_", env_ignore_empty=True, frozen=True)

    data: Path = Field(default_factory=user_data)
    """Folder of the database, the blobs, the signing key and the locks of one service."""
    db: str = ""
    """SQLAlchemy URL of the database; empty is SQLite in the data folder."""
    lock_dir: Path | None = None
    """Folder of the host-wide device locks; None is one that every process of this machine shares."""
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """0 is any free port, printed and written to ``server.json`` in the data folder."""
    hosts: Annotated[str, AfterValidator(_bare_names)] = ""
    """Names, with commas, that clients call this service by besides its address and this machine's name; * is any."""
    max_connections: Annotated[int, Field(ge=8, le=65536)] = 256
    """Connections at once of each server process; one more is refused, unless it is a probe's."""
    max_connections_per_address: Annotated[int, Field(ge=1, le=65536)] | None = None
    """Those of them that one address may have, loopback aside; None is three quarters."""
    server_processes: Annotated[int, Field(ge=1, le=64)] = 1
    """Processes that answer requests, side by side, on one port."""
    worker: bool = True
    """Whether ``serve`` runs a worker beside itself."""
    devices: str = ALL_DEVICES
    """The devices that the worker serves, side by side: names with commas, or all of this host."""
    engine: EngineName = "local"
    """Where the worker builds and measures: on this host, or on the nodes of a Ray cluster."""
    address: str = "127.0.0.1:6379"
    """Of the Ray cluster."""
    processes: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Build processes, which all devices share; None is one a usable hardware thread."""
    lease_seconds: Annotated[float, Field(ge=0.5, le=LONGEST_LEASE_S)] = 5.0
    """A job whose worker is silent for longer is taken over by another."""
    hang_seconds: Annotated[float, Field(ge=1, le=86400)] = HANG_SECONDS
    """A worker in which nothing goes on for longer hangs: it ends itself."""
    alive_file: Path | None = None
    """A file that a worker touches while work goes on, for whoever ends one that hangs; None is none."""
    fallback_seconds: Annotated[float, Field(ge=0, le=60)] = 5.0
    """How long a POST waits for the fallback."""
    max_wait_seconds: Annotated[float, Field(ge=0, le=3600)] = 120.0
    """The longest ``Prefer: wait=N`` that is honoured."""
    max_queued: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    """How many jobs may wait; a request for another one is told to come back."""
    max_retries: Annotated[int, Field(ge=0, le=100)] = MAX_RETRIES
    """How often a job that failed or was cancelled may be put back into the queue."""
    log_format: LogFormat = "text"
    """Whether stderr has what is logged as lines of text or of JSON."""
    traces_endpoint: Annotated[str, TextForm(r"^(https?://\S+)?$", "a URL such as http://127.0.0.1:4318")] = ""
    """Base URL of the collector that takes OpenTelemetry traces over OTLP, HTTP; empty: none are made."""
    insecure: bool = False
    """Whether to listen on other addresses than loopback although there is no API key."""
    key_requests_per_second: Annotated[float, Field(ge=MIN_REQUESTS_PER_SECOND, le=1e6)] = 200.0
    """Requests a second of one API key; this and the next ones where the key says nothing."""
    key_live_jobs: Annotated[int, Field(ge=1, le=1_000_000)] = 5000
    """Queued and running jobs of one key."""
    key_trials_a_day: Annotated[int, Field(ge=1, le=10**12)] = 1_000_000
    """Trials that the jobs of one key may ask for within a day."""
    key_bytes_stored: Annotated[int, Field(ge=1, lt=2**63)] = 100 * 2**30
    """Bytes of the artifacts that the jobs of one key may make."""
    key_batch_problems_a_day: Annotated[int, Field(ge=1, lt=2**63)] = 100_000
    """Problems that the batches of one key may name within a day, known kernels too."""
    key_priority: Annotated[int, Field(ge=MIN_PRIORITY, le=MAX_PRIORITY)] = 10
    """The highest priority that a key of the scope tune may give; one of the scope admin may give any."""
    max_trials: Annotated[int, Field(ge=1, le=MAX_TRIALS)] = 4096
    max_seconds: Annotated[float, Field(gt=0, le=MAX_SECONDS)] = 4 * 3600.0

    @classmethod
    def load(cls, **options: Any) -> Settings:
        """Settings with the options that are not None on top. Raises InvalidRequest with the field and the reason."""
        try:
            settings = cls(**{name: value for name, value in options.items() if value is not None})
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"]))
            option = f"--{field.replace('_', '-')}, " if field in options else ""
            named = f"{option}TIRGEMM_{field.upper()}"
            raise InvalidRequest(refusal(f"setting {field} ({named})", first)) from error
        paths = {
            "data": expanded(settings.data).resolve(),
            "lock_dir": None if settings.lock_dir is None else lock_folder(settings.lock_dir),
            "alive_file": None if settings.alive_file is None else expanded(settings.alive_file),
        }
        return settings.model_copy(update=paths)

    @property
    def signing_key(self) -> Path:
        return self.data / SIGNING_KEY

    @property
    def server_file(self) -> Path:
        return self.data / "server.json"

    @property
    def server_lock(self) -> Path:
        return self.data / SERVER_LOCK

    @property
    def damage_marker(self) -> Path | None:
        """What is there once the folder's own database was found to be damaged; None for one that has a URL."""
        return None if self.db else damage_marker(self.data / DATABASE)

    @property
    def worker_lock(self) -> Path:
        """Where the one worker of this machine on this database holds its lock."""
        folder = self.lock_dir or default_lock_dir()
        database = hashlib.sha256((self.db or str(self.data)).encode()).hexdigest()[:16]
        return folder / f"worker-{database}.lock"

    @property
    def connections_of_address(self) -> int:
        """How many connections of each server process one address may have."""
        return self.max_connections_per_address or 3 * self.max_connections // 4

    @property
    def alive_seconds(self) -> float:
        """A worker that was not seen for longer is not alive."""
        return 2 * self.lease_seconds + 1
