"""The command-line options that every verification tool has."""

from __future__ import annotations

import argparse
from pathlib import Path


def parser(about: str, seconds: float) -> argparse.ArgumentParser:
    """A parser with the family, the device, the time limit and the evidence file; ``about``: the tool's docstring."""
    made = argparse.ArgumentParser(description=about.splitlines()[0])
    made.add_argument("family")
    made.add_argument("--device", default=None, help="cuda:0 or an architecture to build only (default: the first GPU)")
    made.add_argument("--seconds", type=float, default=seconds, help="begin nothing after so many")
    made.add_argument("--processes", type=int, default=None, help="build processes (default: one a hardware thread)")
    made.add_argument("--commit", default=None, help="the program's commit, for a copy without its history")
    made.add_argument("--out", type=Path, required=True, help="the evidence file")
    return made
