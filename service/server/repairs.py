"""``Repairs``: opens the database and the other parts of a service, and repairs a damaged SQLite database before."""

from __future__ import annotations

import logging
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tirgemm.errors import AlreadyRunning, DamagedDatabase, StoreError
from tirgemm.service.http.state import ServiceState
from tirgemm.service.jobs.process import ending_signals
from tirgemm.service.server.repair_answers import answering
from tirgemm.service.settings import Settings
from tirgemm.tuning_db.data_folder import database_file
from tirgemm.tuning_db.upkeep.repair import repair_if_found_damaged
from tirgemm.tuning_db.upkeep.repair_files import repair_obstacle

# Until the workers that were started by themselves have ended, too: they see the damage as the server does.
WAIT_SECONDS = 30.0
LOOK_SECONDS = 0.1
# Between attempts to open what cannot be opened, the first and the longest.
RETRY_SECONDS = 5.0, 300.0
# Where the newest candidate may be on a damaged page: they are counted from the first look on that succeeds.
BEHIND_ALL = 1 << 62

logger = logging.getLogger("tirgemm.service")


@dataclass
class ExitRequest:
    """Whether the process was asked to exit. A signal may come while another one's is noted: no lock is taken."""

    _made: bool = False

    def make(self) -> None:
        self._made = True

    def is_made(self) -> bool:
        return self._made


class Repairs:
    """Opens the service of the process that holds the lock of the data folder. While it repairs, ``/healthz`` is
    answered on ``listener``, where there is one, and a signal, or ``asked_to_exit``, ends the wait for it: a repair
    that is cut off is begun again by the next start."""

    def __init__(
        self, settings: Settings, listener: socket.socket | None = None, asked_to_exit: ExitRequest | None = None
    ) -> None:
        self.repaired = False
        """Whether the last opening repaired the database."""
        self._settings = settings
        self._listener = listener
        self._asked_to_exit = asked_to_exit or ExitRequest()
        self._obstacle = ""

    def open(self) -> ServiceState | None:
        """``ServiceState.open``; None once asked to exit. The SQLite database is repaired first where damage was met in
        it, be it now; one that cannot be repaired is opened as it is. Raises what that does."""
        self.repaired = self._repair()
        if self._asked_to_exit.is_made():
            return None
        try:
            return ServiceState.open(self._settings)
        except DamagedDatabase:
            self.repaired = self._repair()
            if self._asked_to_exit.is_made():
                return None
            if not self.repaired:
                raise
            return ServiceState.open(self._settings)

    def open_again(self) -> ServiceState | None:
        """The same for a service that was serving: it goes on, be it with what is whole of a damaged database, as soon
        as that can be opened."""
        wait_s, longest_s = RETRY_SECONDS
        while not self._asked_to_exit.is_made():
            self.repaired = self._repair()
            try:
                if not self._asked_to_exit.is_made():
                    after = None if self.repaired else BEHIND_ALL
                    return ServiceState.open(self._settings, candidates_after=after, complete=self.repaired)
            except StoreError as error:
                logger.error("the service cannot go on yet, and tries again in %.0f s: %s", wait_s, error)
                with answering(self._listener), _signals_ask(self._asked_to_exit):
                    until = time.monotonic() + wait_s
                    while not self._asked_to_exit.is_made() and time.monotonic() < until:
                        time.sleep(LOOK_SECONDS)
                wait_s = min(2 * wait_s, longest_s)
        return None

    def is_possible(self) -> bool:
        """Whether nothing is known that hinders a repair, which is logged."""
        words = repair_obstacle(database_file(self._settings.data))
        if words and words != self._obstacle:
            logger.error("the damaged database is not repaired: %s", words)
        self._obstacle = words
        return not words

    def _repair(self) -> bool:
        """Whether the database was found to be damaged and is whole now."""
        marker, done = self._settings.damage_marker, list[bool]()
        if marker is None or not marker.is_file():
            return False

        def repair() -> None:
            try:
                done.append(repair_if_found_damaged(self._settings.data, WAIT_SECONDS) is not None)
            except (AlreadyRunning, StoreError) as error:
                logger.error("the damaged database is not repaired: %s", error)
            except Exception:
                logger.exception("the damaged database is not repaired")

        # A thread of its own, since SQLite heeds no signal; it dies with the process, which is as good as any moment.
        thread = threading.Thread(target=repair, name="repair", daemon=True)
        with answering(self._listener), _signals_ask(self._asked_to_exit):
            thread.start()
            while thread.is_alive() and not self._asked_to_exit.is_made():
                thread.join(LOOK_SECONDS)
        return done == [True]


@contextmanager
def _signals_ask(asked_to_exit: ExitRequest) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(*_: object) -> None:
        asked_to_exit.make()

    before = [(number, signal.signal(number, ask)) for number in ending_signals()]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
