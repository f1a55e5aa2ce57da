"""``tirgemm.tune``: the tuner on the user's own database, signing with the user's own key."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

from tirgemm.artifact import Signer
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest
from tirgemm.events import EventHandler
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning import tuned_kernel
from tirgemm.tuning.budget import Budget
from tirgemm.tuning.process.interrupts import interruptible_tuning
from tirgemm.tuning.records.store import Store
from tirgemm.tuning.tuned_kernel import TunedKernel, TuneRequest
from tirgemm.tuning.tuning_task import Control
from tirgemm.tuning_db import data_folder


class _Default(Enum):
    DATABASE = "the user's database"

    def __repr__(self) -> str:
        return f"<{self.value}>"


def tune(
    gemm: Gemm | str,
    device: Device | str | None = None,
    regime: Regime = "sustained",
    budget: Budget | None = None,
    *,
    effort: str | None = None,
    seed: int = 0,
    store: Store | _Default | None = _Default.DATABASE,
    on_event: EventHandler | None = None,
    cancel: threading.Event | None = None,
    stop: threading.Event | None = None,
    progress: bool | None = None,
    families: Iterable[str] | None = None,
    lock_dir: Path | None = None,
    signer: Signer | None = None,
    retune: bool = False,
    other_devices: bool = False,
) -> TunedKernel:
    """Find the fastest verified kernel for ``gemm`` on ``device`` in ``regime`` and return it, ready to call.

    ``device`` is ``cpu``, ``cuda:0`` and so on (default: the first GPU, else the CPU) and must be present. ``store`` is
    the user's database by default, which ``tirgemm tune`` uses too (``$TIRGEMM_DATA``, by default
    ``~/.local/share/tirgemm``; ``$TIRGEMM_DB``); None keeps everything in memory. A problem whose search came to the
    end of this effort, or had this budget, or more, is answered from there; else the search goes on from the records,
    as by ``retune``, which tries up to ``budget`` more. ``signer`` is the key of that data folder by default, made at
    first use. With ``other_devices`` the fastest that the package's records have of similar devices are tried, too;
    what wins says so.

    ``effort`` (``none``, ``quick``, ``standard``, ``exhaustive``) says how far the search goes, ``budget`` what it may
    spend at most; without a budget the bounds are the effort's own, without either it is ``standard``.

    ``progress`` says in plain words what is being done: by itself in a notebook (False: never), elsewhere where it is
    True. ``on_event`` is called with the events of ``tirgemm.events``; for an answer from the store only with ``Done``,
    which says ``stored``.

    Ctrl-C, a notebook's interrupt, ends the search: the best kernel so far is selected, certified, stored and returned,
    with the warning SearchInterrupted; KeyboardInterrupt where there is none yet, and at a second Ctrl-C. It is so in
    the main thread and where Ctrl-C has no handler of the application's own. Who gives ``stop`` ends the search by
    setting it, and keeps Ctrl-C. Setting ``cancel`` ends everything within a second with Cancelled. What was recorded
    stays.

    ``seed`` fixes what is proposed for given measurements. Raises Unsupported, DoesNotFit, DeviceUnavailable,
    InvalidRequest, StoreError, Cancelled, KeyboardInterrupt.
    """
    named = os.environ.get("TIRGEMM_LOCK_DIR", "")
    with interruptible_tuning(str(gemm), progress, on_event, stop) as (handler, ending), ExitStack() as stack:
        asked = TuneRequest.of(gemm, device, regime, budget, effort=effort, seed=seed, families=families, retune=retune)
        given: Any = store
        is_path = isinstance(given, str | Path)
        if is_path or not (given is None or isinstance(given, _Default) or hasattr(given, "kernel")):
            words = f"{str(given)!r:.200}, a path" if is_path else f"{given!r:.80}"
            raise InvalidRequest(
                f"store is {words}; give a Store, or None to keep nothing: the data folder is TIRGEMM_DATA's"
            )
        if isinstance(store, _Default):
            url = os.environ.get("TIRGEMM_DB") or None
            store = stack.enter_context(data_folder.open_store(None, url))
        return tuned_kernel.tune(
            replace(asked, other_devices=other_devices),
            store=store,
            signer=signer or data_folder.signer(None),
            control=Control(handler, cancel or threading.Event(), ending),
            lock_dir=lock_dir or (Path(named) if named else None),
        )
