"""Install a version of pip into the environment of this interpreter, which was made without pip.

    python scripts/first_pip.py pip==VERSION

The wheel of pip that Python brings does it, run where it lies: installed first it would be compiled, module by module,
with setuptools beside it, to be replaced at once.
"""

from __future__ import annotations

import ensurepip
import subprocess
import sys
import sysconfig
from pathlib import Path


def bundled_pip() -> Path | None:
    """The wheel that ``venv`` installs: of the distribution, or beside the module that installs it."""
    folders = (sysconfig.get_config_var("WHEEL_PKG_DIR"), Path(ensurepip.__file__).with_name("_bundled"))
    wheels = [wheel for folder in folders if folder for wheel in Path(folder).glob("pip-*.whl")]
    return wheels[0] if wheels else None


def main(requirement: str) -> int:
    wheel = bundled_pip()
    if wheel is None:
        subprocess.run([sys.executable, "-m", "ensurepip"], check=True)
    pip = [str(wheel / "pip")] if wheel else ["-m", "pip"]
    options = ["--disable-pip-version-check", "-qq", "install", "--no-compile"]
    return subprocess.run([sys.executable, *pip, *options, requirement], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
