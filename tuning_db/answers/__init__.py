"""Reads of known kernels that take little time: their rendered documents, and the version of all of them."""
