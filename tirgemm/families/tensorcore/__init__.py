"""Parts shared by the tensor-core families scheduled in TensorIR: tiling, copies, pipeline, split-K."""
