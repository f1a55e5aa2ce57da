"""Model files: the problems of a model or deployment in TOML, each under a name of its own (an alias)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tirgemm.artifact.regular_file import read_regular
from tirgemm.errors import InvalidGemm, InvalidRequest, TirgemmError
from tirgemm.gemm import Gemm, Regime, regime_named

MAX_FILE_BYTES = 2**20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}")
_MEMBERS = ("device", "regime", "kernels")


@dataclass(frozen=True, slots=True)
class ModelFile:
    """What a model file lists: the problems by their names, the device (None: this machine's) and the regime."""

    kernels: Mapping[str, Gemm]
    device: str | None = None
    regime: Regime = "sustained"

    @classmethod
    def read(cls, path: Path) -> ModelFile:
        """Read ``path``. Raises InvalidRequest with the member that cannot be, and OSError."""
        data = read_regular(path, MAX_FILE_BYTES)
        if len(data) > MAX_FILE_BYTES:
            raise InvalidRequest(f"{path} is larger than a model file may be, which is {MAX_FILE_BYTES} bytes")
        try:
            document = tomllib.loads(data.decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"{path} is not TOML: {error}") from error
        unknown = document.keys() - set(_MEMBERS)
        if unknown:
            raise InvalidRequest(f"{path}: {min(unknown)!r:.80} is no member; there are {', '.join(_MEMBERS)}")
        listed = document.get("kernels")
        if not isinstance(listed, dict) or not listed:
            raise InvalidRequest(f'{path} lists no problem; it has a table [kernels] of lines such as qkv = "7x5x3"')
        device = document.get("device")
        if device is not None and not isinstance(device, str):
            raise InvalidRequest(f"{path}: device is {device!r:.80}; it must be a text")
        kernels = {name: _gemm(path, name, value) for name, value in listed.items()}
        return cls(kernels, device, regime_named(document.get("regime", "sustained")))


def _gemm(path: Path, name: str, value: Any) -> Gemm:
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{path}: the name {name!r:.120} is refused; a name is up to 100 letters, digits, dots, dashes, _ and /"
        )
    if problem_text(name) is not None:
        raise InvalidRequest(f"{path}: the name {name!r:.120} is refused; a lock file would take it for a problem")
    try:
        return Gemm.from_json(value)
    except InvalidGemm as error:
        raise InvalidGemm(f"{path}: {name}: {error}") from error


def problem_text(text: str) -> str | None:
    """The text form of a problem in any spelling; None for what is none."""
    try:
        return str(Gemm.parse(text))
    except TirgemmError:
        return None
