"""Who may import whom, read from the source; what ``import tirgemm`` loads; and how long a file may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("tirgemm", "tuning_db", "service")
MAX_LINES = 400

# What the problem's and the device's own modules are; every part may import them.
BASE = {
    "tirgemm", "tirgemm.gemm", "tirgemm.device", "tirgemm.errors", "tirgemm.expr", "tirgemm.config", "tirgemm.launch",
    "tirgemm.hardware", "tirgemm.detect", "tirgemm.detect_cpu", "tirgemm.detect_cuda",
}  # fmt: skip
CLIENT = {
    "tirgemm.client", "tirgemm.cli", "tirgemm.torch", "tirgemm._http", "tirgemm._watch", "tirgemm._cache",
    "tirgemm._console", "tirgemm._reference", "tirgemm._trial",
}  # fmt: skip
# A part and the parts that it may import, besides itself and the base.
ALLOWED = {
    "base": set(),
    "artifact": set(),
    "client": {"artifact"},
    "layouts": set(),
    "families": {"layouts", "workload"},
    "workload": set(),
    "analysis": {"families", "layouts", "workload"},
    "tuning": {"analysis", "families", "layouts", "workload", "artifact"},
}
# Heavy or server-side packages that the client's world never imports, not even inside a function.
HEAVY = {
    "tvm",
    "xgboost",
    "sqlalchemy",
    "alembic",
    "obstore",
    "fastapi",
    "uvicorn",
    "starlette",
    "pydantic",
    "psutil",
    "cloudpickle",
}


def part(module: str) -> str:
    """The part of tirgemm that a module belongs to."""
    if module in CLIENT:
        return "client"
    if module in BASE:
        return "base"
    return module.split(".")[1]


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            names = list(path.relative_to(ROOT).with_suffix("").parts)
            yield ".".join(names[:-1] if names[-1] == "__init__" else names), path


def imports(module: str, path: Path) -> Iterator[tuple[str, int]]:
    """Every module that ``path`` imports anywhere in it, with the line; ``from x import y`` as x.y where that is one."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join(
                    [*package.split(".")[: len(package.split(".")) - node.level + 1], *([base] if base else [])]
                )
            yield from (
                (name if is_module(name := f"{base}.{alias.name}") else base, node.lineno) for alias in node.names
            )


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def offences(module: str, imported: str) -> str | None:
    """Why ``module`` may not import ``imported``, or None."""
    mine, theirs = module.partition(".")[0], imported.partition(".")[0]
    if theirs in PACKAGES and PACKAGES.index(theirs) > PACKAGES.index(mine):
        return f"{mine} must not know {theirs}"
    if mine != "tirgemm":
        return None
    me = part(module)
    if theirs in HEAVY and me in ("base", "artifact", "client"):
        return f"{me} must work without {theirs}"
    if theirs != "tirgemm" or module == "tirgemm":
        return None
    other = part(imported)
    if other not in ("base", me) and other not in ALLOWED[me]:
        return f"{me} must not import {other}"
    return None


def test_imports_point_one_way() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {module} imports {imported}: {reason}"
        for module, path in modules()
        for imported, line in imports(module, path)
        if (reason := offences(module, imported)) is not None
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("module", "imported", "reason"),
    [
        ("tirgemm.tuning.store", "tuning_db.store", "tirgemm must not know tuning_db"),
        ("tuning_db.store", "service.app", "tuning_db must not know service"),
        ("tirgemm.client", "tirgemm.tuning.records", "client must not import tuning"),
        ("tirgemm.client", "tvm", "client must work without tvm"),
        ("tirgemm.artifact.load", "tirgemm.families", "artifact must not import families"),
        ("tirgemm.families.simt", "tirgemm.tuning.pool", "families must not import tuning"),
        ("tirgemm.gemm", "tirgemm.artifact", "base must not import artifact"),
        ("tirgemm.families.x86.schedule", "tvm.s_tir", None),
        ("tirgemm.tuning.tune", "tirgemm.artifact", None),
        ("service.app", "tirgemm.tuning.tune", None),
    ],
)
def test_the_rule_itself_tells_right_from_wrong(module: str, imported: str, reason: str | None) -> None:
    assert offences(module, imported) == reason


def test_imports_inside_functions_and_relative_ones_are_seen(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("def f():\n    import tvm.script\n    from ..tuning import store\n    from . import gemm\n")
    assert list(imports("tirgemm.families.x", file)) == [
        ("tvm.script", 2),
        ("tirgemm.tuning.store", 3),
        ("tirgemm.families", 4),
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "import tirgemm",
        "import tirgemm; tirgemm.Client; tirgemm.load; tirgemm.devices()",
        "import tirgemm.artifact, tirgemm.cli",
        "import service.cli; service.cli.main(['--help'])",
    ],
)
def test_the_client_loads_nothing_heavy(statement: str) -> None:
    # typer itself brings pydantic.
    code = f"{statement}\nimport sys\nprint('loaded', *(n for n in {sorted(HEAVY - {'pydantic'})} if n in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "loaded"


def test_no_file_is_longer_than_a_room() -> None:
    paths = [
        p
        for name in (*PACKAGES, "benchmarks", "scripts")
        for p in (ROOT / name).rglob("*")
        if p.suffix in (".py", ".cc", ".h", ".cu")
    ]
    long = {str(p.relative_to(ROOT)): n for p in paths if (n := len(p.read_text().splitlines())) > MAX_LINES}
    assert not long


def test_no_tracked_file_names_a_machine_or_a_package_index() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], check=False, capture_output=True, text=True, cwd=ROOT)
    if listed.returncode:
        pytest.skip("this is no git checkout, so that nothing says which files are tracked")
    needles = [
        "/" + "work/",
        "/" + "root/",
        "/" + "home/",
        "--index" + "-url",
        "--extra-index" + "-url",
        "trusted" + "-host",
    ]
    found = []
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.suffix in (".gz", ".png", ".woff2") or not path.is_file():
            continue
        text = path.read_text(errors="replace")
        found += [f"{name}: {needle}" for needle in needles if needle in text]
    assert not found
