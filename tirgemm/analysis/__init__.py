"""Why a kernel is fast or slow, from its addresses and its machine code alone: no GPU needed."""
