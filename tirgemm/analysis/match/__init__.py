"""Matching of machine instructions and loops to the memory accesses and loops of the IR."""
