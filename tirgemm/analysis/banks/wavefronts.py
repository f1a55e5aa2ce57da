"""Bank-conflict model of shared memory: the wavefronts of a warp's access, and how many of them are conflicts.

Words as in the definitions: a wavefront is one pass of the shared-memory data stage; conflicts are the wavefronts
beyond the fewest that the same width, active lanes and distinct addresses allow.

Sources: CUDA C++ Programming Guide, "Shared Memory" of compute capabilities 5.x to 9.0 (32 banks of 4 bytes, one word
of a bank a pass, any number of lanes may have the same word); PTX ISA, ``ldmatrix`` and ``stmatrix`` (8 rows of 16
bytes a matrix); Greg Smith of NVIDIA, "Unexpected shared memory bank conflict", forums.developer.nvidia.com/t/77228: a
128-bit load needs four passes and two where lanes n and n^1, or n and n^2, have the same address for all active lanes;
zhuanlan.zhihu.com/p/690052715, ncu on an A100: the whole warp must pair in one way, a lane pairs with an inactive one,
and conflicts are counted beyond the passes of the paired access. What sm_90a does otherwise is what ncu counted on an
H200 (``benchmarks/bank_probe.py``, ``benchmarks/counters.py`` and their results).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from tirgemm.analysis.banks.coalescing import Flags, Integers, by_lane
from tirgemm.analysis.banks.shared_access import WARP, SharedAccess
from tirgemm.errors import InvalidRequest

# The source of a lane of cp.async that reads nothing and writes zeros.
NOWHERE = -1
# How cp.async is served: as a store, or as counted on sm_90a (``_through_l1``, ``BankModel.tells``).
CopyRule = Literal["as stores", "as counted"]


@dataclass(frozen=True, slots=True)
class BankModel:
    """How one architecture serves shared memory; all that the analysis assumes about hardware is here.

    ``phase_lanes``: how many lanes in a row are served together, by width in bytes. ``pairings``: a load is served in
    half as many phases if lanes n and n ^ p have one address for all active lanes, for one p of these;
    ``pairing_lanes``: how many lanes in a row must agree on p for that, if their phases are not more. ``copies``: how
    cp.async is served.
    """

    banks: int = 32
    bank_bytes: int = 4
    phase_lanes: tuple[tuple[int, int], ...] = ((1, 32), (2, 32), (4, 32), (8, 16), (16, 8))
    pairings: tuple[int, ...] = (1, 2)
    paired_widths: tuple[int, ...] = (8, 16)
    pairing_lanes: int = WARP
    copies: CopyRule = "as stores"

    def lanes(self, width: int) -> int:
        """Lanes of a phase for accesses of ``width`` bytes a lane."""
        return dict(self.phase_lanes)[width]

    def tells(self, access: SharedAccess) -> bool:
        """Whether addresses tell in how many passes ``access`` is served; of what goes past L1 nothing but the fewest
        is told."""
        return self.copies == "as stores" or not access.past_l1


# The pairing is documented for 7.0 to 7.5, measured on 8.0 and seen on 8.6 (the SGEMM article's z-order table).
MODELS: dict[str, BankModel] = {
    **{arch: BankModel() for arch in ("sm_75", "sm_80", "sm_86", "sm_89")},
    "sm_90a": BankModel(pairing_lanes=16, copies="as counted"),
}


def bank_model(arch: str) -> BankModel:
    """The model of ``arch``. Raises InvalidRequest for one that there is none of."""
    if arch not in MODELS:
        raise InvalidRequest(f"no bank model of architecture {arch!r}; there is one of {', '.join(MODELS)}")
    return MODELS[arch]


@dataclass(frozen=True, slots=True)
class BankPhase:
    """Lanes that are served together. ``banks``: for each of them the banks that it touches, in order of its bytes;
    ``first_words``: the first of the words that it wants of them.

    ``words``: for each bank, the word addresses (bytes / 4) wanted of it, ascending: as many passes as the longest, but
    for cp.async on sm_90a.
    """

    lanes: tuple[int, ...]
    banks: tuple[tuple[int, ...], ...]
    first_words: tuple[int, ...]
    words: tuple[tuple[int, ...], ...]
    wavefronts: int


@dataclass(frozen=True, eq=False)
class BankReport:
    """What ``analyze`` found, request by request. Arrays are not to be written to.

    ``addresses`` and ``active``: [request, lane]. ``phase``: [request, lane], the number of the lane's phase, -1 where
    the lane takes no part. ``passes``: [request, phase]; ``fewest``: [request].
    """

    access: SharedAccess
    model: BankModel
    addresses: Integers
    active: Flags
    phase: Integers
    passes: Integers
    fewest: Integers

    @property
    def requests(self) -> int:
        return len(self.addresses)

    @cached_property
    def wavefronts(self) -> Integers:
        """[request]."""
        return np.asarray(self.passes.sum(axis=1), dtype=np.int64)

    @cached_property
    def conflicts(self) -> Integers:
        """Wavefronts beyond the fewest: [request]."""
        return self.wavefronts - self.fewest

    @property
    def total_wavefronts(self) -> int:
        return int(self.wavefronts.sum())

    @property
    def total_conflicts(self) -> int:
        return int(self.conflicts.sum())

    def phases(self, request: int) -> tuple[BankPhase, ...]:
        """The phases of one request in the order in which the hardware serves them."""
        of_lane = self.phase[request]
        return tuple(self._phase(request, n) for n in sorted({*of_lane.tolist()} - {-1}))

    def _phase(self, request: int, number: int) -> BankPhase:
        lanes = np.flatnonzero(self.phase[request] == number)
        words = _words(self.addresses[request][lanes], self.access.width, self.model)
        by_bank = tuple(
            tuple(sorted({*words[words % self.model.banks == b].tolist()})) for b in range(self.model.banks)
        )
        return BankPhase(
            tuple(lanes.tolist()),
            tuple(tuple(row) for row in (words % self.model.banks).tolist()),
            tuple(words[:, 0].tolist()),
            by_bank,
            int(self.passes[request, number]),
        )


def analyze(
    addresses: ArrayLike,
    access: SharedAccess | str,
    active: ArrayLike | None = None,
    arch: str | BankModel = "sm_90a",
    sources: ArrayLike | None = None,
) -> BankReport:
    """Wavefronts and conflicts of requests of ``access`` on ``arch``.

    ``addresses``: shared-memory byte addresses [request, 32], or [32] for one request. ``active``: which lanes take
    part, of the same shape or broadcast to it; all by default. ``sources``: the global byte addresses that a cp.async
    reads, of the same shape, NOWHERE where it writes zeros: the model of sm_90a asks for them of copies through L1, and
    without them counts what is written alone. ``arch`` may be a model of one's own. Raises InvalidRequest for an
    unknown architecture, another number of lanes, a negative or a misaligned address.

    Of cp.async past L1 on sm_90a ``passes`` are the fewest: what is counted there follows from no address.
    """
    access = SharedAccess.parse(access) if isinstance(access, str) else access
    model = arch if isinstance(arch, BankModel) else bank_model(arch)
    given, part = by_lane(addresses, active)
    part = part & (np.arange(WARP) < access.lanes)
    for wrong, why in ((part & (given < 0), "is negative"), (part & (given % access.width != 0), "is not aligned")):
        if wrong.any():
            request, lane = np.argwhere(wrong)[0].tolist()
            raise InvalidRequest(
                f"address {int(given[request, lane])} of lane {lane} in request {request} {why}; {access} has "
                f"{access.width} bytes a lane"
            )
    phase = _phases(given, part, access, model)
    passes, fewest = _counted(given, phase, access.width, model)
    if not model.tells(access):
        passes = fewest
    elif access.operation == "cp.async" and model.copies == "as counted" and sources is not None:
        read = np.broadcast_to(np.asarray(sources, np.int64), given.shape)
        passes = _through_l1(passes, read, phase, access.width, model)
    return BankReport(access, model, given, part, phase, passes, fewest.sum(axis=1))


def _phases(addresses: Integers, active: Flags, access: SharedAccess, model: BankModel) -> Integers:
    """The phase of every lane; numbers may be left out where loads pair."""
    lanes = np.arange(WARP)
    served = model.lanes(access.width)
    phase = np.broadcast_to(lanes // served, addresses.shape).copy()
    if access.operation == "load" and access.width in model.paired_widths:
        together = min(WARP, max(2 * served, model.pairing_lanes))
        paired = np.zeros((len(addresses), WARP // together), dtype=np.bool_)
        for pairing in model.pairings:
            other = lanes ^ pairing
            same = (addresses == addresses[:, other]) | ~(active & active[:, other])
            paired |= same.reshape(len(addresses), -1, together).all(axis=2)
        phase = np.where(np.repeat(paired, together, axis=1), phase & ~1, phase)
    phase[~active] = -1
    return phase.astype(np.int64)


def _through_l1(passes: Integers, sources: Integers, phase: Integers, width: int, model: BankModel) -> Integers:
    """The passes of each phase of a cp.async through L1: [request, phase].

    L1's lines lie in the same banks: as many passes as a bank has words to read, whether the same or not, and one more
    for each conflict of the words that are written.
    """
    totals = passes.copy()
    words = _words(sources, width, model) % model.banks
    for number in range(passes.shape[1]):
        part = (phase == number) & (sources != NOWHERE)
        wanted = np.stack([(part[..., None] & (words == bank)).sum(axis=(1, 2)) for bank in range(model.banks)])
        totals[:, number] += np.maximum(wanted.max(axis=0) - 1, 0)
    return totals


def _words(addresses: Integers, width: int, model: BankModel) -> Integers:
    """The words of every address: one more axis."""
    words = np.arange(max(1, width // model.bank_bytes), dtype=np.int64)
    return addresses[..., None] // model.bank_bytes + words


def _counted(addresses: Integers, phase: Integers, width: int, model: BankModel) -> tuple[Integers, Integers]:
    """Passes and the fewest possible, by request and phase.

    In a phase, a bank serves one word a pass, to all lanes that want it. Spread evenly, the phase's distinct words need
    as many passes as they fill all the banks.
    """
    phases = int(phase.max(initial=0)) + 1
    words = _words(np.where(phase >= 0, addresses, 0), width, model)
    low = int(words.min(initial=0)) // model.banks * model.banks
    span = int(words.max(initial=0)) - low + 1
    keys = np.where(phase[..., None] >= 0, phase[..., None] * span + words - low, -1).reshape(
        len(addresses), WARP * words.shape[-1]
    )
    keys.sort(axis=1)
    wanted = keys >= 0
    wanted[:, 1:] &= keys[:, 1:] != keys[:, :-1]
    request, _ = np.nonzero(wanted)
    of_phase, bank = keys[wanted] // span, keys[wanted] % span % model.banks
    cell = (request * phases + of_phase) * model.banks + bank
    by_bank = np.bincount(cell, minlength=len(addresses) * phases * model.banks).reshape(-1, phases, model.banks)
    passes = by_bank.max(axis=2, initial=0)
    fewest = -(-by_bank.sum(axis=2) // model.banks)
    return passes.astype(np.int64), fewest.astype(np.int64)
