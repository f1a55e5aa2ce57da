"""Families of other packages: entry points of the group ``tirgemm.families``, and those that a program registers.

An entry point ``NAME = "module:attribute"`` names a Family or a class that makes one without arguments; the family's
``name`` is NAME. A registered family is named by such a target too: build processes are told the target and import it
themselves. A family that cannot be used is left out with a FamilyWarning that names its distribution.
"""

from __future__ import annotations

import importlib
import re
import sys
import threading
import warnings
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from tirgemm.errors import InvalidRequest
from tirgemm.families.base import Family

GROUP = "tirgemm.families"
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_CONTRACT = ("supports", "space", "default", "predict_us", "instantiate")


class FamilyWarning(UserWarning):
    """A family of another package cannot be used; the text says why and names its distribution."""


@dataclass(frozen=True)
class Registration:
    """A registered family: its ``target`` ("module:attribute") and the folder that its module was found in."""

    target: str
    folder: str


@dataclass(frozen=True)
class External:
    """A family of another package, its target ("module:attribute"), and where it comes from: ``my-families 0.1``."""

    family: Family
    target: str
    origin: str


@dataclass
class Registry:
    """The external families of a process. Entry points are looked up once, at the first question."""

    builtin: frozenset[str]
    registrations: dict[str, Registration] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    _known: dict[str, External] = field(default_factory=dict)
    _searched: bool = False
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def families(self) -> dict[str, External]:
        """By name: those of entry points in the order of their names, then those that were registered."""
        with self._lock:
            if not self._searched:
                self._searched = True
                self._search()
            return dict(self._known)

    def register(self, target: str, folder: str = "") -> Family:
        """Import and keep the family ``target``; ``folder`` is searched for its module last. Raises InvalidRequest."""
        with self._lock:
            self.families()
            if folder and folder not in sys.path:
                sys.path.append(folder)
            try:
                made = _checked(_loaded(target))
            except Exception as error:
                raise InvalidRequest(f"family {target!r} cannot be registered: {_words(error)}") from error
            known = self._known.get(made.name)
            if known is not None and known.target == target:
                return known.family
            if known is not None or made.name in self.builtin:
                raise InvalidRequest(f"family {target!r} cannot be registered: {self._taken(made.name)}; rename it")
            self.registrations[made.name] = Registration(target, folder or _folder(target.partition(":")[0]))
            self._known[made.name] = External(made, target, f"registered as {target}")
            return made

    def register_all(self, registrations: Iterable[Registration]) -> None:
        """Register what another process has registered. Raises InvalidRequest."""
        for registration in registrations:
            if registration not in self.registrations.values():
                self.register(registration.target, registration.folder)

    def leave_out(self, name: str, words: str) -> None:
        """Warn that a family cannot be used, the first time in these words."""
        if self.broken.get(name) != words:
            self.broken[name] = words
            # Of no line of code: what a person can change is the package.
            warnings.warn_explicit(words, FamilyWarning, GROUP, 1)

    def _search(self) -> None:
        points: dict[str, list[EntryPoint]] = {}
        for point in entry_points(group=GROUP):
            points.setdefault(point.name, []).append(point)
        for name, points_of_name in sorted(points.items()):
            origins = [_origin(point) for point in points_of_name]
            try:
                if name in self.builtin:
                    raise InvalidRequest(f"{self._taken(name)}; rename it")
                if len(points_of_name) > 1:
                    raise InvalidRequest(
                        f"{len(points_of_name)} distributions have a family of this name; uninstall all but one"
                    )
                self._known[name] = External(
                    _checked(points_of_name[0].load(), name), points_of_name[0].value, origins[0]
                )
            except Exception as error:  # whatever a module of somebody else raises
                self.leave_out(name, f"family {name!r} of {' and of '.join(origins)} is left out: {_words(error)}")

    def _taken(self, name: str) -> str:
        return f"{name} is a family of tirgemm itself" if name in self.builtin else f"there is a family {name} already"


def _loaded(target: str) -> Any:
    module, colon, attribute = target.partition(":")
    if not colon or not module or not attribute:
        raise InvalidRequest('it is named "module:attribute"')
    if module == "__main__":
        raise InvalidRequest("build processes cannot import __main__; put the family into a module of its own")
    value: Any = importlib.import_module(module)
    for part in attribute.split("."):
        value = getattr(value, part)
    return value


def _checked(loaded: Any, name: str | None = None) -> Family:
    """``loaded``, or what the class makes, as a Family of that name. Raises InvalidRequest for what is none."""
    made = loaded() if isinstance(loaded, type) else loaded
    own = getattr(made, "name", None)
    lacks = [method for method in _CONTRACT if not callable(getattr(made, method, None))]
    lacks += [] if isinstance(getattr(made, "rules", None), Collection) else ["rules"]
    if lacks:
        raise InvalidRequest(f"{type(made).__name__} lacks {', '.join(lacks)} of the contract tirgemm.families.Family")
    if not isinstance(own, str) or not _NAME.fullmatch(own):
        raise InvalidRequest(f"its name is {own!r}; a name has lower-case letters, digits and underscores")
    if name is not None and own != name:
        raise InvalidRequest(f"its name is {own!r}, that of its entry point {name!r}; they must be the same")
    family: Family = made
    return family


def _folder(module: str) -> str:
    """The folder that a module's top-level package or file lies in."""
    top = importlib.import_module(module.partition(".")[0])
    places = list(getattr(top, "__path__", ())) or [getattr(top, "__file__", None) or ""]
    return str(Path(places[0]).resolve().parent) if places[0] else ""


def _origin(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, InvalidRequest) else f"{type(error).__name__}: {error}"
