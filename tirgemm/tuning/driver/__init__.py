"""The bottom of measurement and verification: the CUDA driver, NVRTC, NVML, tensors over raw memory. No TVM."""
