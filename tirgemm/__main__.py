"""``python -m tirgemm``: what the console script runs."""

from __future__ import annotations

import sys
from importlib import import_module

# Named as the distribution's entry point names it: what is imported is the installed script, not a part of this
# package.
SCRIPT = "tirgemm.service.cli:main"

if __name__ == "__main__":
    module, _, function = SCRIPT.partition(":")
    sys.exit(getattr(import_module(module), function)())
