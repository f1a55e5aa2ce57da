"""Answers of ``POST /v1/kernels`` for known kernels, given before the routes: from memory, else by batched lookups."""
