"""Groups of commands that need the ``client`` extra alone, a module each."""
