"""Bank collisions of a request: two lanes that access different words of one bank."""

from __future__ import annotations

from dataclasses import dataclass

from tirgemm.analysis.memory_traffic import Example
from tirgemm.hardware import BANK_BYTES, BANKS


@dataclass(frozen=True, slots=True)
class BankCollision:
    """``lanes``, their byte ``addresses`` in shared memory, the ``bank`` of which they want the two ``words`` (byte
    addresses / 4), in a phase of ``wavefronts`` passes where ``fewest`` would do."""

    lanes: tuple[int, int]
    addresses: tuple[int, int]
    words: tuple[int, int]
    bank: int
    wavefronts: int
    fewest: int

    def __str__(self) -> str:
        (one, other), (first, second) = self.lanes, self.addresses
        return (
            f"lane {one} at byte {first} and lane {other} at byte {second} want words {self.words[0]} and "
            f"{self.words[1]} of bank {self.bank}: {self.wavefronts} wavefronts for {self.fewest}"
        )


def worst_collision(example: Example) -> BankCollision | None:
    """The collision in the phase of ``example`` that loses most; None where no phase has one."""
    worst: BankCollision | None = None
    for lanes, banks, wavefronts in example.phases:
        wanted: dict[int, dict[int, int]] = {}
        for lane, touched in zip(lanes, banks, strict=True):
            address = example.addresses[lane]
            assert address is not None
            for place, bank in enumerate(touched):
                wanted.setdefault(bank, {}).setdefault(address // BANK_BYTES + place, lane)
        fewest = -(-sum(map(len, wanted.values())) // BANKS)
        if wavefronts <= fewest or (worst and wavefronts - fewest <= worst.wavefronts - worst.fewest):
            continue
        bank = max(wanted, key=lambda each: (len(wanted[each]), -each))
        words = sorted(wanted[bank], key=lambda word: (wanted[bank][word], word))
        if len(words) == 1:
            continue  # a copy through L1 that loses by what it reads
        first = words[0]
        # Two lanes rather than two words of one.
        second = next((w for w in words if wanted[bank][w] != wanted[bank][first]), words[1])
        pair = wanted[bank][first], wanted[bank][second]
        at = example.addresses[pair[0]], example.addresses[pair[1]]
        assert at[0] is not None
        assert at[1] is not None
        worst = BankCollision(pair, (at[0], at[1]), (first, second), bank, wavefronts, fewest)
    return worst
