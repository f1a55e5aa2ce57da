"""The command-line options that every verification tool has."""

from __future__ import annotations

import argparse

from verification import command


def parser(about: str, seconds: float) -> argparse.ArgumentParser:
    """A parser with the family, the device, the time limit and the evidence file; ``about``: the tool's docstring."""
    made = command.parser(about.splitlines()[0], "--processes", "--commit", "--out")
    made.add_argument("family")
    made.add_argument("--device", default=None, help="cuda:0 or an architecture to build only (default: the first GPU)")
    made.add_argument("--seconds", type=float, default=seconds, help="begin nothing after so many")
    return made
