"""Tuning of a problem to a certified kernel: search, build, measurement, verification and selection."""
