"""``Closing``: base class of context managers that close themselves."""

from __future__ import annotations

from abc import abstractmethod
from types import TracebackType
from typing import Self


class Closing:
    """A context manager that closes itself. It is no ABC, since those cannot be bases of ``callable_class``."""

    @abstractmethod
    def close(self) -> None:
        """Give up what it holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
