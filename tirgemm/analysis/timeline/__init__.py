"""Timelines of kernels: recordings of what each warpgroup did when, read, checked, and exported as traces."""
