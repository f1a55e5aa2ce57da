"""Documents of a service: the members that each must have, checked where a document is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import NoneType
from typing import Any, TypeAlias

from tirgemm.errors import ServiceError

Document: TypeAlias = "dict[str, Any]"
# A type (``float`` is any finite number), the members of an object, of which those that end in ``?`` may be missing,
# the one form of all items of a list, or several forms of which one must fit.
Form: TypeAlias = "type | Mapping[str, Any] | list[Any] | tuple[Any, ...]"

# What this package reads of each document; a service may say more.
_SET_MEMBER = {
    "m": str,
    "family": str,
    "config": str,
    "config_hash": str,
    "kernel_sha256": str,
    "median_us?": (float, NoneType),
}
KERNEL: Form = {
    "id": str,
    "gemm": str,
    "device": {"key": str, "name": str, "model": str},
    "regime": str,
    "role": str,
    "family": str,
    "config": dict,
    "timings": dict,
    "certificate": ({"tests": list, "reference": str}, NoneType),
    "artifact": {"sha256": str, "bytes": int},
    "trials": int,
    "created_at": str,
    "portable?": bool,
    "pinned?": bool,
    "other_device?": (str, NoneType),
    "members?": [_SET_MEMBER],
}
JOB: Form = {
    "id": str,
    "status": str,
    "gemm": str,
    "device": {"name": str},
    "regime": str,
    "budget": {"trials": int},
    "created_at": str,
    "priority?": int,
    "error?": (dict, NoneType),
    # Whole, or by its id.
    "fallback?": (KERNEL, str, NoneType),
    "kernel?": (KERNEL, str, NoneType),
}
BATCH_SUMMARY: dict[str, Any] = {
    "id": str,
    "status": str,
    "states": dict,
    "gain": {"kernels": int, "geomean": (float, NoneType)},
    "created_at": str,
}
_BATCH_ITEM = {
    "gemm": str,
    "state": str,
    "expected_gain": float,
    "job": (str, NoneType),
    "kernel": (str, NoneType),
    "gain": (float, NoneType),
}
BATCH: dict[str, Any] = BATCH_SUMMARY | {"items": [_BATCH_ITEM]}

_WORDS = {
    str: "a text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
    NoneType: "null",
}


def checked(document: Any, form: Form, address: str) -> Document:
    """``document`` itself, which came from ``address``. Raises ServiceError with the member that is missing or of
    another type."""
    fault = fault_of(document, form)
    if fault:
        raise ServiceError(f"{address} answered with a document in which {fault}; is it a tirgemm service?")
    whole: Document = document
    return whole


def documents(body: Document, name: str, url: str, form: Form) -> list[Document]:
    """The documents that an answer lists, each of ``form``. Raises ServiceError where it lists none, or others."""
    if not isinstance(body.get(name), list):
        raise ServiceError(f"{url} answered without a list of {name}; is it a tirgemm service?")
    listed: list[Document] = checked(body, {name: [form]}, f"{url}/v1/{name}")[name]
    return listed


def fault_of(value: Any, form: Form, name: str = "") -> str:
    """What is wrong with the member ``name`` of a document, the first thing; empty where it is of ``form``."""
    if isinstance(form, tuple):
        faults = [fault_of(value, option, name) for option in form]
        if not all(faults):
            return ""
        # Of an object it is told which of its members is wrong.
        meant = [fault for fault, option in zip(faults, form, strict=True) if _is_of(value, _type_of(option))]
        return meant[0] if meant else _refused(value, name, *form)
    if not _is_of(value, _type_of(form)):
        return _refused(value, name, form)
    parts: list[tuple[Any, Form, str]] = []
    if isinstance(form, list):
        parts = [(item, form[0], _place(name, str(number))) for number, item in enumerate(value)]
    elif isinstance(form, Mapping):
        for told, part in form.items():
            member = told.removesuffix("?")
            if member in value:
                parts.append((value[member], part, _place(name, member)))
            elif member == told:
                return f"{_place(name, member)} is missing"
    return next((fault for part in parts if (fault := fault_of(*part))), "")


def _refused(value: Any, name: str, *forms: Form) -> str:
    wanted = " or ".join(_WORDS[_type_of(form)] for form in forms)
    return f"{name or 'all of it'} is {value!r:.80}, which must be {wanted}"


def _place(name: str, part: str) -> str:
    return f"{name}.{part}" if name else part


def _type_of(form: Form) -> type:
    if isinstance(form, type):
        return form
    return dict if isinstance(form, Mapping) else list


def _is_of(value: Any, wanted: type) -> bool:
    if isinstance(value, bool):
        return wanted is bool
    if wanted is float:
        return isinstance(value, (int, float)) and math.isfinite(value)
    return isinstance(value, wanted)


def artifact_sha256(document: Document) -> str:
    """The artifact that a kernel document names. Raises ServiceError where it names none."""
    try:
        return str(document["artifact"]["sha256"])
    except (KeyError, TypeError) as error:
        raise ServiceError(f"the kernel document names no artifact: {document!r:.200}") from error
