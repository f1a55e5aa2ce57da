"""``tirgemm trust``: whose kernels the user accepts: the user's own keys, keys by themselves, and services' keys."""

from __future__ import annotations

import sys
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tirgemm._terminal import console
from tirgemm._terminal.console import Json
from tirgemm.errors import InvalidRequest, RevokedArtifact, UntrustedArtifact

if TYPE_CHECKING:
    from tirgemm.client import Client

PATIENCE_SECONDS = 5.0

app = console.command_group("Say whose kernels are accepted: those of your own key, of other keys, and of services.")


@app.command("list")
def list_keys(as_json: Json = False) -> None:
    """Every key that is accepted, and where that is written."""
    from tirgemm._user_folders import REVOCATIONS, SIGNING_KEY, user_data
    from tirgemm.artifact import Trust
    from tirgemm.artifact.known_servers import KnownServers
    from tirgemm.artifact.trust import own_keys

    servers, user = KnownServers.default(), Trust.default()
    assert user.path is not None
    own, folder = own_keys(user_data()), user_data()
    unread: set[str] = set()
    rows = [_row(unread, "own", key, "", "your own", folder / SIGNING_KEY) for key in own[:1]]
    rows += [_row(unread, "own", key, "", "your own, a former one", folder / REVOCATIONS) for key in own[1:]]
    rows += [_row(unread, "key", key, "", comment, user.path) for key, comment in user.comments().items()]
    rows += [_row(unread, "service", entry.key, entry.url, entry.comment, servers.path) for entry in servers.entries()]

    def show() -> None:
        if not rows:
            console.out.print(
                "no key is accepted yet; `tirgemm tune` makes one of yours, `tirgemm trust add` adds others"
            )
        for file, entries in groupby(rows, key=itemgetter("file")):
            console.out.print(file)
            for row in entries:
                words = (row["url"], row["key"], row["comment"], "REVOKED" if row["revoked"] else "")
                console.out.print("  " + "  ".join(filter(None, words)))

    console.emit(as_json, {"keys": rows}, show)
    for words in sorted(unread):
        console.err.print(words, style="yellow", markup=False, soft_wrap=True)


@app.command()
def add(
    what: Annotated[str, typer.Argument(metavar="URL|KEY", help="A service, or a key (ed25519:...) by itself.")],
    key: Annotated[
        str | None,
        typer.Argument(metavar="KEY", help="The service's key, as whoever runs it told you; else you are asked."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Accept it instead of the key that you accepted for this service before.")
    ] = False,
    comment: Annotated[str, typer.Option(help="Written behind a key that is added by itself.")] = "",
    as_json: Json = False,
) -> None:
    """Accept the key of a service, or a key by itself, from now on.

    A KEY behind URL is compared with the one that the service shows. Without it that one is shown, and you are asked.
    """
    from tirgemm.artifact import Trust

    if what.startswith("ed25519:"):
        if key is not None or replace:
            raise InvalidRequest(f"{what} is a key by itself: a second key and --replace belong behind a service's URL")
        trust = Trust.of_user().add(what, comment)
        _done(as_json, [what], "", f"{what} is accepted; written to {trust.path}")
        return
    if comment:
        raise InvalidRequest("--comment is for a key by itself; a service's line is known by its URL")
    _add_service(what, key, replace, as_json)


@app.command()
def remove(
    what: Annotated[str, typer.Argument(metavar="URL|KEY", help="A service, or a key (ed25519:...).")],
    as_json: Json = False,
) -> None:
    """Accept a key, or the keys of a service, no longer."""
    from tirgemm._user_folders import user_data
    from tirgemm.artifact import Trust
    from tirgemm.artifact.known_servers import KnownServers
    from tirgemm.artifact.sign import public_bytes
    from tirgemm.artifact.trust import own_keys

    gone = [entry.key for entry in KnownServers.default().forget(what)]
    if what.startswith("ed25519:"):
        public_bytes(what)
        gone += [what] if Trust.of_user().remove(what) else []
    if not gone and what in own_keys(user_data()):
        raise InvalidRequest(f"{what} is your own key, of {user_data()}; `tirgemm signing revoke` has it refused")
    if not gone:
        raise InvalidRequest(f"{what} is not among what you accept; `tirgemm trust list` shows that, and in which file")
    _done(as_json, sorted(set(gone)), "", f"{what} is accepted no longer")


def _add_service(url: str, key: str | None, replace: bool, as_json: bool) -> None:
    from tirgemm.artifact.revocations import KnownRevocations
    from tirgemm.client import Client

    if key is not None:
        KnownRevocations.default().refuse("the key", key)
    with Client(url, patience=PATIENCE_SECONDS) as client:
        keys = [key] if key is not None else _confirmed(client, replace, ask=sys.stdin.isatty() and not as_json)
        accepted = client.trust_server(*keys, replace=replace)
    _done(as_json, list(accepted), client.url, f"{client.url} is accepted with {', '.join(accepted)}")


def _confirmed(client: Client, replace: bool, *, ask: bool) -> tuple[str, ...]:
    """The keys that the service shows, once the user has said yes to them. Raises UntrustedArtifact."""
    shown = client.keys()
    listed = f"{client.url} signs with {', '.join(shown) or 'no key'}"
    if not ask:
        line = f"tirgemm trust add {client.url} {shown[0] if shown else 'KEY'}{' --replace' if replace else ''}"
        raise UntrustedArtifact(
            f"{listed}, and there is no terminal to ask you on; compare it with whoever runs the service, then: {line}"
        )
    console.err.print(f"{listed}\nCompare that with whoever runs the service.", soft_wrap=True)
    if not typer.confirm("Accept it from now on?", err=True):
        raise UntrustedArtifact(f"{client.url} is not accepted")
    return shown


def _row(unread: set[str], kind: str, key: str, url: str, comment: str, file: Path) -> dict[str, Any]:
    """A line of the list. Where a list of revocations cannot be read ``revoked`` is None, and why is in ``unread``."""
    from tirgemm.artifact.revocations import KnownRevocations

    try:
        KnownRevocations.default().refuse("the key", key)
        revoked: bool | None = False
    except RevokedArtifact:
        revoked = True
    except UntrustedArtifact as error:  # a list that cannot be read
        revoked = None
        unread.add(str(error))
    return {"kind": kind, "key": key, "url": url, "comment": comment, "file": str(file), "revoked": revoked}


def _done(as_json: bool, keys: list[str], url: str, words: str) -> None:
    document: dict[str, Any] = {"keys": keys, "url": url}
    console.emit(as_json, document, lambda: console.out.print(words))
