"""Evidence that a family of kernels is right: random cases, mutants, sanitizers. Run on the GPU host.

``cases`` draws problems with configs that cover every knob, ``covering`` picks few of them that still do;
``verify_family`` verifies them in full. ``alterations`` changes the CUDA source of a config (delays, mutants) and
``mutants`` and ``sanitize`` show what notices. Each script writes one compressed JSON file and goes on where it
stopped.
"""
