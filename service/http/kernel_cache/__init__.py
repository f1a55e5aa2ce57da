"""In-memory cache and batched database lookup of the kernels that answer ``POST /v1/kernels``."""
