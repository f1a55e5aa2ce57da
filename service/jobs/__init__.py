"""The worker: claims jobs under a lease, tunes, and answers for what becomes of them."""
