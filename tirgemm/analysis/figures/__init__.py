"""Drawings as self-contained SVG: shared memory by banks, thread-value maps, waves, the roofline."""
