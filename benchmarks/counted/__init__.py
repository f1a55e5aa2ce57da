"""Hardware counters beside what the analysis predicts: the parts of ``benchmarks/counters.py``."""
