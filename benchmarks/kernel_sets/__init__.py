"""Measurements of kernel sets: against kernels that are tuned for one m."""
