"""The kernels whose counters are compared, as data, and their configs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import InvalidConfig
from tirgemm.families import family_named, require_valid
from tirgemm.families.simt import ladder
from tirgemm.gemm import Gemm

FILE = Path(__file__).with_name("cases.json")


@dataclass(frozen=True, slots=True)
class CountedCase:
    """A kernel by name: a problem, and a rung of ``simt``'s ladder or a family's default with ``knobs`` changed."""

    name: str
    gemm: Gemm
    family: str
    rung: str = ""
    knobs: tuple[tuple[str, int | str], ...] = ()

    def config(self, device: Device) -> Config:
        """The config on ``device``. Raises InvalidConfig, InvalidRequest or Unsupported by name."""
        if self.rung:
            return ladder.config(self.rung, self.gemm, device)
        family = family_named(self.family)
        refused = family.supports(self.gemm, device)
        if refused is not None:
            raise InvalidConfig(f"case {self.name}: {refused}")
        default = family.default(self.gemm, device, "sustained")
        known = dict(default.knobs)
        strange = [name for name, _ in self.knobs if name not in known]
        if strange:
            raise InvalidConfig(f"case {self.name}: {self.family} has no knob {strange[0]}; it has {', '.join(known)}")
        config = default.with_(**dict(self.knobs))
        require_valid(family, self.gemm, config, device)
        return config


@cache
def cases() -> tuple[CountedCase, ...]:
    """Every case of ``cases.json`` in its order, the cheap ones first; ``rungs``: rungs of the ladder, or all of
    them."""
    cases: list[CountedCase] = []
    for entry in json.loads(FILE.read_text()):
        gemm, family = Gemm.parse(entry["gemm"]), entry["family"]
        if "rungs" in entry:
            rungs = [rung.name for rung in ladder.RUNGS] if entry["rungs"] == "all" else entry["rungs"]
            cases += [CountedCase(f"{family}.{rung}{entry.get('suffix', '')}", gemm, family, rung) for rung in rungs]
        else:
            cases.append(CountedCase(entry["name"], gemm, family, knobs=tuple(entry.get("knobs", {}).items())))
    return tuple(cases)
