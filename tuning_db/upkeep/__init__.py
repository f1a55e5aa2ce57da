"""Upkeep of a tuning database: statistics, integrity, retention, backups."""
