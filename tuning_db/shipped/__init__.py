"""Tuning records that come with the package: one records file for each model of device that was measured."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SUFFIX = ".jsonl.gz"


def file_of(model: str) -> Path:
    """Where the records of a device model lie, named as its folder of results is: ``nvidia-h200``."""
    return FOLDER / f"{model}{SUFFIX}"
