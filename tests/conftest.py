"""Every test's home: folders of its own for configuration, data and caches, so that no test meets the user's files."""

from __future__ import annotations

import fcntl
import gc
import hashlib
import importlib.util
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.computed_once import SHARED, computed_once
from tests.helpers.library_variables import FRUGAL, own_variables
from tirgemm._interpreter import collect_seldom

_HOME = Path(tempfile.mkdtemp(prefix="tirgemm-tests-"))
# Set at import, before any module reads them; child processes inherit them.
for _name in [name for name in os.environ if name.startswith("TIRGEMM_")]:
    del os.environ[_name]
os.environ.update(
    {f"XDG_{kind}_HOME": str(_HOME / kind.lower()) for kind in ("CONFIG", "DATA", "STATE", "CACHE")} | FRUGAL,
)
# One folder for all processes of a run, made by the first of them, for what is computed once for all.
_BEGINS_THE_RUN = SHARED not in os.environ
os.environ[SHARED] = os.environ.get(SHARED) or tempfile.mkdtemp(prefix="tirgemm-tests-shared-")
_NEWCOMERS = str(Path(__file__).parent / "newcomer") + os.sep

# While test files are compiled and imported too: half a million objects of syntax trees, few of them in cycles.
collect_seldom()

# A shell that starts the tests in the background has them ignore Ctrl-C, which some of them press.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """One process of a run collects first. What it compiles, half of the work in a clean clone, the others read."""
    with (Path(os.environ[SHARED]) / "collection.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(lock, fcntl.LOCK_SH)
            fcntl.flock(lock, fcntl.LOCK_UN)
        return (yield)


def pytest_collection_finish() -> None:
    """What is imported by now stays: no garbage collection looks at it, nor at what little of it is dead."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _migrated_once() -> Iterator[None]:
    """The migrations make the first new SQLite database of a process; the others get what they made of it, which takes
    a tenth of the time.
    """
    from sqlalchemy import Connection, inspect, text

    from tirgemm.tuning_db import schema

    migrate, statements = schema.migrate, list[str]()

    def run(connection: Connection, revision: str = schema.HEAD) -> None:
        is_new = revision == schema.HEAD and connection.dialect.name == "sqlite"
        is_new = is_new and not inspect(connection).get_table_names()
        if not is_new or not statements:
            migrate(connection, revision)
            if is_new:
                made = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY rowid"
                version = f"INSERT INTO alembic_version VALUES ('{schema.HEAD}')"
                statements.extend([*connection.execute(text(made)).scalars(), version])
            return
        for statement in statements:
            connection.exec_driver_sql(statement)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "migrate", run)
        yield


@pytest.fixture(scope="session", autouse=True)
def _emulators_compiled_once() -> Iterator[None]:
    """What emulated kernels share is compiled by one process of a run: six processor seconds."""
    from verification.emulator import precompiled

    @cache
    def made(command: tuple[str, ...], name: str) -> Path:
        digest = hashlib.sha256(repr((command, name)).encode()).hexdigest()[:16]

        def compute() -> Path:
            return precompiled.make(command, Path(tempfile.mkdtemp(dir=os.environ[SHARED])) / name)

        return computed_once(f"made-{digest}", compute)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(precompiled, "made", made)
        yield


def pytest_unconfigure() -> None:
    shutil.rmtree(_HOME, ignore_errors=True)
    if _BEGINS_THE_RUN:
        shutil.rmtree(os.environ.pop(SHARED), ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The longest first, and one after the other: of the workers, each of which begins with a part of all tests and then
    # takes from the end of what another has left, only the first meets newcomers, which wait for each other. In the
    # environment with PyTorch, whose tests run beside these, last: by then those of this one have gone.
    has_torch = importlib.util.find_spec("torch") is not None
    items.sort(key=lambda item: str(item.path).startswith(_NEWCOMERS) is has_torch)
    if not has_torch:
        # Each runs in the environment that has PyTorch: `make test` fails where that was not installed.
        reason = "PyTorch is not installed here: `make test` runs these in .venv-torch, `make unit` both environments"
        for item in items:
            if item.get_closest_marker("torch"):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """No test leaves environment variables behind: what the next one prints, or where it writes, depends on them."""
    before = own_variables()
    yield
    assert own_variables() == before, "the test leaves environment variables changed"
