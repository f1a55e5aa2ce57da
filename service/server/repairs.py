"""The parts of a service, opened on a database that is repaired first where it was found to be damaged."""

from __future__ import annotations

import logging

from tirgemm.errors import AlreadyRunning, DamagedDatabase, StoreError
from tirgemm.service.http.state import ServiceState
from tirgemm.service.settings import Settings
from tirgemm.tuning_db.upkeep.repair import repair_if_found_damaged

# Until the workers that were started by themselves have ended, too: they see the damage as the server does.
WAIT_SECONDS = 30.0

logger = logging.getLogger("tirgemm.service")


def open_repaired(settings: Settings) -> ServiceState:
    """``ServiceState.open``, for the process that holds the lock of the data folder. Its SQLite database is repaired
    first where damage was met in it, be it now; one that cannot be repaired is opened as it is. Raises what that
    does."""
    if settings.damage_marker is None:
        return ServiceState.open(settings)
    _repair(settings)
    try:
        return ServiceState.open(settings)
    except DamagedDatabase:
        if not _repair(settings):
            raise
        return ServiceState.open(settings)


def _repair(settings: Settings) -> bool:
    """Whether the database was found to be damaged and is whole now."""
    try:
        return repair_if_found_damaged(settings.data, WAIT_SECONDS) is not None
    except (AlreadyRunning, StoreError) as error:
        logger.error("the damaged database is not repaired: %s", error)
        return False
