"""Processes of the tuner: RPC to a child process, locks on devices and folders, and how Ctrl-C ends the work."""
