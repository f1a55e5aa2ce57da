"""Cost of a site's requests: wavefronts and conflicts in shared memory, sectors and lines in global memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tirgemm.analysis.banks import coalescing, wavefronts
from tirgemm.analysis.banks.shared_access import Operation, SharedAccess
from tirgemm.analysis.banks.wavefronts import BankModel
from tirgemm.analysis.ir.patterns import LINE, Requests
from tirgemm.analysis.ir.sites import Site

# What a request tells and a report sums up, by the name that both give it.
COUNTS = (
    "wavefronts",
    "fewest_wavefronts",
    "sectors",
    "fewest_sectors",
    "lines",
    "used_bytes",
    "lanes",
    "looked_up_sectors",
)
_OPERATIONS: dict[str, Operation] = {"load": "load", "store": "store", "atomic": "store", "copy": "cp.async"}
_MATRICES: dict[str, Operation] = {"ldmatrix": "ldmatrix", "stmatrix": "stmatrix"}


@dataclass(frozen=True, slots=True)
class RequestKind:
    """How a request is served: what tells two of equal addresses apart. ``width``: bytes a lane."""

    space: str
    op: str
    width: int
    matrices: int = 0
    transposed: bool = False

    @classmethod
    def of(cls, site: Site) -> RequestKind:
        return cls(
            "global" if site.space == "global" else "shared", site.op, site.width, site.matrices, site.transposed
        )

    @property
    def access(self) -> SharedAccess:
        """Its shared-memory access. Raises InvalidRequest for a width that there is none of."""
        if self.op in _MATRICES:
            return SharedAccess(_MATRICES[self.op], matrices=self.matrices, transposed=self.transposed)
        return SharedAccess(_OPERATIONS[self.op], self.width)


@dataclass(slots=True)
class Tally:
    """What was counted of one site so far.

    ``aligned``: the largest power of two, at most a line, that divides every global request's first address.
    ``example``: the request with most conflicts, or most sectors beyond the fewest (then most in all): addresses, the
    lanes active, and of a copy to shared memory where it reads. ``worst``: its cost.
    """

    requests: float = 0.0
    counts: NDArray[np.float64] = field(default_factory=lambda: np.zeros(len(COUNTS), np.float64))
    sampled: bool = False
    aligned: int = LINE
    example: tuple[tuple[int, ...], tuple[bool, ...], tuple[int, ...] | None] | None = None
    worst: int = -1

    def __getitem__(self, name: str) -> float:
        return float(self.counts[COUNTS.index(name)])


class RequestCounter:
    """Counts requests, each different one once: kernels repeat a few patterns over many sites."""

    def __init__(self, model: BankModel) -> None:
        self.model = model
        self.known: dict[tuple[RequestKind, bytes], NDArray[np.int64]] = {}

    def count(self, kind: RequestKind, requests: Requests, tally: Tally, share: float = 1.0) -> None:
        """Add ``requests`` to ``tally``; ``share``: how many requests of the width of ``kind`` each of them is.

        Raises InvalidRequest for an address that its width does not allow.
        """
        tally.sampled |= requests.sampled
        if not len(requests.weights):
            return
        if share != 1.0:
            requests = replace(requests, addresses=requests.addresses // kind.width * kind.width)
        rows = _normal(requests.addresses, requests.active)
        if requests.sources is not None:
            read = requests.active & (requests.sources != wavefronts.NOWHERE)
            rows = np.concatenate([rows, _normal(requests.sources, read)], axis=1)
        keys = [(kind, row.tobytes()) for row in rows]
        new = {key: at for at, key in enumerate(keys) if key not in self.known}
        if new:
            chosen = np.fromiter(new.values(), np.int64)
            sources = None if requests.sources is None else requests.sources[chosen]
            results = self.served(kind, requests.addresses[chosen], requests.active[chosen], sources)
            self.known.update(zip(new, results, strict=True))
        table = np.array([self.known[key] for key in keys])
        tally.requests += float(requests.weights.sum()) * share
        tally.counts += requests.weights @ table[:, :-1] * share
        # Of requests that waste as much the largest: the short ones of a matrix's last columns are untypical.
        wasted = table[:, 2] - table[:, 3]
        cost = table[:, 0] - table[:, 1] if kind.space == "shared" else wasted * LINE + table[:, 2]
        tally.aligned = min(tally.aligned, int(table[:, -1].min()))
        at = int(np.argmax(cost))
        if int(cost[at]) > tally.worst:
            tally.worst = int(cost[at])
            read = None if requests.sources is None else tuple(requests.sources[at].tolist())
            tally.example = tuple(requests.addresses[at].tolist()), tuple(requests.active[at].tolist()), read

    def served(
        self,
        kind: RequestKind,
        addresses: NDArray[np.int64],
        active: NDArray[np.bool_],
        sources: NDArray[np.int64] | None,
    ) -> NDArray[np.int64]:
        """What each request costs: [request, COUNTS], and last the alignment of its first address."""
        table = np.zeros((len(addresses), len(COUNTS) + 1), np.int64)
        table[:, 6] = active.sum(axis=1)
        if kind.space == "shared":
            report = wavefronts.analyze(addresses, kind.access, active, self.model, sources)
            table[:, 0], table[:, 1] = report.wavefronts, report.fewest
            table[:, 5], table[:, -1] = active.sum(axis=1) * kind.width, LINE
            if sources is not None:
                moved = addresses if kind.access.past_l1 else sources
                table[:, 7] = coalescing.looked_up_sectors(sources, moved, active)
        else:
            lines = coalescing.analyze(addresses, kind.width, active)
            table[:, 2], table[:, 3], table[:, 4] = lines.sectors, lines.fewest_sectors, lines.lines
            table[:, 5], table[:, -1] = lines.used_bytes, lines.aligned_bytes
            table[:, 7] = lines.sectors
        return table


def _normal(addresses: NDArray[np.int64], active: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Rows that are equal where requests are, but for a shift by whole lines."""
    first = np.where(active, addresses, np.iinfo(np.int64).max).min(axis=1, keepdims=True)
    return np.ascontiguousarray(np.where(active, addresses - first // LINE * LINE, -1))
