"""The extras of the distribution: which packages belong to each, and the error that names the extra of an absent
one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from tirgemm.errors import MissingExtra

# The packages that an extra brings, as they are imported.
PACKAGES = {
    "client": ("tvm_ffi", "httpx", "cryptography", "typer", "rich"),
    "tune": ("tvm", "xgboost", "psutil", "cloudpickle", "sqlalchemy", "alembic", "jinja2"),
    "service": ("fastapi", "uvicorn", "pydantic", "pydantic_settings"),
    "cuda": ("cuda", "pynvml"),
    "ray": ("ray",),
}
_EXTRAS = {package: extra for extra, packages in PACKAGES.items() for package in packages} | {"starlette": "service"}


def absent(extra: str, find: Callable[[str], object | None] = find_spec) -> str | None:
    """The first package of ``extra`` that is not installed; None where all are."""
    return next((package for package in PACKAGES[extra] if find(package) is None), None)


def require(what: str, extra: str) -> None:
    """Raise MissingExtra unless every package of ``extra`` is installed."""
    package = absent(extra)
    if package is not None:
        raise missing_extra(what, extra, package)


def extra_of(error: ModuleNotFoundError) -> str | None:
    """The extra whose package ``error`` did not find; None where the package belongs to none."""
    return _EXTRAS.get((error.name or "").partition(".")[0])


def missing_extra(what: str, extra: str, package: str) -> MissingExtra:
    """The error for ``what``, which needs ``extra``, of which ``package`` is not installed."""
    return MissingExtra(f"{what} needs the extra {extra} ({package} is absent): pip install 'tirgemm[{extra}]'")


@contextmanager
def needed_by(what: str) -> Iterator[None]:
    """Turn the ModuleNotFoundError of an extra's package into MissingExtra, which names the extra and ``what`` needs
    it."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = extra_of(error)
        if extra is None:
            raise
        raise missing_extra(what, extra, str(error.name).partition(".")[0]) from error
