"""``Kernel``: a loaded artifact as a callable on NumPy, PyTorch and CuPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from tirgemm import expr
from tirgemm.artifact import arrays, tensor_calls
from tirgemm.artifact.closing import Closing
from tirgemm.artifact.manifest import Manifest
from tirgemm.artifact.native import LoadedFunctions
from tirgemm.artifact.package import Package
from tirgemm.artifact.regular_file import write_named
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.errors import CallError, CallTypeError, InvalidRequest, TirgemmError
from tirgemm.gemm import Gemm
from tirgemm.timings import Timings

CallOperands: TypeAlias = "tuple[Any, Any, Any, Any]"
CallFactors: TypeAlias = "tuple[float | None, float | None]"


class Kernel(Closing):
    """One kernel, or a set of them over ranges of m, ready to be called. Safe from several threads. A context manager
    that closes it.

    ``raw`` is the launcher's own function: tensors in the launch's order (a, b, then c and bias where they occur, then
    the output), then alpha and beta where they occur. It checks everything but ``requires_grad``, PyTorch's lazy
    negation and its tracers and modes, allocates nothing, and has PyTorch count no change of the output.
    ``functions`` has it with the others of the launcher: a B that stays the same may be packed once, on a CPU.
    """

    def __init__(self, package: Package, functions: LoadedFunctions) -> None:
        self.manifest: Manifest = package.manifest
        self.gemm: Gemm = self.manifest.gemm
        self.config: Config = self.manifest.config
        self.device: Device = self.manifest.device
        self.kernel_sha256: str = self.manifest.kernel_sha256
        self.artifact_sha256: str = package.sha256
        self.raw: Any = functions.call
        self.functions = functions
        self._data = package.data
        # Set at the first call with tensors of PyTorch.
        self._has_met_torch = False
        self._into: Callable[..., bool] | None = None
        self._shape, self._strides = self.gemm.shape("d"), self.gemm.strides("d")
        # Where a call's m is read: the axis of a, counted from the end.
        self._m_axis = -1 if self.gemm.trans_a else -2
        self._a_rank = 3 if self.gemm.batch > 1 else 2
        self._fixed = self.gemm.m_min == self.gemm.m_max

    def __repr__(self) -> str:
        kernels = self.manifest.members
        what = f"{len(kernels)} kernels by m" if kernels else self.config
        return f"<Kernel {self.gemm} on {self.device.key}: {what}>"

    def __copy__(self) -> Kernel:
        copied = type(self).__new__(type(self))
        copied.__dict__.update(self.__dict__)
        copied._into = self._into  # not in the dictionary where the launcher made the class
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Kernel:
        """The kernel itself: it computes the same for all models that hold it."""
        return self

    def __reduce__(self) -> NoReturn:
        """Raises TypeError: what is loaded belongs to its process."""
        raise TypeError(
            "a loaded kernel cannot be pickled: save it by kernel.save(path), and load that in the other process by "
            "tirgemm.load(path)"
        )

    @property
    def timings(self) -> Timings:
        """What the tuner measured: the time in each regime beside the baselines of the same run, and why it was
        chosen."""
        return self.manifest.timings

    @property
    def certificate(self) -> dict[str, Any] | None:
        """The evidence that the kernel is right: each test with its bound and what was found; None for an unverified
        one."""
        return self.manifest.certificate

    def member(self, m: int) -> Manifest:
        """The manifest of the kernel that a call with this ``m`` runs, as the launcher chooses it. Raises
        InvalidRequest for an m that is not served."""
        given: Any = m
        served = isinstance(given, Integral) and self.gemm.m_min <= m <= self.gemm.m_max
        index = self.functions.member(int(m)) if served else -1
        if index < 0:
            raise InvalidRequest(f"m is {m!r:.80}; this kernel takes m from {self.gemm.m_min} to {self.gemm.m_max}")
        return self.manifest.kernels[index]

    def save(self, path: Path | str) -> Path:
        """Write the signed artifact to ``path``, which ``tirgemm.load`` takes, and return the path."""
        path = Path(path)
        write_named(path, self._data)
        return path

    def close(self) -> None:
        """Unload the kernel from its GPUs; a later call loads it again.

        No call may be running, and no CUDA graph that captured one may be replayed after this. A kernel that is merely
        dropped stays loaded.
        """
        self.functions.close()

    def __call__(
        self,
        a: Any,
        b: Any,
        c: Any = None,
        bias: Any = None,
        *,
        alpha: float | None = None,
        beta: float | None = None,
        out: Any = None,
    ) -> Any:
        """``act(alpha * a @ b + beta * c + bias)`` into ``out``, or into a new array of the same library and device.

        Raises CallError and CallTypeError, which name the argument, what it is and what it must be. On a GPU the result
        is queued on the library's current stream. PyTorch counts a change of ``out``, under ``torch.no_grad()`` that of
        an ``nn.Parameter`` alone. Its tracers, modes and forward-mode derivatives do not see a kernel: CallError there.
        """
        if self._has_run_at_once(a, b, c, bias, alpha, beta, out):
            return out
        library = self._library_of(a)
        library.check_seen((a, b, c, bias, out))
        return self._run(library, (a, b, c, bias), (alpha, beta), out)

    def within_operator(self, operands: CallOperands, factors: CallFactors, out: Any) -> Any:
        """A call as a part of an operator of PyTorch, which tracers, modes and derivatives see in its place: with
        a, b, c and bias, and with alpha and beta."""
        if self._has_run_at_once(*operands, *factors, out):
            return out
        return self._run(self._library_of(operands[0]), operands, factors, out)

    def _has_run_at_once(self, a: Any, b: Any, c: Any, bias: Any, alpha: Any, beta: Any, out: Any) -> bool:
        """Whether the launcher has taken the tensors as they are, which it may where there is no other argument."""
        into = self._into
        if into is None or c is not None or bias is not None or alpha is not None or beta is not None:
            return False
        return bool(into(a, b, out))

    @staticmethod
    def _library_of(a: Any) -> arrays.Arrays:
        library = arrays.library_of(a)
        if library is None:
            raise CallTypeError(f"a is a {type(a).__name__}; kernels take NumPy, PyTorch and CuPy arrays")
        return library

    def _run(self, library: arrays.Arrays, operands: CallOperands, factors: CallFactors, out: Any) -> Any:
        gemm = self.gemm
        (a, b, c, bias), (alpha, beta) = operands, factors
        inputs = [("a", a), ("b", b)]
        self._optional(inputs, "c", c, gemm.beta, "beta")
        self._optional(inputs, "bias", bias, gemm.bias, "bias")
        args = [self._take(library, name, array, False) for name, array in inputs]
        scalars = [*self._scalar("alpha", alpha, gemm.alpha), *self._scalar("beta", beta, gemm.beta)]
        is_new = out is None
        if is_new:
            out = self._output(library, a)
        args.append(self._take(library, "out", out, True))
        try:
            library.run(self.raw, args + scalars)
        except TirgemmError:
            raise
        except (BufferError, RuntimeError, TypeError, ValueError) as error:  # a sparse or a meta tensor, say
            reason = str(error).partition("\nException raised from")[0]  # PyTorch's frames in C++ follow
            raise CallTypeError(f"an argument cannot be passed by DLPack: {reason}") from error
        if not is_new:
            library.count_change(out)
        if not self._has_met_torch and library.name == "PyTorch":
            self._into, self._has_met_torch = tensor_calls.call_into(self.functions), True
        return out

    def _take(self, library: arrays.Arrays, name: str, array: Any, writes: bool) -> Any:
        if arrays.library_of(array) is not library:
            raise CallTypeError(f"{name} is a {type(array).__name__}; it must be a {library.name} array as a is")
        return library.take(name, array, writes)

    def _optional(self, inputs: list[tuple[str, Any]], name: str, array: Any, occurs: bool, flag: str) -> None:
        if occurs and array is None:
            raise CallTypeError(f"{name} is missing: {self.gemm} has {flag}")
        if not occurs and array is not None:
            raise CallTypeError(f"{name} is given, but {self.gemm} has no {flag}")
        if occurs:
            inputs.append((name, array))

    def _scalar(self, name: str, value: float | None, occurs: bool) -> tuple[float, ...]:
        if not occurs:
            if value is not None:
                raise CallTypeError(f"{name} is given, but {self.gemm} has no {name}")
            return ()
        if value is None:
            raise CallTypeError(f"{name}= is missing: {self.gemm} has {name}, whose value is an argument of the call")
        try:
            return (float(value),)
        except OverflowError as error:
            raise CallTypeError(f"{name} is an integer beyond what a float holds; it must be below 1.8e308") from error
        except (TypeError, ValueError) as error:
            raise CallTypeError(f"{name} is {value!r:.80}; it must be a number") from error

    def _output(self, library: arrays.Arrays, a: Any) -> Any:
        gemm = self.gemm
        m = gemm.m_min
        if not self._fixed:
            shape = tuple(a.shape)
            if len(shape) != self._a_rank:
                raise CallError(f"a has shape {shape}; it must have {self._a_rank} dimensions")
            m = int(shape[self._m_axis])
            if not gemm.m_min <= m <= gemm.m_max:
                raise CallError(
                    f"a has shape {shape}, so that m is {m}; this kernel takes m from {gemm.m_min} to {gemm.m_max}"
                )
        shape = tuple(expr.evaluate(d, m) for d in self._shape)
        strides = tuple(expr.evaluate(d, m) for d in self._strides)
        return library.empty(shape, strides, gemm.out, gemm.align, a)
