"""Configs of one family as columns: an array for each knob."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tirgemm.config import Config

KnobColumn = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class ConfigColumns:
    """``knobs``: by name and in the space's order, an array of numbers or of words, all of one length."""

    family: str
    knobs: Mapping[str, KnobColumn]

    @classmethod
    def of(cls, configs: Sequence[Config]) -> ConfigColumns:
        """The columns of at least one config. ValueError where they are not of one family with the same knobs."""
        names = [name for name, _ in configs[0].knobs]
        rows = [dict(config.knobs) for config in configs]
        for config, row in zip(configs, rows, strict=True):
            if config.family != configs[0].family or len(row) != len(names) or not all(n in row for n in names):
                raise ValueError(f"{config} has other knobs than {configs[0]}: columns are of one family's configs")
        return cls(configs[0].family, {name: np.array([row[name] for row in rows]) for name in names})

    def __len__(self) -> int:
        return next((len(column) for column in self.knobs.values()), 0)

    def __getitem__(self, knob: str) -> KnobColumn:
        return self.knobs[knob]

    def take(self, rows: npt.NDArray[np.intp]) -> ConfigColumns:
        """Some of the rows, in the order of ``rows``."""
        return ConfigColumns(self.family, {name: column[rows] for name, column in self.knobs.items()})

    def with_(self, **changes: KnobColumn) -> ConfigColumns:
        """The same with some columns in place of others, in the same order; KeyError for one that is not there."""
        for name in changes:
            self.knobs[name]
        return ConfigColumns(self.family, {**self.knobs, **changes})

    def followed_by(self, others: ConfigColumns) -> ConfigColumns:
        """These rows, then those of ``others``."""
        joined = {name: np.concatenate([column, others[name]]) for name, column in self.knobs.items()}
        return ConfigColumns(self.family, joined)

    def config(self, row: int) -> Config:
        """The config of one row."""
        return Config(self.family, tuple((name, column[row].item()) for name, column in self.knobs.items()))

    def configs(self) -> list[Config]:
        """The configs of all rows."""
        rows = zip(*(column.tolist() for column in self.knobs.values()), strict=True)
        return [Config(self.family, tuple(zip(self.knobs, row, strict=True))) for row in rows]
