"""Rules of the code that no linter knows, held over the syntax trees of all modules."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("tirgemm", "tuning_db", "service", "benchmarks", "verification")
MAX_PARAMETERS = 8
# What users call by keywords: each has its sentence in the documentation, and a value would only wrap them.
KEYWORDS = {
    ("tirgemm/client.py", "Client.document"),
    ("tirgemm/client.py", "Client.kernel"),
    ("tirgemm/client.py", "Client.submit"),
    ("tirgemm/torch/conversion.py", "accelerate"),
    ("tuning_db/tune.py", "tune"),
}
# What is assigned to a type's name, and is no type.
DECLARATIONS = ("Annotated[", "TypeVar(", "ParamSpec(")
# What makes a signature another thing: options of a command line, arguments of a GPU kernel.
COMMAND, GPU_KERNEL = "typer.Option", "triton.jit"
NATIVE = (".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp")
# As long as ruff lets a line of Python be.
LINE_LENGTH = 120
# Committed results have the hash of the whole text of these, as the source that was measured: a line of them is wrapped
# when it is measured again.
MEASURED_TEXTS = {"benchmarks/bank_probe.cu", "benchmarks/mma_ceiling.cu"}


def sources(*names: str, kinds: tuple[str, ...] = (".py",)) -> Iterator[tuple[str, str]]:
    for name in names:
        for folder in (ROOT / name).iterdir() if name == "tirgemm" else (ROOT / name,):
            # Of packages that are linked into the library the files are read where they are.
            if not folder.is_symlink():
                for path in sorted(folder.rglob("*")) if folder.is_dir() else (folder,):
                    if path.suffix in kinds:
                        yield str(path.relative_to(ROOT)), path.read_text()


def functions(tree: ast.AST, outer: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        name = f"{outer}{node.name}" if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) else ""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, node
        # No expression holds a function that has a name.
        if isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            yield from functions(node, f"{name}." if name else outer)


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    given = function.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


def test_no_function_and_no_constructor_has_more_than_eight_parameters() -> None:
    seen, long = 0, {}
    for file, text in sources(*PRODUCT):
        for name, function in functions(ast.parse(text)):
            seen += 1
            if len(parameters(function)) <= MAX_PARAMETERS:
                continue
            decorators = " ".join(ast.unparse(decorator) for decorator in function.decorator_list)
            if COMMAND not in ast.unparse(function.args) and GPU_KERNEL not in decorators:
                long[file, name] = len(parameters(function))
    assert seen > 3000
    assert set(long) == KEYWORDS, "give them a value that holds what belongs together"


# The one module that calls private functions of PyTorch, with what is called where there is none.
PRIVATE_TORCH = "tirgemm/artifact/private_torch.py"


def is_private(names: str) -> bool:
    return any(name.startswith("_") and not name.endswith("__") for name in names.split("."))


def private_torch(text: str) -> list[int]:
    """The lines that name something private of PyTorch's modules, or of what was imported from them."""
    if "torch" not in text:
        return []
    tree, lines, imported = ast.parse(text), set(), {"torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            of_torch = [alias for alias in node.names if alias.name.split(".")[0] == "torch"]
            imported |= {alias.asname for alias in of_torch if alias.asname}
            lines |= {node.lineno for alias in of_torch if is_private(alias.name)}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch" and not node.level:
            imported |= {alias.asname or alias.name for alias in node.names}
            lines |= {node.lineno for alias in node.names if is_private(f"{node.module}.{alias.name}")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner, _, names = ast.unparse(node).partition(".")
            if owner in imported and is_private(names):
                lines.add(node.lineno)
    return sorted(lines)


def test_private_functions_of_pytorch_have_one_module() -> None:
    example = (
        "import torch, torch._dynamo",
        "from torch import nn, Tensor",
        "from torch._ops import OpOverload",
        "from torch.autograd import forward_ad as ad",
        "torch._C._is_tracing()",
        "torch.__version__, nn.Module, own._parameters",
        "ad._current_level",
        "getattr(torch.utils._device, 'x')",
    )
    assert private_torch("\n".join(example)) == [1, 3, 5, 7, 8]
    lines = {file: private_torch(text) for file, text in sources(*PRODUCT, "scripts")}
    assert {file for file, numbers in lines.items() if numbers} == {PRIVATE_TORCH}


def named_found(text: str) -> list[int]:
    nodes = ast.walk(ast.parse(text)) if "found" in text else ()
    return sorted(
        {
            node.lineno
            for node in nodes
            if (isinstance(node, ast.Name) and node.id == "found")
            or (isinstance(node, ast.arg) and node.arg == "found")
        }
    )


def test_no_variable_is_named_for_having_been_found() -> None:
    assert named_found("def f(found):\n    a, found = 1, found\n") == [1, 2]
    lines = {file: named_found(text) for file, text in sources(*PRODUCT, "scripts", "tests")}
    assert {file: numbers for file, numbers in lines.items() if numbers} == {}, "name it by what it holds"


def meanings(file: str, text: str) -> Iterator[tuple[str, str]]:
    """What a module's type names stand for: a class, or what an alias is of. Options and parameters that are declared
    with Annotated, and type variables, are no types of their own."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            yield node.name, f"a class of {file}"
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and node.col_offset == 0:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            value = ast.unparse(node.value).strip("\"'")
            stands = isinstance(target, ast.Name) and re.fullmatch(r"_?[A-Z]\w*[a-z]\w*", target.id)
            if isinstance(target, ast.Name) and stands and not value.startswith(DECLARATIONS):
                yield target.id, value.removeprefix("npt.")


def test_no_type_name_means_two_things() -> None:
    same = 'Row = "dict[str, Any]"\nclass Case:\n    pass\n'
    assert list(meanings("a.py", same)) == [("Row", "dict[str, Any]"), ("Case", "a class of a.py")]
    of: dict[str, set[str]] = {}
    for file, text in sources(*PRODUCT, "scripts"):
        for name, meaning in meanings(file, text):
            of.setdefault(name, set()).add(meaning)
    assert len(of) > 700
    assert {name: sorted(each) for name, each in of.items() if len(each) > 1} == {}


def long_lines(text: str) -> list[int]:
    return [number for number, line in enumerate(text.splitlines(), start=1) if len(line) > LINE_LENGTH]


def test_no_line_of_c_or_cuda_is_longer_than_one_of_python() -> None:
    assert long_lines(f"{'a' * 120}\n{'b' * 121}\n") == [2]
    lines = {file: long_lines(text) for file, text in sources(*PRODUCT, "scripts", "tests", kinds=NATIVE)}
    assert len(lines) > 40
    assert {file: numbers for file, numbers in lines.items() if numbers}.keys() == MEASURED_TEXTS, "wrap it"


def test_no_folder_of_tests_is_passed_over_when_all_are_collected(pytestconfig: pytest.Config) -> None:
    patterns = pytestconfig.getini("norecursedirs")
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")}
    assert len(folders) > 20
    passed_over = {
        str(folder) for folder in folders for name in folder.parts if any(fnmatch(name, each) for each in patterns)
    }
    assert not passed_over, "pytest does not look into folders of these names"
