"""The device code of ``wgmma`` in TIRx: producers, consumers, epilogue, and the kernels before and behind."""
