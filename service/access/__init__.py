"""Access of clients to the service: API keys, scopes, rate limits, and what goes into the audit log."""
