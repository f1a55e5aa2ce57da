"""Proofs of the service: processes killed at random moments, disks that fill, databases that stop, random requests."""
