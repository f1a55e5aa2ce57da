"""Who may import whom, read from the source; what ``import tirgemm`` loads."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Each is a folder of the checkout; the last two are also linked into the first, under which they are installed.
PACKAGES = ("tirgemm", "tuning_db", "service")

# Folders of the checkout that are not installed.
TOOLS = ("benchmarks", "verification")

# What the problem's, the device's and progress's own modules are; every part may import them.
BASE = {
    "tirgemm",
    *(f"tirgemm.{name}" for name in ("gemm", "device", "errors", "expr", "config", "launch", "hardware", "progress")),
    *(f"tirgemm.{name}" for name in ("events", "status", "timings", "detect", "detect_cpu", "detect_cuda")),
    *(f"tirgemm.{name}" for name in ("_interpreter", "_extras", "_user_folders", "_version")),
    "tirgemm._terminal.progress_view",
    "tirgemm.rounds",
}

# The client's modules and packages, by the name below ``tirgemm``.
CLIENT = {"client", "cli", "torch", "kernel_source", "_trial", "_client", "_terminal", "_commands"}

# A part and the parts that it may import, besides itself and the base.
ALLOWED = {
    "base": set(),
    "artifact": set(),
    "reference": set(),
    "client": {"artifact", "reference"},
    "layouts": set(),
    "families": {"layouts", "workload"},
    "workload": set(),
    "analysis": {"families", "layouts", "workload"},
    "tuning": {"analysis", "families", "layouts", "workload", "artifact", "reference"},
    "bench": {"tuning", "analysis", "families", "layouts", "workload", "artifact", "reference"},
}

# The families, each a package of ``tirgemm.families``, and what each may import of the packages beside it.
FAMILIES = {
    "x86": {"common"},
    "simt": {"common"},
    "tensorcore": {"common"},
    "mma": {"common", "tensorcore"},
    "wmma": {"common", "tensorcore"},
    "wgmma": {"common"},
    "common": set(),
}

# What ``import tirgemm`` offers of the packages above it: named for type checkers, and loaded at first use by its name.
FRONT = {("tirgemm", f"tirgemm.tuning_db.{name}") for name in ("tune", "local_kernels", "dependent_kernels")}

# Heavy or server-side packages that the client's world never imports, not even inside a function.
HEAVY = {
    "tvm",
    "xgboost",
    "sqlalchemy",
    "alembic",
    "fastapi",
    "uvicorn",
    "starlette",
    "pydantic",
    "psutil",
    "cloudpickle",
    "jinja2",
}


def part(module: str) -> str:
    """The part of tirgemm that a module belongs to."""
    if module in BASE:
        return "base"
    name = module.split(".")[1]
    return "client" if name in CLIENT else name


def package_of(module: str) -> str:
    """The package of PACKAGES that a module of ours belongs to; the top-level name of any other."""
    top, _, rest = module.partition(".")
    inner = rest.partition(".")[0]
    return inner if top == "tirgemm" and inner in PACKAGES else top


def modules(folders: tuple[str, ...] = PACKAGES) -> Iterator[tuple[str, Path]]:
    for folder in folders:
        above = ("tirgemm",) if folder in PACKAGES[1:] else ()
        for path in sorted((ROOT / folder).rglob("*.py")):
            names = [*above, *path.relative_to(ROOT).with_suffix("").parts]
            yield ".".join(names[:-1] if names[-1] == "__init__" else names), path


MODULES = dict(modules((*PACKAGES, *TOOLS)))


@cache
def imports(module: str, path: Path) -> list[tuple[str, int]]:
    """Every module that ``path`` imports anywhere in it, with the line; ``from x import y`` as x.y where that is
    one."""
    return list(_imports(module, path))


def _imports(module: str, path: Path) -> Iterator[tuple[str, int]]:
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


@cache
def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def room(module: str) -> str:
    """The folder that a module lies in, as a package; of one right under a package of PACKAGES, or TOOLS, the module
    itself: there lie the base and the front, below and above all the others."""
    folder = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    return module if folder.rpartition(".")[2] in (*PACKAGES, *TOOLS) else folder


@cache
def module_edges() -> set[tuple[str, str]]:
    """Every import of one of our modules by another, those for type checkers too; not those of the lazy front."""
    return {
        (module, imported)
        for module, path in MODULES.items()
        if module != "tirgemm"
        for imported, _ in imports(module, path)
        if imported in MODULES and imported != module
    }


def room_edges() -> set[tuple[str, str]]:
    """``module_edges`` between folders. A package's ``__init__`` may name the rooms below it."""
    return {
        (room(module), room(imported))
        for module, imported in module_edges()
        if room(module) != room(imported) and not room(imported).startswith(f"{module}.")
    }


def circles(edges: set[tuple[str, str]]) -> list[set[str]]:
    """The sets of nodes of which each reaches every other."""
    below: dict[str, set[str]] = {}
    for node, other in edges:
        below.setdefault(node, set()).add(other)

    def reached(node: str) -> set[str]:
        seen: set[str] = set()
        ahead = list(below.get(node, ()))
        while ahead:
            if (name := ahead.pop()) not in seen:
                seen.add(name)
                ahead += below.get(name, ())
        return seen

    reach = {node: reached(node) for node in below}
    return [
        set(members)
        for members in sorted(
            {
                tuple(sorted(other for other in reach[node] if node in reach.get(other, ())))
                for node in below
                if node in reach[node]
            }
        )
    ]


def offences(module: str, imported: str) -> str | None:
    """Why ``module`` may not import ``imported``, or None."""
    mine, theirs = package_of(module), package_of(imported)
    if (module, imported) in FRONT:
        return None
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


def family_of(module: str) -> str | None:
    """The package of ``tirgemm.families`` that a module belongs to."""
    names = module.split(".")
    return names[2] if names[:2] == ["tirgemm", "families"] and names[2:] and names[2] in FAMILIES else None


def test_every_package_of_a_family_is_held_to_the_rule() -> None:
    assert {path.parent.name for path in (ROOT / "tirgemm/families").glob("*/__init__.py")} == set(FAMILIES)


def test_families_take_from_one_another_only_what_is_common() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {mine} must not import {theirs}"
        for module, path in modules()
        if (mine := family_of(module)) is not None
        for imported, line in imports(module, path)
        if (theirs := family_of(imported)) not in (None, mine, *FAMILIES[mine])
    ]
    assert not wrong, "\n".join(wrong)


# Parts that serve every family alike, those of other packages too; the ladder is about one.
FAMILY_BLIND = tuple(f"tirgemm.{name}" for name in ("analysis", "tuning", "artifact", "bench", "tuning_db", "service"))

LADDER = (
    "tirgemm.service.commands.ladder",
    *(f"tirgemm.bench.ladder_{name}" for name in ("report", "results", "run")),
)


def test_what_serves_every_family_knows_none_by_name() -> None:
    wrong = []
    for module, path in modules():
        if not module.startswith(FAMILY_BLIND) or module in LADDER:
            continue
        at = path.relative_to(ROOT)
        wrong += [
            f"{at}:{line} imports {name}"
            for name, line in imports(module, path)
            if family_of(name) not in (None, "common")
        ]
        text = path.read_text()
        wrong += [
            f"{at}:{node.lineno} compares with a family's name"
            for node in (ast.walk(ast.parse(text)) if any(name in text for name in FAMILIES) else ())
            if isinstance(node, ast.Compare)
            and any(isinstance(each, ast.Constant) and each.value in FAMILIES for each in ast.walk(node))
        ]
    assert not wrong, "\n".join(wrong)


def test_of_verification_only_the_emulators_know_families_by_name() -> None:
    naming = {
        path.name
        for path in (ROOT / "verification").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in FAMILIES
    }
    assert naming == {"emulated.py"}


def test_imports_go_round_in_no_circle() -> None:
    assert {name.partition(".")[0] for edge in module_edges() for name in edge} == {"tirgemm", *TOOLS}
    assert circles(module_edges()) == []


def test_folders_import_one_another_in_no_circle() -> None:
    assert circles(room_edges()) == []


def test_a_circle_is_seen_with_all_its_members_and_nothing_else() -> None:
    assert circles({("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("x", "a"), ("d", "e")}) == [{"a", "b", "c"}]
    assert circles({("a", "b"), ("b", "a"), ("b", "c"), ("c", "d"), ("d", "c")}) == [{"a", "b"}, {"c", "d"}]
    assert circles({("a", "b"), ("a", "c"), ("b", "c")}) == []


def test_a_module_right_under_a_package_is_a_room_and_any_other_is_in_its_folders() -> None:
    assert room("tirgemm.gemm") == "tirgemm.gemm"
    assert room("tirgemm.service.settings") == "tirgemm.service.settings"
    assert room("tirgemm.artifact") == room("tirgemm.artifact.loader") == "tirgemm.artifact"
    assert room("tirgemm.tuning.measure.child") == "tirgemm.tuning.measure"


@pytest.mark.parametrize(
    ("module", "imported", "reason"),
    [
        ("tirgemm.tuning.records.store", "tirgemm.tuning_db.store", "tirgemm must not know tuning_db"),
        ("tirgemm.tuning_db.store", "tirgemm.service.server.app", "tuning_db must not know service"),
        ("tirgemm", "tirgemm.tuning_db.tune", None),
        ("tirgemm", "tirgemm.tuning_db.store", "tirgemm must not know tuning_db"),
        ("tirgemm.client", "tirgemm.tuning_db.tune", "tirgemm must not know tuning_db"),
        ("tirgemm.client", "tirgemm.tuning.records", "client must not import tuning"),
        ("tirgemm.client", "tvm", "client must work without tvm"),
        ("tirgemm.artifact.load", "tirgemm.families", "artifact must not import families"),
        ("tirgemm.families.simt", "tirgemm.tuning.build.pool", "families must not import tuning"),
        ("tirgemm.gemm", "tirgemm.artifact", "base must not import artifact"),
        ("tirgemm.families.x86.schedule", "tvm.s_tir", None),
        ("tirgemm.tuning.tune", "tirgemm.artifact", None),
        ("tirgemm.service.server.app", "tirgemm.tuning.tune", None),
    ],
)
def test_the_rule_itself_tells_right_from_wrong(module: str, imported: str, reason: str | None) -> None:
    assert offences(module, imported) == reason


def test_imports_inside_functions_and_relative_ones_are_seen(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("def f():\n    import tvm.script\n    from ..tuning import records\n    from . import gemm\n")
    assert imports("tirgemm.families.x", file) == [
        ("tvm.script", 2),
        ("tirgemm.tuning.records", 3),
        ("tirgemm.families", 4),
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "import tirgemm",
        "import tirgemm; tirgemm.Client; tirgemm.load; tirgemm.devices()",
        "import tirgemm.artifact, tirgemm.cli",
        "from tirgemm.service import cli; cli.main(['--help'])",
    ],
)
def test_the_client_loads_nothing_heavy(statement: str) -> None:
    # typer itself brings pydantic.
    code = f"{statement}\nimport sys\nprint('loaded', *(n for n in {sorted(HEAVY - {'pydantic'})} if n in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "loaded"


@pytest.mark.parametrize("package", ["tirgemm", "tirgemm.tuning_db"])
def test_dir_lists_the_public_names_of_a_lazy_package_alone(package: str) -> None:
    module = importlib.import_module(package)
    assert dir(module) == sorted(module.__all__)


def test_evidence_is_made_without_the_benchmarks_that_show_it() -> None:
    """The product knows neither; ``verification`` imports the product, and ``benchmarks`` both."""
    above = {"tirgemm": {"benchmarks", "verification"}, "verification": {"benchmarks"}}
    for name, others in above.items():
        paths = [*(ROOT / name).rglob("*.py")]
        assert len(paths) > 20
        wrong = {str(path) for path in paths for imported, _ in imports(name, path) if imported.split(".")[0] in others}
        assert not wrong
