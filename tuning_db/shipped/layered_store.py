"""``LayeredStore``: the user's own database on top of the shipped records, which are only read."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from sqlalchemy import Connection

from tirgemm.device import Device
from tirgemm.gemm import Gemm, Regime
from tirgemm.tuning.records import Candidate, CandidateKey
from tirgemm.tuning.records.comparable_times import fastest
from tirgemm.tuning.records.offer import Offer, measured_under, raced_times, same_device, same_environment
from tirgemm.tuning.search.similar_problems import nearest
from tirgemm.tuning_db import Database
from tirgemm.tuning_db.nearest_candidates import NEAREST
from tirgemm.tuning_db.shipped.records import ShippedFile, ShippedRecords
from tirgemm.tuning_db.store import SqlStore, write_candidate

# What the database says of a candidate that was taken over from the shipped records.
ORIGIN = "shipped"


class LayeredStore(SqlStore):
    """A ``Store`` whose candidates are the database's own and, beneath them, the shipped ones of the same device class,
    driver and TVM; where both have a config its own is the one. What is written goes into the database.

    Shipped records of another driver or TVM are no candidates here: ``offer`` has them; those of other devices only
    where ``other_devices`` are asked for.
    """

    def __init__(self, db: Database, shipped: ShippedRecords | None = None) -> None:
        super().__init__(db)
        self.shipped = shipped or ShippedRecords()

    def candidates(self, gemm: Gemm, device_key: str, regime: Regime) -> list[Candidate]:
        own = super().candidates(gemm, device_key, regime)
        beneath = self._beneath(gemm, device_key, regime)
        return own + without(beneath, own)

    def candidate(self, key: CandidateKey) -> Candidate | None:
        return super().candidate(key) or self._shipped_candidate(key)

    def history(
        self, device_key: str, regime: Regime, limit: int = 10_000, near: Gemm | None = None
    ) -> list[Candidate]:
        own = super().history(device_key, regime, limit, near)
        most = limit - len(own) if near is None else min(limit - len(own), NEAREST)
        beneath: list[Candidate] = []
        for file in self.shipped.files_of(device_key):
            # Of kernel sets last: they have few configs of each of many sizes that lie close together.
            if len(beneath) < most:
                beneath += without(_of_file(file, device_key, regime, near, most - len(beneath)), [*own, *beneath])
        return own + beneath

    def offer(self, gemm: Gemm, device: Device, regime: Regime, *, other_devices: bool = False) -> Offer | None:
        return shipped_offer(self.shipped, gemm, device, regime, other_devices=other_devices)

    def _adopt(self, connection: Connection, key: CandidateKey) -> int | None:
        """Take a shipped candidate over into the database, because something is to be added to it."""
        candidate = self._shipped_candidate(key)
        return None if candidate is None else write_candidate(self.db, connection, candidate, ORIGIN)

    def _shipped_candidate(self, key: CandidateKey) -> Candidate | None:
        beneath = self._beneath(key.gemm, key.device_key, key.regime)
        return next((candidate for candidate in beneath if candidate.key == key), None)

    def _beneath(self, gemm: Gemm, device_key: str, regime: Regime) -> tuple[Candidate, ...]:
        """The shipped candidates that count as measured here."""
        files = self.shipped.files_of(device_key)
        file = next((each for each in files if each.candidates(device_key, str(gemm), regime)), None)
        here = None if file is None else self.device(device_key)
        return () if file is None or here is None else _same(file, here, str(gemm), regime)


def without(candidates: Iterable[Candidate], known: Iterable[Candidate]) -> list[Candidate]:
    """Those of ``candidates`` whose keys ``known`` has not."""
    keys = {candidate.key for candidate in known}
    gemms = {key.gemm for key in keys}  # of any other problem no key need be made, which takes a hash of the config
    return [candidate for candidate in candidates if candidate.gemm not in gemms or candidate.key not in keys]


@lru_cache(maxsize=64)
def shipped_offer(
    shipped: ShippedRecords, gemm: Gemm, device: Device, regime: Regime, *, other_devices: bool = False
) -> Offer | None:
    """What was shipped of one problem for this device, or where ``other_devices`` are asked for, for one of its
    architecture; None where nothing was."""
    for theirs, file in shipped.files_of_similar_devices(device):
        own = theirs.key == device.key and any(same_device(each, device) for each in file.devices)
        if not own and not other_devices:
            continue
        offered = file.candidates(theirs.key, str(gemm), regime)
        same = _same(file, device, str(gemm), regime)
        if same:
            return Offer(device, same, same=True)
        if offered:
            raced = raced_times(offered, _environments(file, device))
            there = _measured_on(file, theirs, offered)
            return Offer(there, offered, same=False, other_device=not own, raced=raced)
    return None


def _same(file: ShippedFile, here: Device, gemm: str, regime: Regime) -> tuple[Candidate, ...]:
    """Those candidates of a problem that were measured on a device such as ``here`` in its environment, if the fastest
    is one of them; else none."""
    same = _environments(file, here)
    if not same:
        return ()
    offered = file.candidates(here.key, gemm, regime)
    candidates, best = measured_under(offered, same), fastest(offered)
    return candidates if best and any(candidate.config == best[0] for candidate in candidates) else ()


def _environments(file: ShippedFile, here: Device) -> frozenset[str]:
    """The fingerprints of devices such as ``here`` in its environment."""
    return frozenset(device.fingerprint for device in file.devices if same_environment(device, here))


def _measured_on(file: ShippedFile, theirs: Device, offered: tuple[Candidate, ...]) -> Device:
    """``theirs`` in the environment that the fastest of what was measured on it was measured in: empty where its
    samples do not say, or differ."""
    best = fastest(offered)[:1]
    told = {s.conditions.get("fingerprint") for c in offered if c.config in best for s in c.sample_sets}
    known = {device.fingerprint: device for device in file.devices if device.key == theirs.key}
    (fingerprint,) = told if len(told) == 1 else (None,)
    return known.get(str(fingerprint), theirs.with_(environment=()))


def _of_file(file: ShippedFile, device_key: str, regime: Regime, near: Gemm | None, most: int) -> list[Candidate]:
    """At most ``most`` measured candidates, those of the problems nearest to ``near`` first."""
    problems = {Gemm.parse(text): text for key, text, of in file.places if (key, of) == (device_key, regime)}
    order = list(problems) if near is None else [*([near] if near in problems else []), *nearest(near, problems)]
    candidates: list[Candidate] = []
    for gemm in order:
        if len(candidates) >= most:
            break
        candidates += [c for c in file.candidates(device_key, problems[gemm], regime) if c.search_us is not None]
    return candidates[:most]
