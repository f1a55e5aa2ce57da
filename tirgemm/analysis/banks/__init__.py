"""Models of shared and global memory for one warp: banks and wavefronts, sectors and lines, conflict proofs."""
