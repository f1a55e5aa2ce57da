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
        depth = max(_depth(tree, 0) for tree in trees)
        if depth > _MAX_DEPTH:
            raise ValueError(f"its deepest tree has {depth} levels; the limit is {_MAX_DEPTH}")
        conditions: dict[tuple[int, float, bool], int] = {}
        nodes = np.zeros((len(trees), 2**depth - 1), np.intp)
        leaves = np.zeros((len(trees), 2**depth), np.int64)
        for number, tree in enumerate(trees):
            level = [0]
            for height in range(depth):
                below = []
                for place, node in enumerate(level):
                    left, right = tree["left_children"][node], tree["right_children"][node]
                    if left < 0:
                        below += [node, node]  # whichever way it goes
                        continue
                    at = (
                        int(tree["split_indices"][node]),
                        float(np.float32(tree["split_conditions"][node])),
                        bool(tree["default_left"][node]),
                    )
                    nodes[number, 2**height - 1 + place] = conditions.setdefault(at, len(conditions))
                    below += [left, right]
                level = below
            leaves[number] = [round(np.float32(tree["split_conditions"][node]).item() / _LEAF_UNIT) for node in level]
        keys = list(conditions) or [(0, 0.0, True)]
        used = sorted({feature for feature, _, _ in keys})
        return cls(
            tuple(names[feature] for feature in used),
            np.array([used.index(feature) for feature, _, _ in keys], np.intp),
            np.array([threshold for _, threshold, _ in keys], np.float32),
            np.array([holds for _, _, holds in keys]),
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


def _depth(tree: Mapping[str, Any], node: int) -> int:
    left, right = tree["left_children"][node], tree["right_children"][node]
    return 0 if left < 0 else 1 + max(_depth(tree, left), _depth(tree, right))
