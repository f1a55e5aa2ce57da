"""Generated CUDA source run on the CPU, thread by thread; its C++ headers are in tests/contract."""
