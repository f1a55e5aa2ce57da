"""Machine code: the sections of a cubin, and its disassembly as functions, basic blocks, loops and instructions."""
