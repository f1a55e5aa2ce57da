"""The families by name, and which of them write a given problem for a given device.

``FAMILIES`` are tirgemm's own. Other packages add theirs by entry points of the group ``tirgemm.families``, a program
by ``register`` (docs/adding-a-family.md); ``families()`` has them all.
"""

from __future__ import annotations

from collections.abc import Iterable

from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import InvalidConfig, InvalidRequest, Unsupported
from tirgemm.families.base import Family, Program, Rule, rejected, require_rules, require_valid
from tirgemm.families.external import FamilyWarning, Registration, Registry
from tirgemm.families.mma import Mma
from tirgemm.families.simt import Simt
from tirgemm.families.wgmma import Wgmma
from tirgemm.families.wmma import Wmma
from tirgemm.families.x86 import X86
from tirgemm.gemm import REGIMES, Gemm

FAMILIES: dict[str, Family] = {family.name: family for family in (X86(), Simt(), Mma(), Wmma(), Wgmma())}

__all__ = [
    "FAMILIES",
    "Family",
    "FamilyWarning",
    "Program",
    "Registration",
    "Rule",
    "families",
    "family_named",
    "is_valid",
    "origin",
    "refusal",
    "register",
    "register_registered",
    "registered",
    "rejected",
    "require_valid",
    "supporting",
]

_registry = Registry(frozenset(FAMILIES))


def families() -> dict[str, Family]:
    """Every family by name: tirgemm's own, then those of other packages. Of the latter, the broken ones are left
    out."""
    return FAMILIES | {name: external.family for name, external in _registry.families().items()}


def family_named(name: str) -> Family:
    """The family of that name. Raises InvalidRequest."""
    if name in FAMILIES:
        return FAMILIES[name]
    known = families()
    if name not in known:
        raise InvalidRequest(
            _registry.broken.get(name) or f"family {name!r} is unknown; families are {', '.join(known)}"
        )
    return known[name]


def origin(name: str) -> str | None:
    """The distribution and its version that an external family is of; None for tirgemm's own."""
    external = None if name in FAMILIES else _registry.families().get(name)
    return external.origin if external is not None else None


def register(target: str) -> Family:
    """Make the family ``target``, "module:attribute", known to this process and to its build processes.

    For notebooks and tests; a package has an entry point. The module must be importable by others: not ``__main__``.
    Raises InvalidRequest.
    """
    return _registry.register(target)


def registered() -> tuple[Registration, ...]:
    """What this process has registered, for processes that build for it."""
    return tuple(_registry.registrations.values())


def register_registered(registrations: Iterable[Registration]) -> None:
    """Register what the process has registered that this one builds for. Raises InvalidRequest."""
    _registry.register_all(registrations)


def refusal(family: Family, gemm: Gemm, device: Device) -> str | None:
    """Why ``family`` does not write ``gemm`` for ``device``, or None.

    A family of another package that raises or whose default breaks its own rules does not write it, with a warning: a
    fault in it must not cost the others.
    """
    if family.name in FAMILIES:
        return family.supports(gemm, device)
    if gemm.invariant:
        return f"the order in which {family.name} adds over k is not known; invariant rows have one"
    try:
        reason = family.supports(gemm, device)
        for regime in REGIMES if reason is None else ():
            default = family.default(gemm, device, regime)
            family.space(gemm, device).check(default)
            require_rules(family, gemm, default, device)
            family.predict_us(gemm, default, device, regime)
        return reason
    except Exception as error:
        words = f"family {family.name!r} of {origin(family.name)} fails: {type(error).__name__}: {error}"
        _registry.leave_out(family.name, words)
        return words


def supporting(gemm: Gemm, device: Device) -> tuple[Family, ...]:
    """The families that write ``gemm`` for ``device``. Raises Unsupported with every family's reason if none does."""
    known = families()
    reasons = {name: refusal(family, gemm, device) for name, family in known.items()}
    able = tuple(family for name, family in known.items() if reasons[name] is None)
    if not able:
        why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise Unsupported(f"no family writes {gemm} for {device.name}: {why}")
    return able


def is_valid(gemm: Gemm, config: Config, device: Device) -> bool:
    """Whether a config's family writes a problem, and with that config."""
    try:
        family = family_named(config.family)
        if refusal(family, gemm, device) is None:
            require_valid(family, gemm, config, device)
            return True
    except (InvalidConfig, InvalidRequest):
        pass
    return False
