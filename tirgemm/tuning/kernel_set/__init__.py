"""Cutting of a range of m for a kernel set: the sizes compared, and the partition."""
