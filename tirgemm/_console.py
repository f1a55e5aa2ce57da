"""What every command of the CLI shares: exit codes, one JSON document on stdout, errors as one sentence.

Exit codes: 0 done; 1 the operation failed; 2 bad input, or a part of tirgemm that is not installed; 130 interrupted.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from tirgemm.errors import (
    DoesNotFit,
    InvalidConfig,
    InvalidDevice,
    InvalidGemm,
    InvalidRequest,
    MissingExtra,
    ServiceError,
    TirgemmError,
    Unsupported,
)

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
_BAD_INPUT = (InvalidGemm, InvalidDevice, InvalidConfig, InvalidRequest, Unsupported, DoesNotFit, MissingExtra)
_EXTRA_OF = {
    "tvm": "tune", "xgboost": "tune", "psutil": "tune", "cloudpickle": "tune", "sqlalchemy": "tune", "alembic": "tune",
    "obstore": "tune", "fastapi": "service", "starlette": "service", "uvicorn": "service", "pydantic": "service",
    "pydantic_settings": "service", "tvm_ffi": "client", "httpx": "client", "cryptography": "client",
    "cuda": "cuda", "pynvml": "cuda",
}  # fmt: skip


@dataclass
class _Mode:
    """How the running command was asked to talk."""

    json: bool = False
    debug: bool = False


MODE = _Mode()
# What is printed may hold brackets of its own (paths, compilers' words), so that markup is off on stdout.
out = Console(soft_wrap=True, highlight=False, markup=False)
err = Console(stderr=True, highlight=False)


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout; progress stays on stderr.")]


def emit(as_json: bool, document: Any, show: Callable[[], None]) -> None:
    """The command's result: ``document`` as JSON, else what ``show`` prints."""
    if as_json:
        sys.stdout.write(json.dumps(document, indent=2, default=str) + "\n")
        sys.stdout.flush()
    else:
        show()


def run(app: typer.Typer, arguments: Sequence[str] | None = None) -> int:
    """Run the app and return the exit code; every deliberate error is one sentence without a traceback."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    MODE.json, MODE.debug = "--json" in given, "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    try:
        code = typer.main.get_command(app).main(args=given, prog_name="tirgemm", standalone_mode=False)
        return code if isinstance(code, int) else OK
    except typer.Exit as stop:
        return stop.exit_code
    except typer.TyperException as error:
        return _usage(error)
    except (typer.Abort, KeyboardInterrupt):
        return _failed("interrupted", "interrupted", INTERRUPTED)
    except TirgemmError as error:
        return _failed(error.code, str(error), exit_code(error))
    except ModuleNotFoundError as error:
        extra = _EXTRA_OF.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        return _failed(MissingExtra.code, f"{error.name} is not installed: pip install 'tirgemm[{extra}]'", BAD_INPUT)
    except BrokenPipeError:
        sys.stderr.close()
        return FAILED
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _failed("os_error", f"{where}{error.strerror or error}", FAILED)


def exit_code(error: TirgemmError) -> int:
    """2 where what was typed is wrong, by the error's class or by the service's answer; else 1."""
    bad = isinstance(error, _BAD_INPUT) or (isinstance(error, ServiceError) and error.http_status in (400, 413, 422))
    return BAD_INPUT if bad else FAILED


def _usage(error: typer.TyperException) -> int:
    context = getattr(error, "ctx", None)
    hint = f" (see `{context.command_path} --help`)" if context is not None else ""
    return _failed("usage", f"{error.format_message()}{hint}", BAD_INPUT)


def _failed(code: str, message: str, status: int) -> int:
    if MODE.debug:
        traceback.print_exc()
    if MODE.json:
        sys.stdout.write(
            json.dumps({"error": {"code": code, "message": message, "exit_code": status}}, indent=2) + "\n"
        )
    else:
        err.print(f"[red]error:[/] {escape(message)}", soft_wrap=True)
    return status
