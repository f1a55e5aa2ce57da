"""Whole models with our kernels in their linears beside PyTorch's: times, agreement of results, and the table."""
