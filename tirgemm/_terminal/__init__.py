"""Terminal output of the command line: the console, tables, help, progress."""
