"""Command lines of measuring programs: deliberate errors end them with one sentence."""

from __future__ import annotations

import sys
from collections.abc import Callable

from tirgemm.errors import DeviceUnavailable, TirgemmError


def run(main: Callable[[], int]) -> int:
    """The exit code of ``main``; 2 with a sentence on stderr where it raises what tirgemm raises on purpose."""
    try:
        return main()
    except DeviceUnavailable as error:
        print(f"error: {error}; this program needs a GPU that is here", file=sys.stderr)
    except TirgemmError as error:
        print(f"error: {error}", file=sys.stderr)
    return 2
