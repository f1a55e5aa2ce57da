"""``accelerate`` and ``restore``: a model's linears become ones that kernels compute, and PyTorch's own again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

import tirgemm
from tirgemm.errors import InvalidRequest, MissingExtra, check_flags
from tirgemm.gemm import Range
from tirgemm.hardware import dependent_launch_refusal
from tirgemm.kernel_source import KernelSource, Policy, checked_source, policy_named, seconds_of
from tirgemm.torch.acceleration import Acceleration, one_at_a_time
from tirgemm.torch.kernel_lookup import KernelLookup
from tirgemm.torch.kernel_table import table_of
from tirgemm.torch.linear_kernels import LinearKernels
from tirgemm.torch.linear_module import Linear, convert_to_kernel_linear, restore_linear
from tirgemm.torch.linear_problems import LinearProblems, Rows, linears_of, row_counts
from tirgemm.torch.service_kernels import ServiceKernels

if TYPE_CHECKING:
    from tirgemm.client import Client

ANY_ROWS = Range(1, 8192)


def accelerate(
    model: nn.Module,
    *,
    rows: Rows = ANY_ROWS,
    source: KernelSource | None = None,
    client: Client | None = None,
    policy: Policy = "shipped",
    dry_run: bool = False,
    wait: bool | float = False,
    prepack: bool = False,
    invariant: bool = False,
    dependent_launch: bool = False,
    measured: bool | None = None,
) -> Acceleration:
    """Have kernels compute the linears of ``model``, which is changed in place, and report what became of each.

    ``rows``: for how many rows of input (all dimensions before the last together) kernels are wanted: numbers, and
    Ranges that one kernel serves; a call with other rows is PyTorch's. Kernels that are there are used at once: those
    that are registered and those that ``source`` has, by default the user's tuning database, or the service of
    ``client``. Missing ones are made in the background as one group, as the policy lets: none (``tuned``), those of
    shipped records (``shipped``), any default (``default``); a service tunes all of them. They are swapped in when
    they come, and PyTorch computes until then; a captured CUDA graph goes on with the kernel that it captured. ``wait``
    waits for them, True for all, a number for so many seconds.

    Each ``torch.nn.Linear`` becomes a ``tirgemm.torch.Linear``: the same object, parameters, hooks and names. One that
    is there already gets kernels as its own settings say, and stays as it is, also on ``undo``.
    Subclasses of ``torch.nn.Linear`` are left alone, and, where gradients are recorded as ``accelerate`` is called, a
    linear whose parameters require grad. With ``dry_run`` nothing is changed, made or asked of a service to be made.
    ``prepack`` keeps weights on a CPU packed, as ``Linear`` says. ``invariant`` asks for and uses only kernels that
    give a row the same bits whatever the other rows are.

    ``dependent_launch`` has the kernels built again for programmatic dependent launch, and certified so: each is
    launched while the kernel ahead of it ends, and waits for it. Every kernel that the source has is, whatever the
    policy. Needs the extra ``tune``, and a GPU of sm_90 or newer: InvalidRequest elsewhere.

    ``measured``, by default on GPUs, races kernels that are there when this or the report's ``wait`` returns against
    PyTorch on the model's weights, for some tenths of a second a number of rows, alone and among the model's other
    linears, and leaves PyTorch the rows for which they are not clearly faster, of invariant ones none. The report's
    ``race`` does so in the model itself. Raises InvalidRequest. Where it raises anything or is
    interrupted, the model is as before.
    """
    if not isinstance(model, nn.Module):
        raise InvalidRequest(f"model is {model!r:.80}; give a torch.nn.Module")
    policy_named(policy)
    check_flags(dry_run=dry_run, prepack=prepack, invariant=invariant, dependent_launch=dependent_launch)
    if not isinstance(measured, bool | None):
        raise InvalidRequest(f"measured is {measured!r:.80}; it must be True, False or None")
    patience = seconds_of(wait)
    numbers = row_counts(rows)

    def linears() -> list[LinearProblems]:
        return linears_of(model, numbers, invariant=invariant, dependent_launch=dependent_launch, prepack=prepack)

    def convert(module: nn.Linear) -> None:
        convert_to_kernel_linear(module, prepack=prepack, invariant=invariant, dependent_launch=dependent_launch)

    with one_at_a_time():
        listed = linears()
    places = {linear.device for linear in listed if linear.device is not None}
    if dependent_launch and (refusals := sorted(filter(None, map(dependent_launch_refusal, places)))):
        raise InvalidRequest(f"dependent_launch=True: {refusals[0]}")
    chosen, table = _source(source, client, dependent_launch), table_of(dependent_launch)
    lookup = KernelLookup(chosen, policy, table.copy() if dry_run else table)
    done: Acceleration | None = None
    while done is None:
        lookup.ask(lookup.missing(listed))  # while other threads go on: a service may be away
        with one_at_a_time():
            listed = linears()
            if lookup.missing(listed):  # another thread has changed the model, or the table
                continue
            kernels = tuple(LinearKernels(linear, lookup) for linear in listed)
            done = Acceleration(dry_run, kernels, _measured=measured, dependent_launch=dependent_launch)
            if not dry_run:
                done.begin(chosen, policy, convert)
    if wait is not False:
        try:
            done.wait(patience)
        except BaseException:
            done.undo()
            raise
    return done


def restore(model: nn.Module) -> dict[str, str]:
    """Make each ``tirgemm.torch.Linear`` of ``model`` a plain ``torch.nn.Linear``; returns by name why some were left.

    For a model that was accelerated and then copied or loaded, of which there is no report to ``undo``, and for your
    own layers. Modules stay the same objects, with their parameters and hooks, and lose ``prepack`` and ``invariant``.
    Left are those with an activation, and those whose class somebody derived. Raises InvalidRequest.
    """
    if not isinstance(model, nn.Module):
        raise InvalidRequest(f"model is {model!r:.80}; give a torch.nn.Module")
    left: dict[str, str] = {}
    with one_at_a_time():
        for name, module in model.named_modules():
            if isinstance(module, Linear):
                if why := _not_restored(module):
                    left[name or "(the model)"] = why
                else:
                    restore_linear(module)
    return left


def _not_restored(module: Linear) -> str:
    """Why a Linear cannot become a plain one, or ""."""
    if module.act != "none":
        return f"its activation {module.act} would be lost"
    kind = type(module)
    if kind is Linear or (kind.__bases__ == (Linear,) and is_parametrized(module)):
        return ""
    return f"it is a {kind.__name__}, which may compute something else"


def _source(source: KernelSource | None, client: Client | None, dependent_launch: bool = False) -> KernelSource | None:
    """Where kernels come from; None where nothing but what is registered is to be had. Raises MissingExtra where they
    are to be rebuilt for dependent launches."""
    if dependent_launch:
        return tirgemm.DependentKernels(_source(source, client) or tirgemm.LocalKernels())
    if source is not None and client is not None:
        raise InvalidRequest("give either source or client, not both")
    if client is not None:
        return ServiceKernels(client)
    if source is not None:
        return checked_source(source)
    try:
        local: KernelSource = tirgemm.LocalKernels()
    except MissingExtra:
        return None
    return local
