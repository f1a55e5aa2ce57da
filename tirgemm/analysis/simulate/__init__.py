"""Evaluation of a kernel's address expressions over all blocks and warps, and the cost of what they request."""
