"""Wall time of a queue of jobs on one device of a host and on several side by side."""
