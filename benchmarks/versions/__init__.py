"""Versions of the program side by side: what each chooses, and how fast that is."""
