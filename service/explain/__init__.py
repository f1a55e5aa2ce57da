"""What ``explain`` shows, on a terminal and as a page: both from the same tables."""
