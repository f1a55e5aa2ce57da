"""Security scheme of the OpenAPI document: the key, the scope of each operation, and how it is refused."""

from __future__ import annotations

from typing import Any

from tirgemm.service.access.scopes import required_scope
from tirgemm.service.http.problems import MEDIA_TYPE

SCHEME = "apiKey"
_DESCRIPTION = "An API key (`tirgemm keys create`); off on loopback until there is a key."
_REFUSALS = {
    "401": ("No valid key.", {"WWW-Authenticate": "string"}),
    "403": ("The key's scope is too small, or the object is another key's.", {}),
    "429": ("The key is over its rate limit or a quota.", {"Retry-After": "integer"}),
}


def describe_security(schema: dict[str, Any]) -> dict[str, Any]:
    """The document with the scheme, and for every operation that takes a key its scope and its 401, 403 and 429."""
    schemes = schema.setdefault("components", {}).setdefault("securitySchemes", {})
    schemes[SCHEME] = {"type": "http", "scheme": "bearer", "description": _DESCRIPTION}
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            scope = required_scope(method.upper(), path)
            operation["security"] = [] if scope is None else [{SCHEME: [scope]}]
            if scope is None:
                continue
            for status, (description, headers) in _REFUSALS.items():
                operation["responses"][status] = {
                    "description": description,
                    "headers": {name: {"schema": {"type": kind}} for name, kind in headers.items()},
                    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
                }
    return schema
