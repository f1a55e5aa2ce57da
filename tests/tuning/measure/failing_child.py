"""A child process whose first request fails while it holds memory; the next is answered with whether it still does."""

from __future__ import annotations

import weakref

from tirgemm.errors import DoesNotFit
from tirgemm.tuning.process.child_rpc import Channel, serve


class Buffer:
    """What stands for the memory."""


class Handler:
    """Answers both requests."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._held: weakref.ref[Buffer] | None = None

    def __call__(self, _request: object) -> bool:
        self._channel.alive()
        if self._held is not None:
            return self._held() is not None
        buffer = Buffer()
        self._held = weakref.ref(buffer)
        try:
            raise MemoryError
        except MemoryError as error:
            raise DoesNotFit("no memory") from error


if __name__ == "__main__":
    serve(lambda channel, _: Handler(channel))
