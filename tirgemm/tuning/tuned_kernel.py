"""``tune``: one call from a problem to a ``TunedKernel``, from the store where that has it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tirgemm.artifact import Kernel, Signer, Trust
from tirgemm.artifact.loader import opened
from tirgemm.detect import device as detect_device
from tirgemm.device import Device
from tirgemm.errors import ArtifactError, InvalidGemm, InvalidRequest, StoreError
from tirgemm.events import Done
from tirgemm.gemm import Gemm, Regime, regime_named
from tirgemm.tuning.budget import Budget, covers
from tirgemm.tuning.records import KernelRecord, Status
from tirgemm.tuning.records.memory_store import MemoryStore
from tirgemm.tuning.records.store import Store
from tirgemm.tuning.set_tuning import tuning_class
from tirgemm.tuning.tuning_task import Control, chosen_families
from tirgemm.tuning.workbench import Workbench


class TunedKernel(Kernel):
    """A ``Kernel`` with ``record``: what the store holds of it, the trials and the certificate with it."""

    def __init__(self, record: KernelRecord, artifact: bytes, trust: Trust) -> None:
        super().__init__(*opened(artifact, trust))
        self.record = record

    def __repr__(self) -> str:
        timing = self.timings.of(self.record.regime)
        us = f", {timing.median_us:.2f} us {self.record.regime}" if timing else ""
        return f"<TunedKernel {self.gemm} on {self.device.key}: {self.config}{us}>"


@dataclass(frozen=True)
class TuneRequest:
    """What is to be tuned, on what, and how long: ``retune`` is on top of what is recorded; ``other_devices``: what was
    shipped for other devices of the architecture is tried, too.

    Raises InvalidGemm, InvalidRequest, InvalidDevice for what cannot be meant.
    """

    gemm: Gemm
    device: Device
    regime: Regime
    budget: Budget
    seed: int = 0
    families: tuple[str, ...] | None = None
    retune: bool = False
    other_devices: bool = False

    @classmethod
    def of(
        cls,
        gemm: Gemm | str,
        device: Device | str | None,
        regime: str,
        budget: Budget | None,
        *,
        effort: str | None = None,
        seed: int = 0,
        families: Iterable[str] | None = None,
        retune: bool = False,
    ) -> TuneRequest:
        """Of what a user gives. Raises InvalidGemm and InvalidRequest, which say what to give, for other types."""
        problem: Any = Gemm.parse(gemm) if isinstance(gemm, str) else gemm
        if not isinstance(problem, Gemm):
            raise InvalidGemm(f"gemm is {gemm!r:.80}; give a tirgemm.Gemm, or its text such as '4096x4096x4096:f16:nt'")
        if budget is not None and not isinstance(budget, Budget):
            raise InvalidRequest(f"budget is {budget!r:.80}; give tirgemm.Budget(trials=..., seconds=...)")
        if type(seed) is not int or seed < 0:
            raise InvalidRequest(f"seed is {seed!r:.80}; it must be an integer from 0")
        spent = Budget.of(effort) if budget is None else budget
        if budget is not None and effort is not None:
            spent = Budget.of(effort, budget.trials, budget.seconds)
        names = _family_names(families)
        return cls(problem, detect_device(device), regime_named(regime), spent, seed, names, retune)

    @property
    def searched(self) -> frozenset[str]:
        """The families that are asked for and write the problem. Raises InvalidRequest where one does not."""
        return frozenset(family.name for family in chosen_families(self.gemm, self.device, self.families))

    def budget_on(self, store: Store) -> Budget:
        """The budget of its search: with ``retune`` on top of what the store has recorded of its families."""
        if not self.retune:
            return self.budget
        recorded, searched = store.candidates(self.gemm, self.device.key, self.regime), self.searched
        return self.budget.on_top_of(
            sum(each.status is not Status.PRUNED and each.config.family in searched for each in recorded)
        )


def _family_names(families: Iterable[str] | None) -> tuple[str, ...] | None:
    """The names in ``families``, or the one that it is. Raises InvalidRequest where there are none."""
    if families is None:
        return None
    names = (families,) if isinstance(families, str) else tuple(families) if isinstance(families, Iterable) else ()
    if not names:
        raise InvalidRequest(f"families is {families!r:.80}; name one or more families, or None for all")
    return names


def tune(
    request: TuneRequest,
    *,
    store: Store | None = None,
    signer: Signer | None = None,
    control: Control | None = None,
    lock_dir: Path | None = None,
) -> TunedKernel:
    """``tirgemm.tune`` on a store and a key of the caller's: by default in memory, with a key of its own.

    Only artifacts that ``signer`` signed are taken from the store.
    """
    store = MemoryStore() if store is None else store
    signer = signer or Signer.generate()
    control = control or Control()
    known = stored(store, request, signer)
    if known is not None:
        if control.on_event is not None:
            record = known.record
            control.on_event(Done(kernel=record.id, config=str(record.config), timings=record.timings, stored=True))
        return known
    with Workbench(request.device, store, signer, lock_dir=lock_dir) as bench:
        record = tuning_class(request.gemm)(
            request.gemm,
            bench,
            request.regime,
            request.budget_on(store),
            seed=request.seed,
            families=request.families,
            control=control,
            other_devices=request.other_devices,
        ).run()
        return TunedKernel(record, store.get_blob(record.artifact_sha256), Trust.of_signer(signer))


def stored(store: Store, request: TuneRequest, signer: Signer) -> TunedKernel | None:
    """The store's kernel that answers the request, the first that can be loaded; None where the search is to go on.
    Raises InvalidRequest for a family that does not write the problem."""
    if request.retune:
        return None
    families = request.searched
    lost: list[str] = []
    while True:
        record = store.kernel(
            request.gemm, request.device.key, request.regime, other_devices=request.other_devices, without=lost
        )
        if record is None:
            return None
        if covers(record, request.budget, request.families) and record.config.family in families:
            try:
                return TunedKernel(record, store.get_blob(record.artifact_sha256), Trust.of_signer(signer))
            except (ArtifactError, StoreError):
                # Merged in from another installation and signed there, or damaged: unless another one answers, it is
                # built and certified here again.
                pass
        elif not lost:
            return None
        lost.append(record.id)
