"""Generated CUDA source run on the CPU, thread by thread."""
