"""Sentences on values that pydantic refuses: which, what it is, and what it should be."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

IDS = "up to 32 hexadecimal digits in lower case"


@dataclass(frozen=True, slots=True)
class TextForm:
    """Annotation of a text that must match ``pattern``, which stands in the OpenAPI document; who sends another one is
    told in ``words`` what it should be."""

    pattern: str
    words: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(schema) | {"pattern": self.pattern}

    def _checked(self, value: str) -> str:
        if re.fullmatch(self.pattern, value) is None:
            raise PydanticCustomError("text_form", "Input should be {words}", {"words": self.words})
        return value


FAMILY = TextForm(r"^[0-9A-Za-z_.-]{0,64}$", "a family's name, up to 64 letters, digits, and any of _ . -")


def fault_message(error: Mapping[str, Any]) -> str:
    """What a value should be, by one of a ``ValidationError``'s errors: ``Input should have at most 200 characters, not
    300``."""
    limits = error.get("ctx", {})
    match error["type"]:
        case "string_too_long":
            return f"Input should have {_counted('at most', limits['max_length'])}, not {len(error['input'])}"
        case "string_too_short":
            return f"Input should have {_counted('at least', limits['min_length'])}, not {len(error['input'])}"
        case "too_long":
            return f"Input should have at most {limits['max_length']} items, not {limits['actual_length']}"
    return str(error["msg"])


def refusal(name: str, error: Mapping[str, Any]) -> str:
    """What is wrong with the value of ``name`` by one of a ``ValidationError``'s errors: ``port is 99999; it should be
    less than or equal to 65535``. Whole objects are not repeated."""
    words, value = fault_message(error), error.get("input")
    if error["type"] == "too_long":
        return f"{name} {words.removeprefix('Input ')}"
    if error["type"] in ("missing", "extra_forbidden") or isinstance(value, dict | list | tuple):
        return f"{name}: {words}"
    if words.startswith("Input "):
        return f"{name} is {value!r:.80}; it {words.removeprefix('Input ')}"
    return f"{name} is {value!r:.80}: {words}"


def _counted(side: str, count: int) -> str:
    return f"{side} {count} character{'' if count == 1 else 's'}"
