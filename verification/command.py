"""Command lines of measuring programs: the options that several have, and deliberate errors as one sentence."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tirgemm.errors import DeviceUnavailable, TirgemmError

_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "--device": {"default": "cuda:0"},
    "--limit": {"type": float, "help": "begin nothing after so many seconds"},
    "--resume": {"action": "store_true", "help": "keep what the file has"},
    "--fresh": {"action": "store_true", "help": "begin the rows of what runs anew, do not add to the file's"},
    "--processes": {"type": int, "help": "build processes (default: one a hardware thread)"},
    "--data": {"type": Path, "help": "the data folder; by default the user's"},
    "--lock-dir": {"type": Path, "help": "where the devices' locks lie"},
    "--commit": {"help": "the program's commit, for a copy without its history"},
    "--out": {"type": Path, "required": True, "help": "the file that is written"},
}


def parser(about: str | None, *options: str) -> argparse.ArgumentParser:
    """A parser that tells ``about``, with these of the options that several programs have."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in options:
        made.add_argument(name, **_OPTIONS[name])
    return made


def family_parser(about: str | None, seconds: float) -> argparse.ArgumentParser:
    """A parser of a tool about a family: that, the device, the time limit and the evidence file."""
    made = parser((about or "").partition("\n")[0], "--processes", "--commit", "--out")
    made.add_argument("family")
    made.add_argument("--device", default=None, help="cuda:0 or an architecture to build only (default: the first GPU)")
    made.add_argument("--seconds", type=float, default=seconds, help="begin nothing after so many")
    return made


def run(main: Callable[[], int]) -> int:
    """The exit code of ``main``; 2 with a sentence on stderr where it raises what tirgemm raises on purpose."""
    try:
        return main()
    except DeviceUnavailable as error:
        print(f"error: {error}; this program needs a GPU that is here", file=sys.stderr)
    except TirgemmError as error:
        print(f"error: {error}", file=sys.stderr)
    return 2
