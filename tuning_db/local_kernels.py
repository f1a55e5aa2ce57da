"""``LocalKernels``: the kernels of the user's tuning database as a source, and shipped ones and defaults, built."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tirgemm.artifact import Kernel, Signer, Trust, load
from tirgemm.detect import check_fits
from tirgemm.device import Device
from tirgemm.errors import (
    ArtifactError,
    BuildersUnusable,
    BuildFailed,
    Cancelled,
    DoesNotFit,
    MeasurementFailed,
    RevokedKernel,
    StoreError,
    TirgemmError,
    Unsupported,
    VerificationFailed,
)
from tirgemm.families.choice import ranked_defaults
from tirgemm.gemm import Gemm, Range, Regime
from tirgemm.kernel_source import Arrived, MakesInBackground, Policy, Preparation
from tirgemm.tuning.default_set import default_parts, default_set
from tirgemm.tuning.kernel_set.sizes import searched_sizes
from tirgemm.tuning.records import KernelRecord
from tirgemm.tuning.records.store import Store
from tirgemm.tuning.set_members import SetPart
from tirgemm.tuning.set_tuning import SetTuning, tuning_class
from tirgemm.tuning.shipped_kernel import offered_configs
from tirgemm.tuning.tune import Tuning
from tirgemm.tuning.tuning_task import Control, chosen_families
from tirgemm.tuning.workbench import Workbench
from tirgemm.tuning_db import data_folder
from tirgemm.tuning_db.shipped.layered_store import shipped_offer
from tirgemm.tuning_db.shipped.records import ShippedRecords

LOG = logging.getLogger("tirgemm.tuning_db")
_WHAT_MAKES_ONE = 'policy="default" makes its default kernel, `tirgemm tune` a tuned one'


class LocalKernels(MakesInBackground):
    """A KernelSource on a data folder and its database, by default those of ``tirgemm.tune`` and ``tirgemm tune``.

    What it makes is built, certified, timed and stored there as a first answer of the service is, without a search; for
    a range of m a kernel set, where one kernel is expected to lose much somewhere.
    """

    tunes = False

    def __init__(self, data_dir: Path | None = None, url: str | None = None, regime: Regime = "sustained") -> None:
        self.data_dir, self.url, self.regime = data_dir, url or os.environ.get("TIRGEMM_DB") or None, regime
        self._shipped = ShippedRecords()

    def lookup(self, gemm: Gemm, device: Device) -> Kernel | None:
        """The stored answer: the pinned kernel, else the newest tuned, else the newest default, but for those that
        cannot be loaded. No database is made."""
        if self.url is None and not data_folder.database_file(self.data_dir).is_file():
            return None
        with data_folder.open_store(self.data_dir, self.url, to_read=True) as store:
            lost: list[str] = []
            while (record := store.kernel(gemm, device.key, self.regime, without=lost)) is not None:
                try:
                    return self._loaded(store, record.artifact_sha256, data_folder.signer(self.data_dir))
                except (ArtifactError, StoreError):
                    lost.append(record.id)  # merged in from another installation, or damaged
            return None

    def refusal(self, gemm: Gemm, device: Device, policy: Policy) -> str | None:
        """Why no kernel is built: the policy, the families, or the device's memory."""
        if policy == "tuned":
            return f"it was not tuned here; {_WHAT_MAKES_ONE}"
        try:
            check_fits(gemm, device)
            chosen_families(gemm, device, None)
        except (Unsupported, DoesNotFit) as error:
            return str(error)
        if policy == "shipped":
            offer = shipped_offer(self._shipped, gemm, device, self.regime)
            sizes = (shipped_offer(self._shipped, each, device, self.regime) for each in _sizes(gemm))
            if not (offer and offer.answers) and not any(each and each.same for each in sizes):
                return f"no record of it was shipped for this device, driver and TVM; {_WHAT_MAKES_ONE}"
        return device.only_named if not device.present else None

    def _make(self, preparation: Preparation, device: Device, policy: Policy, arrived: Arrived) -> None:
        """Build all that are wanted side by side, then certify and store one after the other."""
        able = []
        for gemm in preparation.wanted:
            known = self.lookup(gemm, device)
            refusal = None if known is not None else self.refusal(gemm, device, policy)
            if known is not None:
                arrived(known)
            elif refusal is not None:
                preparation.fail([gemm], refusal)
            else:
                able.append(gemm)
        if not able or preparation.cancelled.is_set():
            return
        signer = data_folder.signer(self.data_dir)
        control = Control(cancel=preparation.cancelled)
        with ExitStack() as stack:
            store = stack.enter_context(data_folder.open_store(self.data_dir, self.url))
            bench = Workbench(device, store, signer)
            stack.callback(bench.close)
            tunings = [tuning_class(gemm)(gemm, bench, self.regime, control=control) for gemm in able]
            parts = {tuning.gemm: _begin(tuning) for tuning in tunings}
            for tuning in tunings:
                try:
                    record = _answer(tuning, parts[tuning.gemm])
                    arrived(self._loaded(store, record.artifact_sha256, signer))
                except Cancelled:
                    return
                except TirgemmError as error:
                    preparation.fail([tuning.gemm], str(error))

    def _loaded(self, store: Store, artifact_sha256: str, signer: Signer) -> Kernel:
        return load(store.get_blob(artifact_sha256), trust=Trust.of_signer(signer))


def _sizes(gemm: Gemm) -> list[Gemm]:
    """The problems whose shipped records speak for a range of m, too: its sizes."""
    return [gemm.with_(m=size) for size in searched_sizes(gemm.m)] if isinstance(gemm.m, Range) else []


def _answer(tuning: Tuning, parts: Sequence[SetPart]) -> KernelRecord:
    """The kernel set of the parts; where there are none, or one of them does not work, one kernel. Raises
    TirgemmError."""
    if parts:
        try:
            return default_set(tuning, parts)
        except BuildersUnusable:
            raise
        except (BuildFailed, MeasurementFailed, RevokedKernel, VerificationFailed) as error:
            LOG.warning("no kernel set for %s, but one kernel: %s", tuning.gemm, error)
    return tuning.fallback()


def _begin(tuning: Tuning) -> list[SetPart]:
    """Begin to build what answers a problem first, and return the parts of a kernel set of defaults where it is one:
    else it is what ``tuning.fallback`` takes, a shipped set, the fastest shipped config or the best default."""
    gemm, bench = tuning.gemm, tuning.workbench
    if isinstance(tuning, SetTuning):
        parts = tuning.shipped_parts or default_parts(gemm, bench.device, tuning.regime)
        for part in parts:
            bench.build_ahead(part.gemm, part.config)
        return [] if tuning.shipped_parts else parts
    offer = bench.store.offer(gemm, bench.device, tuning.regime)
    shipped = offered_configs(tuning, offer) if offer is not None and offer.answers else []
    config = shipped[0] if shipped else ranked_defaults(tuning.families, gemm, bench.device, tuning.regime)[0][1]
    bench.build_ahead(gemm, config)
    return []
