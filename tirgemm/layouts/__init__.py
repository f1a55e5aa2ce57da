"""Shared-memory layouts and thread-value layouts of copies, as data with their algebra. Integers and NumPy only.

``Layout`` places a tile's elements in shared memory: plain, padded or permuted rows. ``TiledCopy`` says which thread
moves which of a tile's elements. ``Strided`` is CuTe's nested shape and stride, which both can be read as.
"""

from __future__ import annotations

from tirgemm.layouts.copy import TiledCopy
from tirgemm.layouts.permutation import Permutation, Rotation, Swizzle
from tirgemm.layouts.shared import Layout
from tirgemm.layouts.strided import Strided

__all__ = ["Layout", "Permutation", "Rotation", "Strided", "Swizzle", "TiledCopy"]
