"""Ring buffers of time stamps in global memory: where a kernel's warpgroups record what they do, as words of 32 bits.

Each warpgroup of each block has a track: a header, then ``slots`` spans of four words: the low words of the SM's clock
at its beginning and end, the number of its kind, and its own number. Span ``i`` lies in slot ``i % slots``, so that of
more the last ones are kept. A span of kind ``tile`` (number 0) is written behind the spans inside it, whose tile it
names; what is kept of a tile is never without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tirgemm.errors import InvalidRequest
from tirgemm.launch import TensorArg

TIMELINE = "timeline"
"""The name of the tensor, the last of the launch's, that holds the tracks."""
TILE = "tile"
SPAN_WORDS = 4
# Words of a header: how many spans were recorded, and the SM's number; then, as the warpgroup begins and as it ends,
# the SM's clock and the GPU's global timer in ns, two words each, the low one first.
RECORDED, SM, BEGUN, ENDED = 0, 1, 2, 6
HEADER_WORDS = 12
_MOST_WORDS = 2**29


@dataclass(frozen=True, slots=True)
class RingBuffer:
    """Layout of the tracks of at most ``blocks`` blocks.

    ``roles``: what each warpgroup of a block is, in order; ``kinds``: what a span can be, ``tile`` first, and what that
    means. Raises
    InvalidRequest for slots that are no power of two, and for more than 2 GiB.
    """

    blocks: int
    roles: tuple[str, ...]
    kinds: Mapping[str, str]
    slots: int

    def __post_init__(self) -> None:
        if self.slots < 2 or self.slots & (self.slots - 1):
            raise InvalidRequest(f"a ring buffer has a power of two of slots, at least 2, not {self.slots}")
        if self.words > _MOST_WORDS:
            raise InvalidRequest(
                f"{self.blocks} blocks of {len(self.roles)} warpgroups with {self.slots} slots take {4 * self.words} "
                f"bytes; the limit is {4 * _MOST_WORDS}"
            )

    @property
    def track_words(self) -> int:
        return HEADER_WORDS + SPAN_WORDS * self.slots

    @property
    def words(self) -> int:
        return self.blocks * len(self.roles) * self.track_words

    @property
    def tensor(self) -> TensorArg:
        """The tracks as a tensor of the call: of 32-bit words, which no kernel computes with."""
        return TensorArg(TIMELINE, "f32", (self.words,), (1,), 4 * SPAN_WORDS, output=True)
