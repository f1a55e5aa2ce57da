"""Recorded timelines of representative kernels: the program that records them, and what may be wrong with its files."""
