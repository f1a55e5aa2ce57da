"""The commands that need more than the ``client`` extra, one module each; they import what is heavy when they run."""
