"""Gradient-boosted trees of an XGBoost model, evaluated with NumPy.

Choosing a default must work where XGBoost is not installed, and give the same config on every machine: features are
compared in fp32 as XGBoost does, and leaves are added as integers, whose sum is exact in any order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

# Leaves are kept as multiples of this: far finer than fp32 has them.
_LEAF_UNIT = 2.0**-40
_MAX_DEPTH = 12


@dataclass(frozen=True, slots=True)
class TreeEnsemble:
    """Binary trees, each filled up to the deepest one's depth, so that all go down a level together.

    ``features``: names of the matrix's columns, those that a tree asks for. A condition holds where its ``feature`` is
    less than its ``threshold``, or is missing and ``missing_holds``; by it a node goes to its left child. ``nodes``:
    the condition of each node of each tree, a level after the other; ``leaves``: of each tree, in units of 2**-40.
    """

    features: tuple[str, ...]
    feature: npt.NDArray[np.intp]
    threshold: npt.NDArray[np.float32]
    missing_holds: npt.NDArray[np.bool_]
    nodes: npt.NDArray[np.intp]
    leaves: npt.NDArray[np.int64]

    @classmethod
    def of_xgboost(cls, text: str) -> TreeEnsemble:
        """The trees of a regression model as ``Booster.save_raw("json")`` writes it. Raises ValueError."""
        try:
            learner = json.loads(text)["learner"]
            trees, names = learner["gradient_booster"]["model"]["trees"], learner["feature_names"]
            if learner["objective"]["name"] != "reg:squarederror" or not trees or not names:
                raise ValueError("it is no regression by trees on named features")
            return cls._of_trees(tuple(names), trees)
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"{text[:60]!r} is no model of XGBoost in JSON: {error!r}") from error

    @classmethod
    def _of_trees(cls, names: tuple[str, ...], trees: Sequence[Mapping[str, Any]]) -> TreeEnsemble:
        starts = np.cumsum([0, *(len(tree["left_children"]) for tree in trees[:-1])])
        left, right = (_joined(trees, side, starts) for side in ("left_children", "right_children"))
        value = np.concatenate([np.asarray(tree["split_conditions"], np.float32) for tree in trees])
        level, levels = starts[:, None], list[npt.NDArray[np.intp]]()
        while (left[level] >= 0).any():
            if len(levels) == _MAX_DEPTH:
                raise ValueError(f"its deepest tree has more than {_MAX_DEPTH} levels")
            levels.append(level)
            # Whichever way a leaf goes, it comes to itself.
            ways = [np.where(left[level] >= 0, side[level], level) for side in (left, right)]
            level = np.stack(ways, axis=2).reshape(len(trees), -1)
        leaves = np.rint(value[level].astype(np.float64) / _LEAF_UNIT).astype(np.int64)
        placed = np.concatenate(levels, axis=1) if levels else np.zeros((len(trees), 0), np.intp)
        inner = left[placed] >= 0
        at = placed[inner]
        feature, holds = (
            np.concatenate([np.asarray(tree[name], np.int64) for tree in trees])[at]
            for name in ("split_indices", "default_left")
        )
        # Equal conditions once: the feature, whether it holds where that is missing, the bits of the threshold.
        keys, places = np.unique(feature << 33 | holds << 32 | value[at].view(np.uint32), return_inverse=True)
        keys = keys if len(keys) else np.zeros(1, np.int64)
        nodes = np.zeros(placed.shape, np.intp)
        nodes[inner] = places
        used, columns = np.unique(keys >> 33, return_inverse=True)
        return cls(
            tuple(names[feature] for feature in used),
            columns.astype(np.intp),
            (keys & 0xFFFFFFFF).astype(np.uint32).view(np.float32),
            (keys >> 32 & 1).astype(bool),
            nodes,
            leaves,
        )

    @property
    def depth(self) -> int:
        return int(self.leaves.shape[1]).bit_length() - 1

    def predict(self, matrix: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """The sum of the trees' leaves for each row of ``matrix``, without a base score."""
        columns = matrix.T[self.feature]
        fails = ~(columns < self.threshold[:, None])
        if np.isnan(matrix).any():
            fails &= ~(np.isnan(columns) & self.missing_holds[:, None])
        outcome = fails.astype(np.int8).ravel()
        count, rows = len(self.nodes), len(matrix)
        row, conditions = np.arange(rows), self.nodes * rows
        place = np.zeros((count, rows), np.intp)
        first = np.arange(count)[:, None] * self.nodes.shape[1]
        table = conditions.ravel()
        for _ in range(self.depth):
            at = table.take(place + first)
            at += row
            place *= 2
            place += outcome.take(at)
            place += 1
        place += np.arange(count)[:, None] * self.leaves.shape[1] - self.nodes.shape[1]
        total: npt.NDArray[np.float64] = self.leaves.ravel().take(place).sum(axis=0) * _LEAF_UNIT
        return total


def _joined(trees: Sequence[Mapping[str, Any]], side: str, starts: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """The children of all trees' nodes as numbers among the nodes of all trees; negative where there is none."""
    each = [np.asarray(tree[side], np.intp) for tree in trees]
    return np.concatenate([np.where(own >= 0, own + start, own) for own, start in zip(each, starts, strict=True)])
