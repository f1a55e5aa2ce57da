"""Gradient-boosted trees of an XGBoost model, evaluated with NumPy.

Choosing a default must work where XGBoost is not installed, and give the same config on every machine: features are
compared in fp32 as XGBoost does, and leaves are added as integers, whose sum is exact in any order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

# Leaves are kept as multiples of this: far finer than fp32 has them.
_LEAF_UNIT = 2.0**-40
_MAX_DEPTH = 12


# Rows are evaluated so many at a time: their outcomes stay in the processor's caches.
_ROWS = 256
# Up to so many go down by themselves, in less time than a word of them takes.
_FEW_ROWS = 16
_WORD = 64
_ONES = ~np.uint64(0)
_BITS = np.uint64(1) << np.arange(_WORD, dtype=np.uint64)
# How far apart and where the bits are that change places in a transposition of eight times eight.
_TRANSPOSITIONS = tuple(
    (np.uint64(shift), np.uint64(mask))
    for shift, mask in ((7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0x00000000F0F0F0F0))
)

Words = npt.NDArray[np.uint64]


class TreeLevel(NamedTuple):
    """The conditions at one depth, those of a tree side by side; a tree without any has one whose outcome is of no
    account, as all leaves below it are the same.

    ``conditions``: which one each is; ``sources``: the place of its node among the left children and behind them the
    right ones of the level above; ``firsts``: of each tree, the place of its first.
    """

    conditions: npt.NDArray[np.intp]
    sources: npt.NDArray[np.intp]
    firsts: npt.NDArray[np.intp]

    @classmethod
    def of(cls, nodes: npt.NDArray[np.intp], inner: npt.NDArray[np.bool_], above: npt.NDArray[np.bool_]) -> TreeLevel:
        """Of the conditions ``nodes`` of a level that is filled up, by tree, of which those with ``inner`` are a
        tree's; ``above``: which of the level above were kept."""
        kept = cls.kept(inner)
        trees, places = np.nonzero(kept)
        number = np.cumsum(above).reshape(above.shape) - 1
        # The places of a level follow from those of the one above: left child, right child.
        sources = number[trees, places // 2] + places % 2 * int(above.sum())
        return cls(nodes[kept], np.where(inner[kept], sources, 0), np.flatnonzero(np.diff(trees, prepend=-1)))

    @staticmethod
    def kept(inner: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Which conditions of a filled level are kept: a tree's own, or its first place where it has none."""
        kept = inner.copy()
        kept[:, 0] |= ~inner.any(axis=1)
        return kept


@dataclass(frozen=True, slots=True)
class TreeEnsemble:
    """Binary trees that go down a level together.

    A condition holds where its feature is less than its threshold, or is missing and ``missing_holds``; by it a node
    goes to its left child. Outcomes are bits, those of 64 rows a word, so that an operation takes 64 rows through a
    level.

    ``features``: names of the matrix's columns, those that a tree asks for; ``feature``: the column of each condition;
    ``bound``: its threshold as an integer (``_ordered``). ``children``: for each level but the last the places in the
    next one of its left children, and behind them of its right ones. ``leaves``: of each tree, as if all were
    as deep as the deepest, in units of 2**-40; their numbers have the outcomes as bits, the first level's lowest.
    """

    features: tuple[str, ...]
    feature: npt.NDArray[np.intp]
    bound: npt.NDArray[np.int64]
    missing_holds: npt.NDArray[np.bool_]
    levels: tuple[TreeLevel, ...]
    children: tuple[npt.NDArray[np.intp], ...]
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
        order, kept_levels = np.zeros(1, np.intp), list[TreeLevel]()
        above = np.ones((len(trees), 1), bool)
        for depth in range(len(levels)):
            here = slice(2**depth - 1, 2 ** (depth + 1) - 1)
            kept_levels.append(TreeLevel.of(nodes[:, here], inner[:, here], above))
            above = TreeLevel.kept(inner[:, here])
            order = np.concatenate((2 * order, 2 * order + 1))
        return cls(
            tuple(names[feature] for feature in used),
            columns,
            _ordered(threshold),
            (keys >> 32 & 1).astype(bool),
            tuple(kept_levels),
            tuple(_children(level, below) for level, below in pairwise(kept_levels)),
            np.ascontiguousarray(leaves[:, order]),
        )

    def predict(self, matrix: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """The sum of the trees' leaves for each row of ``matrix``, without a base score."""
        if 0 < len(matrix) <= _FEW_ROWS:
            return self._descended(matrix)
        parts = [self._predicted(matrix[first : first + _ROWS]) for first in range(0, len(matrix), _ROWS)]
        return np.concatenate(parts) if parts else np.zeros(0)

    def _predicted(self, matrix: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        fails = self._failing(matrix)
        words, count = len(fails), len(self.leaves)
        outcomes = np.zeros((words, count, -(-len(self.levels) // 8), 8), np.uint64)
        # The rows that come to each of the level's nodes.
        reach = np.full((words, count), _ONES)
        for depth, level in enumerate(self.levels):
            right = reach & fails.take(level.conditions, axis=1, mode="clip")
            outcomes[:, :, depth // 8, depth % 8] = np.bitwise_or.reduceat(right, level.firsts, axis=1)
            if depth + 1 < len(self.levels):
                below = np.concatenate((reach ^ right, right), axis=1)
                reach = below.take(self.levels[depth + 1].sources, axis=1, mode="clip")
        leaf = np.arange(0, self.leaves.size, self.leaves.shape[1])[:, None]
        for group in range(outcomes.shape[2]):
            leaf = leaf + (_numbers(outcomes[:, :, group]).astype(np.intp) << 8 * group)
        sums = np.broadcast_to(self.leaves.ravel().take(leaf, mode="clip"), (words, count, _WORD)).sum(axis=1)
        total: npt.NDArray[np.float64] = sums.ravel()[: len(matrix)] * _LEAF_UNIT
        return total

    def _descended(self, matrix: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """``predict`` of few rows, each of which goes down from node to node."""
        missing = np.isnan(matrix)
        values = _ordered(matrix)
        # What is missing is behind all bounds, and a second time before them, for conditions that hold then.
        ordered = np.concatenate((values, np.where(missing, -1, values)), axis=1)
        feature = self.feature + self.missing_holds * len(self.features)
        row = np.arange(len(matrix))[:, None] * ordered.shape[1]
        place = np.arange(len(self.leaves))
        leaf = np.broadcast_to(place * self.leaves.shape[1], (len(matrix), len(place)))
        for depth, level in enumerate(self.levels):
            condition = level.conditions.take(place)
            fails = ordered.take(feature.take(condition) + row) >= self.bound.take(condition)
            leaf = leaf + (fails.astype(np.intp) << depth)
            if depth + 1 < len(self.levels):
                place = self.children[depth].take(place + fails * len(level.conditions))
        total: npt.NDArray[np.float64] = self.leaves.take(leaf).sum(axis=1) * _LEAF_UNIT
        return total

    def _failing(self, matrix: npt.NDArray[np.float32]) -> Words:
        """For which rows each condition does not hold: words of 64 rows, of each all conditions."""
        words = -(-len(matrix) // _WORD)
        values = _ordered(matrix.T)
        # Most features are the problem's, alike in all its rows.
        first, varies = values[:, 0], (values != values[:, :1]).any(axis=1)
        alike = np.where(first.take(self.feature) < self.bound, _ONES, np.uint64(0))
        holds = np.repeat(alike[None], words, axis=0)
        if varies.any():
            several = np.flatnonzero(varies.take(self.feature))
            column = (np.cumsum(varies) - 1).take(self.feature[several])
            holds[:, several] = _rows_below(values[varies], column, self.bound[several])
        missing = np.isnan(matrix.T)
        if missing.any():
            padded = np.zeros((len(missing), words * _WORD), bool)
            padded[:, : len(matrix)] = missing
            packed = np.packbits(padded, axis=1, bitorder="little").view("<u8").astype(np.uint64).T
            holds |= np.where(self.missing_holds, packed.take(self.feature, axis=1), np.uint64(0))
        fails: Words = ~holds
        return fails


def _rows_below(values: npt.NDArray[np.int64], column: npt.NDArray[np.intp], bound: npt.NDArray[np.int64]) -> Words:
    """For each ``bound`` which rows of its ``column`` of ``values`` are less: words of 64 rows. Both are of 32 bits."""
    columns, rows = values.shape
    shift = rows.bit_length()
    # A column's rows in the order of its values: a bound is above the first so many of them.
    placed = (np.arange(columns)[:, None] << 32 | values) << shift | np.arange(rows)
    placed.sort(axis=1)
    row = placed & ((1 << shift) - 1)
    least = np.zeros((-(-rows // _WORD), columns, rows + 1), np.uint64)
    least[row >> 6, np.arange(columns)[:, None], np.arange(1, rows + 1)] = _BITS.take(row & 63)
    np.bitwise_or.accumulate(least, axis=2, out=least)
    above = np.searchsorted(placed.ravel(), (column << 32 | bound) << shift) + column
    below: Words = least.reshape(len(least), -1).take(above, axis=1)
    return below


def _ordered(values: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """Integers of 32 bits in the order of fp32 ``values``; what is missing is above all of them."""
    bits = np.ascontiguousarray(values + np.float32(0)).view(np.uint32)  # there is no negative zero then
    flipped = np.where(bits >> 31, ~bits, bits | np.uint32(0x80000000))
    return np.where(np.isnan(values), np.uint32(0xFFFFFFFF), flipped).astype(np.int64)


def _numbers(words: Words) -> npt.NDArray[np.uint8]:
    """Of eight words each, in the last dimension, 64 numbers: word i has bit i of all of them.

    Eight times eight bits are transposed at a time, within an integer: pairs, then fours, then eights.
    """
    octets = words.astype("<u8").view(np.uint8).reshape(*words.shape, 8)
    x = np.ascontiguousarray(octets.swapaxes(-1, -2)).view("<u8").astype(np.uint64)
    for shift, mask in _TRANSPOSITIONS:
        swapped = (x ^ (x >> shift)) & mask
        x ^= swapped ^ (swapped << shift)
    return x.astype("<u8").view(np.uint8).reshape(*words.shape[:-1], _WORD)


def _children(level: TreeLevel, below: TreeLevel) -> npt.NDArray[np.intp]:
    """The places ``below`` of a level's left and right children; any for one without a condition."""
    places = np.zeros(2 * len(level.conditions), np.intp)
    # The first place comes last: others that have no condition have its source.
    places[below.sources[::-1]] = np.arange(len(below.sources))[::-1]
    return places


def _joined(trees: Sequence[Mapping[str, Any]], side: str, starts: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """The children of all trees' nodes as numbers among the nodes of all trees; negative where there is none."""
    each = [np.asarray(tree[side], np.intp) for tree in trees]
    return np.concatenate([np.where(own >= 0, own + start, own) for own, start in zip(each, starts, strict=True)])
