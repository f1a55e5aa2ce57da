"""Planning of ``wgmma`` kernels: tiles, registers, copies, descriptors and launches. Integers only, no TVM."""
