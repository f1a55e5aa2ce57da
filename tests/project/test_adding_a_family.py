"""docs/adding-a-family.md as printed: its files, its shell lines and its Python, from an empty folder, without a
network."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.newcomer.pages import Block, blocks
from tests.present_timings import search_of, timing_of
from tirgemm.artifact import Trust, read

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "adding-a-family.md"
PRINTED = list(blocks(PAGE, ROOT))

# Of the artifact's last line on: where neither the package nor the families are imported.
ELSEWHERE = """
import sys
import numpy as np
import tirgemm

kernel = tirgemm.load(sys.argv[1], trust=[sys.argv[2]])
a, b = (np.random.default_rng(i).integers(-3, 4, (64, 64)).astype(np.float32) for i in range(2))
assert np.array_equal(kernel(a, b), a @ b)
assert not {"tiled", "tirgemm.families", "tvm"} & sys.modules.keys()
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a shell in a virtual environment of its own that has what this one has, and no network."""
    home = tmp_path_factory.mktemp("home")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "venv"], check=True)
    bin_, site = home / "venv" / "bin", next((home / "venv" / "lib").glob("python*")) / "site-packages"
    (site / "ours.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n")
    for name, module in (("pip", "pip"), ("tirgemm", "tirgemm.service.cli")):
        (bin_ / name).write_text(f'#!/bin/sh\nexec {bin_}/python -m {module} "$@"\n')
        (bin_ / name).chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "PYTHON", "PIP_"))}
    # PIP_NO_BUILD_ISOLATION is read as the option's value, which is "off" for --no-build-isolation.
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return kept | offline | {"HOME": str(home), "PATH": f"{bin_}:{kept['PATH']}", "COLUMNS": "80"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Path:
    """A folder that was empty, after all that the page prints, in order."""
    folder = tmp_path_factory.mktemp("project")
    for block in PRINTED:
        if block.title:
            (folder / block.title).write_text(block.body)
        else:
            _run(block, folder, environment)
    return folder


def _run(block: Block, folder: Path, environment: dict[str, str]) -> None:
    words = ["bash", "-euc"] if block.language == "sh" else ["python", "-c"]
    done = subprocess.run(
        [*words, block.body], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"line {block.line} of {PAGE.name}: {done.stdout}\n{done.stderr}"


@pytest.mark.slow
def test_the_page_ends_in_a_tuned_certified_kernel_of_the_family(folder: Path) -> None:
    assert [block.title or block.language for block in PRINTED] == ["pyproject.toml", "tiled.py", "sh", "python"]
    data = (folder / "tiled.tirgemm").read_bytes()
    manifest = read(data, Trust.of(_signer(data))).manifest
    assert manifest.config.family == "tiled"
    assert manifest.certificate is not None
    assert manifest.certificate["passed"]
    assert manifest.certificate["kernel_sha256"] == manifest.kernel_sha256
    assert manifest.flags[-1] == "family=tiled (tiled-gemm 0.1)"
    timing = timing_of(manifest.timings)
    default = timing.baselines["default"]
    # Which is faster in this run is the machine's to say: what chose the kernel was another race.
    assert default.ratio == pytest.approx(default.median_us / timing.median_us)
    assert search_of(manifest.timings).trials > 4, "more than the default was tried"


@pytest.mark.slow
def test_its_kernel_runs_where_the_package_is_not_installed(folder: Path) -> None:
    artifact = folder / "tiled.tirgemm"
    words = [sys.executable, "-c", ELSEWHERE, str(artifact), _signer(artifact.read_bytes())]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _signer(data: bytes) -> str:
    """The key that the artifact says it is signed with."""
    import io
    import json
    import zipfile

    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        (name,) = [name for name in archive.namelist() if "signature" in name]
        return str(json.loads(archive.read(name))["key"])
