"""Console of every command: exit codes, one JSON document on stdout, errors as one sentence.

Exit codes: 0 done; 1 the operation failed; 2 bad input, or a part of tirgemm that is not installed; 130 interrupted.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn, TextIO

import typer
from rich.console import Console, ConsoleDimensions
from rich.markup import escape
from rich.text import Text

from tirgemm._extras import extra_of
from tirgemm._terminal.plain_text import plain
from tirgemm._terminal.tables import wrapped
from tirgemm.errors import (
    DoesNotFit,
    Interrupted,
    InvalidConfig,
    InvalidDevice,
    InvalidGemm,
    InvalidRequest,
    MissingExtra,
    ServiceError,
    TirgemmError,
    Unsupported,
    number_limits,
)

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
_BAD_INPUT = (InvalidGemm, InvalidDevice, InvalidConfig, InvalidRequest, Unsupported, DoesNotFit, MissingExtra)
# Of a path that was typed; programs that tirgemm starts are looked for before.
_NOT_THERE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)

# What pydantic says, as the type of an error, of a value that is no number, not a whole one or out of its limits.
_NUMBER_FAULTS = frozenset(
    {
        "int_parsing",
        "int_parsing_size",
        "int_from_float",
        "float_parsing",
        "finite_number",
        "greater_than",
        "greater_than_equal",
        "less_than",
        "less_than_equal",
    }
)


@dataclass
class _Mode:
    """How the running command was asked to talk."""

    json: bool = False
    debug: bool = False


MODE = _Mode()
_ENDLESS = 1 << 20


class Stdout(Console):
    """Stdout: text wraps between words at the width of the terminal or of ``COLUMNS``; in a pipe or a file it does not.

    What is printed may hold brackets of its own (paths, compilers' words), so that markup is off.
    """

    def __init__(self) -> None:
        super().__init__(highlight=False, markup=False)

    @property
    def size(self) -> ConsoleDimensions:
        """The size in cells, asked for at every use: a terminal may be resized."""
        dimensions = super().size
        asked = os.environ.get("COLUMNS", "")
        if asked.isdecimal() and int(asked):
            return ConsoleDimensions(int(asked), dimensions.height)
        return dimensions if self.is_terminal else ConsoleDimensions(_ENDLESS, dimensions.height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        raise AttributeError(f"the size of stdout is the terminal's or COLUMNS, not {new_size}")

    def print(self, *objects: Any, **options: Any) -> None:
        """As ``Console.print``; texts wrap between words, and words that are wider than the terminal stay whole.

        With ``soft_wrap`` lines stay as they are, as one that is to be pasted must.
        """
        if not options.get("soft_wrap") and objects and all(isinstance(each, (str, Text)) for each in objects):
            texts = [each if isinstance(each, Text) else Text(each) for each in objects]
            objects = tuple(wrapped(Text(options.pop("sep", " ")).join(texts), self.width))
            options |= {"sep": "\n", "soft_wrap": True}
        super().print(*objects, **{"crop": False} | options)


out = Stdout()
err = Console(stderr=True, highlight=False)


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout; progress stays on stderr.")]


def emit(as_json: bool, document: Any, show: Callable[[], None]) -> None:
    """The command's result: ``document`` as JSON, else what ``show`` prints."""
    if as_json:
        sys.stdout.write(json.dumps(document, indent=2, default=str) + "\n")
        sys.stdout.flush()
    else:
        show()


def fail(as_json: bool, document: dict[str, Any], error: TirgemmError) -> NoReturn:
    """End the command with ``error``; as JSON with ``document`` beside it."""
    if not as_json:
        raise error
    status = exit_code(error)
    emit(as_json, document | _error_member(error.code, str(error), status), lambda: None)
    raise typer.Exit(status)


def command_group(words: str) -> typer.Typer:
    """A group of commands whose help says ``words``."""
    return typer.Typer(help=words, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def run(app: typer.Typer, arguments: Sequence[str] | None = None) -> int:
    """Run the app and return the exit code; every deliberate error is one sentence without a traceback."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    MODE.json, MODE.debug = "--json" in given, "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    CLIENT_LOG.addHandler(_TELL)
    CLIENT_LOG.setLevel(logging.INFO)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # in the locale C not every character can be written
    try:
        code = _command(app).main(args=given, prog_name="tirgemm", standalone_mode=False)
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
        extra = extra_of(error)
        if extra is None:
            raise
        return _failed(MissingExtra.code, f"{error.name} is not installed: pip install 'tirgemm[{extra}]'", BAD_INPUT)
    except BrokenPipeError:
        sys.stderr.close()
        return FAILED
    except UnicodeEncodeError as error:
        # A byte of an argument that is not UTF-8 stands as a surrogate, which neither a database nor a URL takes.
        if error.encoding != "utf-8":
            raise
        return _failed("usage", f"{error.object!r:.200} is not UTF-8 text", BAD_INPUT)
    except OSError as error:
        _told(sys.stdout, lambda: print(end="", flush=True))
        where = f"{error.filename}: " if error.filename else ""
        status = BAD_INPUT if isinstance(error, _NOT_THERE) else FAILED
        return _failed("os_error", f"{where}{error.strerror or error}", status)
    finally:
        CLIENT_LOG.removeHandler(_TELL)
        CLIENT_LOG.setLevel(logging.NOTSET)


@cache
def _command(app: typer.Typer) -> Any:
    """``app`` as typer runs it, made once a process."""
    return typer.main.get_command(app)


class _Tell(logging.Handler):
    """Prints what the client logs, such as a service that does not answer, as lines on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        err.print(f"[yellow]{record.levelname.lower()}:[/] {escape(record.getMessage())}", soft_wrap=True)


CLIENT_LOG = logging.getLogger("tirgemm.client")
_TELL = _Tell()


def leave_interrupted() -> NoReturn:
    """End the process after a Ctrl-C, without the seconds that native libraries take to tear down."""
    err.show_cursor()
    _failed("interrupted", "interrupted", INTERRUPTED)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(INTERRUPTED)


def exit_code(error: TirgemmError) -> int:
    """2 where what was typed is wrong, by the error's class or by the service's answer; 130 after Ctrl-C; else 1."""
    if isinstance(error, Interrupted):
        return INTERRUPTED
    bad = isinstance(error, _BAD_INPUT) or (isinstance(error, ServiceError) and error.http_status in (400, 413, 422))
    return BAD_INPUT if bad else FAILED


def _usage(error: typer.TyperException) -> int:
    context = getattr(error, "ctx", None)
    hint = f" (see `{context.command_path} --help`)" if context is not None else ""
    refused = _refused_number(error)
    if refused:
        error.message = refused
    return _failed("usage", f"{error.format_message()}{hint}", BAD_INPUT)


def _refused_number(error: typer.TyperException) -> str:
    """Which value of a number a command refused, and what it must be: ``'0' is not an integer from 1 to 100``; empty
    where something else is wrong."""
    cause: Any = error.__cause__
    parameter: Any = getattr(error, "param", None)
    # typer brings pydantic, whose ValidationError this is.
    faults = cause.errors() if parameter is not None and hasattr(cause, "errors") else []
    if not faults or faults[0]["type"] not in _NUMBER_FAULTS:
        return ""
    # An option that may be repeated is of a list of numbers.
    noun = "an integer" if "int" in str(parameter.type_descriptor.annotation) else "a number"
    limits = number_limits(getattr(parameter, "min", None), getattr(parameter, "max", None))
    return f"{faults[0]['input']!r:.80} is not {noun}{limits}"


def _failed(code: str, message: str, status: int) -> int:
    if MODE.debug:
        traceback.print_exc()
    told = False
    if MODE.json:
        document = _error_member(code, message, status)
        told = _told(sys.stdout, lambda: print(json.dumps(document, indent=2), flush=True))
    if not told:
        _told(sys.stderr, lambda: err.print(f"[red]error:[/] {escape(plain(message))}", soft_wrap=True))
    return status


def _error_member(code: str, message: str, status: int) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "exit_code": status}}


def _told(stream: TextIO, write: Callable[[], None]) -> bool:
    """Whether ``write`` reached ``stream``, or one whose reader has gone. What a stream whose end is gone or full still
    holds goes nowhere, or the interpreter would try to write it again and end with an exit code of its own."""
    try:
        write()
    except OSError as error:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return isinstance(error, BrokenPipeError)
    return True
