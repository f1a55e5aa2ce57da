"""From a Program to a binary: lowering, code generation, and the pool of processes that does it."""
