"""``ProposalFilter``: which points of the spaces may be proposed, by the families' rules and what is already known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from tirgemm.config import Config, Space
from tirgemm.device import Device
from tirgemm.errors import Cancelled
from tirgemm.families.base import Family, rejected
from tirgemm.gemm import Gemm
from tirgemm.tuning.search.space_trace import Point, annotation_names, config_at

EXAMPLES = 5
# Configs kept for points that come by again, before all are dropped: a search of days meets millions.
_KEPT = 20_000


class ProposalFilter:
    """Which points may be proposed, and why the others may not.

    ``pruned`` counts the distinct points that each rule rejected, ``examples`` keeps the first few with the reason.
    Once ``given_up()`` is true every question raises Cancelled: the search's own way out of the libraries that ask.
    """

    def __init__(
        self, gemm: Gemm, device: Device, families: Iterable[Family], given_up: Callable[[], bool] = lambda: False
    ) -> None:
        self.gemm = gemm
        self.device = device
        self.families: dict[str, Family] = {family.name: family for family in families}
        self.spaces: dict[str, Space] = {name: f.space(gemm, device) for name, f in self.families.items()}
        self.annotation_names = annotation_names(self.spaces.values())
        self.seen_points: set[Point] = set()
        self.pruned: Counter[str] = Counter()
        self.examples: dict[str, list[tuple[Config, str]]] = {}
        self.given_up = given_up
        self._seeds: set[Point] = set()
        self._valid: dict[Point, bool] = {}
        self._configs: dict[Point, Config] = {}

    def config(self, point: Point) -> Config:
        """The config of ``point``."""
        config = self._configs.get(point)
        if config is None:
            if len(self._configs) >= _KEPT:
                self._configs.clear()
            config = self._configs[point] = config_at(self.spaces[point.family], point)
        return config

    def valid(self, point: Point) -> bool:
        """Whether every rule passes; a rejection is counted once a point. Raises Cancelled."""
        if self.given_up():
            raise Cancelled(f"the search for {self.gemm} was given up")
        valid = self._valid.get(point)
        if valid is None:
            config = self.config(point)
            reason = rejected(self.families[point.family], self.gemm, config, self.device)
            valid = self._valid[point] = reason is None
            if reason is not None:
                self.pruned[reason[0]] += 1
                examples = self.examples.setdefault(reason[0], [])
                if len(examples) < EXAMPLES:
                    examples.append((config, reason[1]))
        return valid

    def readmit_once(self, seeds: Iterable[Point]) -> None:
        """Let each of these known points pass once: the search is about to start its population from them."""
        self._seeds = set(seeds)

    def admits(self, point: Point | None) -> bool:
        """Whether the search may go on with ``point``; None stands for a trace of another space."""
        if point is None or not self.valid(point):
            return False
        if point not in self.seen_points:
            return True
        if point in self._seeds:
            self._seeds.discard(point)
            return True
        return False
