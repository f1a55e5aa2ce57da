"""The families by name, and which of them write a given problem for a given device."""

from __future__ import annotations

from tirgemm.device import Device
from tirgemm.errors import InvalidRequest, Unsupported
from tirgemm.families.base import Family, Program, Rule, rejected, require_valid
from tirgemm.families.mma import Mma
from tirgemm.families.simt import Simt
from tirgemm.families.wgmma import Wgmma
from tirgemm.families.wmma import Wmma
from tirgemm.families.x86 import X86
from tirgemm.gemm import Gemm

FAMILIES: dict[str, Family] = {family.name: family for family in (X86(), Simt(), Mma(), Wmma(), Wgmma())}

__all__ = [
    "FAMILIES", "Family", "Program", "Rule", "family_named", "rejected", "require_valid", "supporting",
]  # fmt: skip


def family_named(name: str) -> Family:
    """The family of that name. Raises InvalidRequest."""
    if name not in FAMILIES:
        raise InvalidRequest(f"family {name!r} is unknown; families are {', '.join(FAMILIES)}")
    return FAMILIES[name]


def supporting(gemm: Gemm, device: Device) -> tuple[Family, ...]:
    """The families that write ``gemm`` for ``device``. Raises Unsupported with every family's reason if none does."""
    reasons = {family.name: family.supports(gemm, device) for family in FAMILIES.values()}
    found = tuple(family for family in FAMILIES.values() if reasons[family.name] is None)
    if not found:
        why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise Unsupported(f"no family writes {gemm} for {device.name}: {why}")
    return found
