"""Products ``a @ b.T`` by PyTorch under the profiler: ``python -m benchmarks.counted.torch_calls UUID GEMM ...``.

Each is called once. UUID is the GPU's. Before each product a tensor of ``MARK`` elements is filled: the launches
between two such kernels are one product's. Operands are random and are made on the host, so that no other kernel is
launched.
"""

from __future__ import annotations

import os
import sys

from tirgemm.gemm import DTYPE_NAMES, Gemm
from tirgemm.tuning.measure.baselines.torch_baseline import pin

# What fills it is an elementwise kernel by its name; no kernel of a product is.
MARK, MARK_NAME = 7, "elementwise_kernel"


def main(arguments: list[str]) -> int:
    import torch

    uuid, *gemms = arguments
    os.environ["CUDA_VISIBLE_DEVICES"] = uuid
    pin(torch)
    device = torch.device("cuda")
    mark = torch.empty(MARK, device=device)
    for text in gemms:
        gemm = Gemm.parse(text)
        a, b = (
            torch.randn(shape, dtype=torch.float32).to(getattr(torch, DTYPE_NAMES[gemm.dtype])).to(device)
            for shape in ((gemm.m_max, gemm.k), (gemm.n, gemm.k))
        )
        out = torch.empty(gemm.m_max, gemm.n, dtype=a.dtype, device=device)
        mark.fill_(1.0)
        torch.matmul(a, b.mT, out=out)
        torch.cuda.synchronize()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
