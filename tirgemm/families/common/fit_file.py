"""Constants of a family's analytic model: read from the file ``estimate.json`` beside it.

By regime the file holds the ``constants`` and their ``provenance``: what they were fitted to, on which device, by which
command, when, and the commit that they came with.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TypeVar

FILE = "estimate.json"
T = TypeVar("T")


def fitted_constants(package: str, kind: type[T]) -> dict[str, T]:
    """By regime, the constants of the model in ``package`` as the dataclass ``kind``. TypeError where fields differ."""
    regimes = json.loads(files(package).joinpath(FILE).read_text())
    return {regime: kind(**fit["constants"]) for regime, fit in regimes.items()}
