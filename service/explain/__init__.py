"""Reports of ``explain``, on a terminal and as a page, from the same tables."""
