"""RPC to a child process that may be killed, over two pipes.

The parent's end is ``ChildProcess``; the child calls ``serve``. Messages are pickled, with their length in front.
The child is the leader of its own process group (a kill takes the compilers that it started along) and dies with its
parent. Its stdout and stderr go to a file, so that whatever native code prints cannot disturb the messages.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from tirgemm._interpreter import collect_seldom
from tirgemm.errors import Cancelled, TirgemmError
from tirgemm.tuning.process import spans
from tirgemm.tuning.process.interrupts import Flag
from tirgemm.tuning.process.locks import OnWait

_HEADER = struct.Struct("<Q")
_ALIVE, _WAITING, _SPANS, _ANSWER, _ERROR = "alive", "waiting", "spans", "answer", "error"
_PR_SET_PDEATHSIG = 1
_POLL_MS = 50
_TELL_S = 0.2
_PIECE = 1 << 20
_KEPT_OUTPUT = 1 << 20
_LAST_WORDS = 2000
_REAP_S = 10.0
START_S = 600.0

# The kernel delivers PR_SET_PDEATHSIG when the *thread* that forked ends. Every child is therefore forked by this one
# thread, which lives as long as the process: a child outlives the short-lived thread that asked for it.
_forker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tirgemm-fork")


def _new_forker() -> None:
    """A process that was forked from this one has no such thread."""
    global _forker
    _forker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tirgemm-fork")


os.register_at_fork(after_in_child=_new_forker)


def _forked(start: Callable[[], subprocess.Popen[Any]]) -> subprocess.Popen[Any]:
    try:
        starting = _forker.submit(start)
    except RuntimeError as error:  # of an executor that takes nothing as the interpreter ends
        raise Cancelled("this process is ending: it starts no other one") from error
    return starting.result()


class ChildDied(Exception):
    """The child ended without answering; ``cause`` is ``signal 11 (SIGSEGV)`` or ``exit status 3``, ``started`` says
    whether there had been a sign of life."""

    def __init__(self, cause: str, output: str, *, started: bool = True) -> None:
        super().__init__(f"{cause}: {output}" if output else cause)
        self.cause = cause
        self.output = output
        self.started = started

    @property
    def killed(self) -> bool:
        """Whether it was ended from outside."""
        return self.cause == _cause(-signal.SIGKILL)


class ChildTimedOut(Exception):
    """The child gave no sign of life for the allowed time and has been killed; ``started`` says whether it ever had."""

    def __init__(self, started: bool) -> None:
        super().__init__("no sign of life" if started else "did not start")
        self.started = started


class ChildProcess:
    """``python -m module`` behind a request-and-answer interface. Not for use by several threads at once. Raises
    Cancelled where this process is ending. ``variables`` are environment variables that the child has otherwise than
    this process, None for one that it lacks."""

    def __init__(
        self, module: str, arguments: Sequence[str] = (), variables: Mapping[str, str | None] | None = None
    ) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        to_child, self._send_fd = os.pipe()
        self._receive_fd, from_child = os.pipe()
        os.set_blocking(self._send_fd, False)
        command = [sys.executable, "-P", "-m", module, str(os.getpid()), str(to_child), str(from_child), *arguments]
        try:
            start = partial(
                subprocess.Popen,
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=(to_child, from_child),
                process_group=0,
                env=child_environment(variables or {}),
            )
            self._process = _forked(start)
        except BaseException:
            for fd in (self._send_fd, self._receive_fd):
                os.close(fd)
            self._output.close()
            raise
        finally:
            os.close(to_child)
            os.close(from_child)
        self._received = bytearray()
        self._closed = False
        self.busy_s = 0.0
        """Seconds for which it has worked on requests: from the first sign of life, behind its waits, to the end."""

    @property
    def alive(self) -> bool:
        return not self._closed and self._process.poll() is None

    def request(
        self,
        message: Any,
        *,
        timeout_s: float,
        start_s: float = START_S,
        cancel: Flag | None = None,
        on_wait: OnWait | None = None,
    ) -> Any:
        """Send ``message`` and return the child's answer, or raise the TirgemmError that it answers with.

        ``timeout_s`` is the longest silence after the child's first sign of life, ``start_s`` the longest before
        (its imports, its wait for a lock). ``on_wait`` is told what the child waits for, then "" when it goes on.
        Where there is a trace the child's spans become part of it. Raises ChildDied, ChildTimedOut, Cancelled; the
        child is dead then.
        """
        outgoing = memoryview(_frame((message, spans.traceparent() is not None)))
        deadline = time.monotonic() + start_s
        began: float | None = None
        poll = select.poll()
        poll.register(self._receive_fd, select.POLLIN | select.POLLHUP)
        poll.register(self._send_fd, select.POLLOUT)
        while True:
            began = self._count_busy(began)
            if cancel is not None and cancel.is_set():
                self.kill()
                raise Cancelled("cancelled while a child process was working; the process was stopped")
            # Where it was this process that had no turn, stopped by Ctrl-Z say, what was told meanwhile counts.
            late = time.monotonic() > deadline
            for fd, events in poll.poll(0 if late else _POLL_MS):
                if fd == self._send_fd:
                    try:
                        outgoing = outgoing[os.write(fd, outgoing[:_PIECE]) :]
                    except BlockingIOError:
                        continue
                    except BrokenPipeError:
                        outgoing = outgoing[:0]
                    if not outgoing:
                        poll.unregister(self._send_fd)
                elif events and not self._read():
                    raise self._died(began is not None)
            while (answer := self._next_message()) is not None:
                kind, value = answer
                began = self._count_busy(began)
                if kind == _ANSWER:
                    return value
                if kind == _ERROR:
                    raise value
                if kind == _SPANS:
                    spans.adopt(value)
                    continue
                if kind == _WAITING:
                    if on_wait is not None:
                        on_wait(value)
                    continue
                began = time.monotonic()
                deadline, late = began + timeout_s, False
            if late:
                self.kill()
                raise ChildTimedOut(began is not None)

    def kill(self) -> None:
        """Kill the child and everything in its process group; harmless when it is dead."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a driver call may hold it for a while yet
            self._process.wait(timeout=_REAP_S)
        os.close(self._send_fd)
        os.close(self._receive_fd)
        self._output.close()

    def _count_busy(self, since: float | None) -> float | None:
        """Count the time ``since`` then as work; now, from where to count next, or None where no work has begun."""
        if since is None:
            return None
        now = time.monotonic()
        self.busy_s += now - since
        return now

    def _read(self) -> bool:
        piece = os.read(self._receive_fd, _PIECE)
        self._received += piece
        return bool(piece)

    def _next_message(self) -> tuple[str, Any] | None:
        if len(self._received) < _HEADER.size:
            return None
        (size,) = _HEADER.unpack_from(self._received)
        end = _HEADER.size + size
        if len(self._received) < end:
            return None
        try:
            kind, value = pickle.loads(bytes(self._received[_HEADER.size : end]))
        except Exception as error:  # what native code has overwritten may raise anything
            self.kill()
            raise ChildDied("unreadable answer", f"{type(error).__name__}: {error}") from error
        del self._received[:end]
        return kind, value

    def _died(self, started: bool) -> ChildDied:
        """What became of a child that closed its pipe. One that only closed the pipe is killed."""
        try:
            code = self._process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            code = 0
        output = self._last_words()
        self.kill()
        return ChildDied(_cause(code), output, started=started)

    def _last_words(self) -> str:
        end = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, end - _LAST_WORDS))
        words = self._output.read().decode(errors="replace").strip()
        return words if end <= _LAST_WORDS else words.partition("\n")[2] or words


class Channel:
    """The child's end of the pipes."""

    def __init__(self, receive_fd: int, send_fd: int) -> None:
        self._receive_fd = receive_fd
        self._send_fd = send_fd
        self._told = 0.0
        for fd in (receive_fd, send_fd):
            os.set_inheritable(fd, False)

    def receive(self) -> tuple[Any, bool]:
        """The next request, and whether its spans are wanted; EOFError when the parent is gone or has closed the
        pipe."""
        (size,) = _HEADER.unpack(self._exactly(_HEADER.size))
        self._told = 0.0
        message, traced = pickle.loads(self._exactly(size))
        return message, traced

    @property
    def has_request(self) -> bool:
        """Whether a request waits to be received, or the parent is gone."""
        poll = select.poll()
        poll.register(self._receive_fd, select.POLLIN | select.POLLHUP)
        return bool(poll.poll(0))

    def alive(self) -> None:
        """Tell the parent that work goes on: its timeout starts again.

        Told a few times a second at most: a parent that wakes for every millisecond of work disturbs what is measured.
        """
        if time.monotonic() - self._told > _TELL_S:
            self._told = time.monotonic()
            self.send((_ALIVE, None))

    def waiting(self, reason: str) -> None:
        """Tell the parent what this process waits for; "" when it goes on."""
        self.send((_WAITING, reason))

    def send(self, message: tuple[str, Any]) -> None:
        """Tell the parent something, by its kind: of one request the answer or the error last."""
        outgoing = memoryview(_frame(message))
        while outgoing:
            outgoing = outgoing[os.write(self._send_fd, outgoing) :]

    def _exactly(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            piece = os.read(self._receive_fd, min(_PIECE, size - len(received)))
            if not piece:
                raise EOFError
            received += piece
        return bytes(received)


def serve(prepare: Callable[[Channel, list[str]], Callable[[Any], Any]]) -> None:
    """The child's main: tie its life to the parent's, prepare a handler, answer requests until the pipe closes.

    ``prepare`` gets the channel and the command line's own arguments. A TirgemmError of the handler is the answer;
    any other exception ends the process, with its traceback in the output file.
    """
    parent, receive_fd, send_fd = (int(word) for word in sys.argv[1:4])
    collect_seldom()
    die_with(parent, signal.SIGKILL)
    channel = Channel(receive_fd, send_fd)
    handle = prepare(channel, sys.argv[4:])
    while True:
        try:
            request, traced = channel.receive()
        except EOFError:
            return
        _forget_old_output()
        with spans.listed() if traced else contextlib.nullcontext() as recorded:
            try:
                answer = _ANSWER, handle(request)
            except TirgemmError as error:
                answer = _ERROR, error
        if recorded:
            channel.send((_SPANS, recorded))
        channel.send(answer)
        del answer  # an error holds what its frames do: operands, say


def die_with(parent: int, number: signal.Signals) -> None:
    """Have the kernel send this process the signal when ``parent``, which started it, is gone (Linux, prctl(2))."""
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os.kill(os.getpid(), number)  # it died before it could be watched


def without_torch() -> None:
    """Keep PyTorch out of this process, where it is installed and not there yet.

    tvm_ffi would import it only to exchange tensors with it: seconds and hundreds of megabytes a process, for nothing.
    """
    modules: dict[str, Any] = sys.modules
    modules.setdefault("torch", None)  # what the import statement takes for "not installed"


def allow_torch() -> None:
    """End what ``without_torch`` began: tvm_ffi has been imported without PyTorch and stays so."""
    if sys.modules.get("torch", ...) is None:
        sys.modules.pop("torch", None)


def _forget_old_output() -> None:
    """Keep the file that stdout and stderr go to small."""
    with contextlib.suppress(OSError):
        if os.fstat(2).st_size > _KEPT_OUTPUT:
            os.ftruncate(2, 0)
            os.lseek(2, 0, os.SEEK_SET)


def _frame(message: Any) -> bytes:
    payload = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _HEADER.pack(len(payload)) + payload


def _cause(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"


def child_environment(variables: Mapping[str, str | None]) -> dict[str, str]:
    """The parent's environment but for ``variables``, with the folder of this very package first, so that both ends run
    the same code."""
    root = str(Path(__file__).resolve().parents[3])
    known = os.environ.get("PYTHONPATH")
    own: dict[str, str | None] = {"PYTHONPATH": f"{root}{os.pathsep}{known}" if known else root}
    changed = {**os.environ, **own, **variables}
    return {name: value for name, value in changed.items() if value is not None}
