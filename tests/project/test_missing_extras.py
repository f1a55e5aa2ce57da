"""Errors where an extra is not installed: MissingExtra, with the extra and the line that installs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tirgemm import _extras
from tirgemm.errors import MissingExtra

ROOT = Path(__file__).resolve().parents[2]
CLIENT, TUNE = _extras.PACKAGES["client"], _extras.PACKAGES["tune"]
# Packages without which the statement runs; PyTorch is of no extra.
BLOCK = """
import sys
class BaselineUnavailable:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, BaselineUnavailable())
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name.partition(".")[0] in {packages} else find_spec(name, *more)
from tirgemm.errors import MissingExtra
import tirgemm, tirgemm.artifact
try:
    {statement}
except MissingExtra as error:
    print(error)
"""


def said(statement: str, *packages: str) -> str:
    code = BLOCK.format(statement=statement, packages=packages)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("statement", "packages", "extra", "first"),
    [
        ("tirgemm.tune", TUNE, "tune", "tirgemm.tune needs the extra tune (tvm is absent)"),
        ("tirgemm.LocalKernels", TUNE, "tune", "tirgemm.LocalKernels needs the extra tune (tvm is absent)"),
        ("tirgemm.DependentKernels", TUNE, "tune", "tirgemm.DependentKernels needs the extra tune (tvm is absent)"),
        ("from tirgemm import tune", ("xgboost",), "tune", "tirgemm.tune needs the extra tune (xgboost is absent)"),
        ("tirgemm.Client", CLIENT, "client", "tirgemm.Client needs the extra client (httpx is absent)"),
        ("import tirgemm.client", CLIENT, "client", "tirgemm.Client needs the extra client (httpx is absent)"),
        ("tirgemm.artifact.Signer.generate()", CLIENT, "client", "signatures need the package cryptography"),
        (
            "import tirgemm.tuning.search.metaschedule_hooks",
            TUNE,
            "tune",
            "tirgemm.tuning.search.metaschedule_hooks needs the extra tune (tvm is absent)",
        ),
        ("import tirgemm.tuning.verify.cuda", CLIENT, "client", "tirgemm.tuning.measure needs the extra client"),
        ("from tirgemm.tuning_db import Database", TUNE, "tune", "tirgemm.tuning_db.Database needs the extra tune ("),
        (
            "from tirgemm.tuning.workbench import Workbench; Workbench(None, None)",
            TUNE,
            "tune",
            "tuning needs the extra tune (tvm is absent)",
        ),
    ],
)
def test_python_is_told_the_extra(statement: str, packages: tuple[str, ...], extra: str, first: str) -> None:
    words = said(statement, *packages)
    assert words.startswith(first)
    assert words.endswith(f": pip install 'tirgemm[{extra}]'")
    assert "\n" not in words


def test_traces_that_are_asked_for_name_their_extra() -> None:
    setting = "Settings(traces_endpoint='http://127.0.0.1:4318')"
    imports = "from tirgemm.service.traces import traces_of; from tirgemm.service.settings import Settings"
    words = said(f"{imports}; traces_of({setting}, 'server').__enter__()", "opentelemetry")
    assert words.startswith("TIRGEMM_TRACES_ENDPOINT needs the extra traces (opentelemetry is absent): pip install")


def test_pytorch_is_named_where_it_is_what_is_missing() -> None:
    assert "PyTorch" in said("import tirgemm.torch", "torch")


@pytest.mark.parametrize("statement", ["tirgemm.devices()", "tirgemm.Budget(3, 4.0)", "tirgemm.Gemm.parse('1x2x3')"])
def test_what_needs_no_extra_works_without(statement: str) -> None:
    assert said(f"print('made', len(str({statement})) > 0)", *CLIENT, *TUNE, "cuda", "pynvml") == "made True"


def test_a_package_of_no_extra_stays_what_it_is() -> None:
    with pytest.raises(ModuleNotFoundError, match="colours"), _extras.needed_by("this"):
        raise ModuleNotFoundError("No module named 'colours'", name="colours")
    with pytest.raises(MissingExtra, match="service"), _extras.needed_by("this"):
        raise ModuleNotFoundError("No module named 'starlette'", name="starlette.types")


def test_every_package_of_an_extra_is_declared_there() -> None:
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {
        "tvm_ffi": "apache-tvm-ffi",
        "tvm": "apache-tvm=",
        "xgboost": "xgboost-cpu",
        "cuda": "cuda-bindings",
        "pynvml": "nvidia-ml-py",
        "pydantic_settings": "pydantic-settings",
    }
    for extra, packages in _extras.PACKAGES.items():
        for package in packages:
            assert any(line.startswith(names.get(package, package)) for line in extras[extra]), (extra, package)
