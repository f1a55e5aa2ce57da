"""Shared-memory layouts and thread-value layouts of copies, as data with their algebra. Integers and NumPy only.

``Layout`` places a tile's elements in shared memory: plain, padded or permuted rows. ``TiledCopy`` says which thread
moves which of a tile's elements; ``Strided`` is how its threads, and the values of a thread, are numbered.
"""

from __future__ import annotations

from tirgemm.layouts.copy import Strided, TiledCopy
from tirgemm.layouts.shared import Layout
from tirgemm.layouts.swizzle import Swizzle

__all__ = ["Layout", "Strided", "Swizzle", "TiledCopy"]
