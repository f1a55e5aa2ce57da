"""Views of stored kernels for pages: the table, one kernel's times and history and code, several side by side."""
