"""The benchmark harness: suites of shapes, races of kernels and baselines, the ladder, results files."""
