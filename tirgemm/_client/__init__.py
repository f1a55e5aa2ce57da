"""Parts of the HTTP client: the connection, the cache of artifacts with its index, trust in servers."""
