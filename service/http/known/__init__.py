"""What is kept in memory of known kernels, and how the others are looked up: answers, documents, batched lookups."""
