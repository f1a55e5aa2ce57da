"""A kernel's memory accesses as its IR has them: a tree of sites over integer expressions, read from TVM's TIR."""
