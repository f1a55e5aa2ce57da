"""Tuning records that come with the package: for each model of device that was measured a records file of problems, of
which ranking models learn, and one of the sizes of kernel sets, of which they do not."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SUFFIX = ".jsonl.gz"
_SETS = ".sets"


def problems_file(model: str) -> Path:
    """Where the records of a device model lie, named as its folder of results is: ``nvidia-h200``."""
    return FOLDER / f"{model}{SUFFIX}"


def kernel_sets_file(model: str) -> Path:
    """Where the records of its kernel sets lie: of the sizes at which ranges of m were searched."""
    return FOLDER / f"{model}{_SETS}{SUFFIX}"


def holds_kernel_sets(path: Path) -> bool:
    """Whether a records file is one of kernel sets."""
    return path.name.endswith(f"{_SETS}{SUFFIX}")


def device_model(path: Path) -> str:
    """The device model that a records file is of."""
    return path.name.removesuffix(SUFFIX).removesuffix(_SETS)
