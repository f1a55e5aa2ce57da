"""Tuning of kernel sets: a few kernels over ranges of m for one problem whose m is a range."""
