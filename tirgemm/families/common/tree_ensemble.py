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


# Rows are evaluated so many at a time: their outcomes stay in the processor's caches.
_ROWS = 256
_WORD = 64
_ONES = ~np.uint64(0)

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class TreeEnsemble:
    """Binary trees, each filled up to the deepest one's depth, so that all go down a level together.

    A condition holds where its feature is less than its threshold, or is missing and ``missing_holds``; by it a node
    goes to its left child. Outcomes are bits, those of 64 rows a word, so that an operation takes 64 rows through a
    level.

    ``features``: names of the matrix's columns, those that a tree asks for; ``feature``: the column of each condition;
    ``bound``: its threshold as an integer, behind that column (``_ordered``). ``levels``: the conditions of a level's
    nodes, of all trees each; the left children of a level stand before its right ones. ``leaves``: of each tree, in
    the same order, in units of 2**-40.
    """

    features: tuple[str, ...]
    feature: npt.NDArray[np.intp]
    bound: npt.NDArray[np.int64]
    missing_holds: npt.NDArray[np.bool_]
    levels: tuple[npt.NDArray[np.intp], ...]
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
        columns = columns.astype(np.intp)
        threshold = (keys & 0xFFFFFFFF).astype(np.uint32).view(np.float32)
        order, sorted_levels = np.zeros(1, np.intp), list[npt.NDArray[np.intp]]()
        for depth in range(len(levels)):
            level_nodes = nodes[:, 2**depth - 1 : 2 ** (depth + 1) - 1]
            sorted_levels.append(np.ascontiguousarray(level_nodes[:, order].T))
            order = np.concatenate((2 * order, 2 * order + 1))
        return cls(
            tuple(names[feature] for feature in used),
            columns,
            columns << 32 | _ordered(threshold),
            (keys >> 32 & 1).astype(bool),
            tuple(sorted_levels),
            np.ascontiguousarray(leaves[:, order]),
        )

    def predict(self, matrix: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """The sum of the trees' leaves for each row of ``matrix``, without a base score."""
        parts = [self._predicted(matrix[first : first + _ROWS]) for first in range(0, len(matrix), _ROWS)]
        return np.concatenate(parts) if parts else np.zeros(0)

    def _predicted(self, matrix: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        fails = self._failing(matrix)
        words, count = len(fails), len(self.leaves)
        leaf = np.zeros((words, count, _WORD), np.uint8 if len(self.levels) <= 8 else np.uint16)
        # The rows that come to each node of the level.
        reach = np.full((words, 1, count), _ONES)
        for depth, nodes in enumerate(self.levels):
            below = np.empty((words, 2 * len(nodes), count), np.uint64)
            left, right = below[:, : len(nodes)], below[:, len(nodes) :]
            np.bitwise_and(reach, fails.take(nodes, axis=1, mode="clip"), out=right)
            leaf |= _bits(np.bitwise_or.reduce(right, axis=1)).astype(leaf.dtype) << leaf.dtype.type(depth)
            if depth + 1 < len(self.levels):
                np.bitwise_xor(reach, right, out=left)
            reach = below
        of_tree = np.arange(count)[:, None] * self.leaves.shape[1]
        sums = self.leaves.ravel().take(leaf + of_tree, mode="clip").sum(axis=1)
        total: npt.NDArray[np.float64] = sums.ravel()[: len(matrix)] * _LEAF_UNIT
        return total

    def _failing(self, matrix: npt.NDArray[np.float32]) -> Words:
        """For which rows each condition does not hold: words of 64 rows, of each all conditions."""
        rows, columns = matrix.shape
        words, shift = -(-rows // _WORD), rows.bit_length()
        # A column's rows in the order of its values: a threshold is above the first so many of them.
        values = (np.arange(columns)[:, None] << 32 | _ordered(matrix.T)) << shift | np.arange(rows)
        values.sort(axis=1)
        row = values & ((1 << shift) - 1)
        bit = np.uint64(1) << (row % _WORD).astype(np.uint64)
        least = np.zeros((words, columns, rows + 1), np.uint64)
        for word in range(words):
            mine = np.where(row // _WORD == word, bit, np.uint64(0))
            np.bitwise_or.accumulate(mine, axis=1, out=least[word, :, 1:])
        above = np.searchsorted(values.ravel(), self.bound << shift) + self.feature
        holds = least.reshape(words, -1).take(above, axis=1)
        missing = np.isnan(matrix.T)
        if missing.any():
            padded = np.zeros((columns, words * _WORD), bool)
            padded[:, :rows] = missing
            packed = np.packbits(padded, axis=1, bitorder="little").view("<u8").astype(np.uint64).T
            holds |= np.where(self.missing_holds, packed.take(self.feature, axis=1), np.uint64(0))
        fails: Words = ~holds
        return fails


def _ordered(values: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """Integers of 32 bits in the order of fp32 ``values``; what is missing is above all of them."""
    bits = np.ascontiguousarray(values + np.float32(0)).view(np.uint32)  # there is no negative zero then
    flipped = np.where(bits >> 31, ~bits, bits | np.uint32(0x80000000))
    return np.where(np.isnan(values), np.uint32(0xFFFFFFFF), flipped).astype(np.int64)


def _bits(words: Words) -> npt.NDArray[np.uint8]:
    """The 64 bits of each word, the lowest first, in one more dimension."""
    octets = words.astype("<u8").view(np.uint8)
    return np.unpackbits(octets, axis=-1, bitorder="little").reshape(*words.shape, _WORD)


def _joined(trees: Sequence[Mapping[str, Any]], side: str, starts: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """The children of all trees' nodes as numbers among the nodes of all trees; negative where there is none."""
    each = [np.asarray(tree[side], np.intp) for tree in trees]
    return np.concatenate([np.where(own >= 0, own + start, own) for own, start in zip(each, starts, strict=True)])
