"""Access to a service: API keys, their quotas, and the audit log."""
