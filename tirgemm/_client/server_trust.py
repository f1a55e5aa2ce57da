"""Trust on first use of a service's signing key, as ssh has it for hosts: compared before any work is asked for."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from tirgemm._client.api_key import LOG
from tirgemm._client.http import ServiceConnection
from tirgemm._client.own_service import own_service_keys
from tirgemm._client.service_documents import documents
from tirgemm.artifact import Trust
from tirgemm.artifact.known_servers import KnownServers, address
from tirgemm.artifact.revocations import MAX_BYTES, KnownRevocations, signers
from tirgemm.artifact.sign import is_public_key, public_bytes
from tirgemm.errors import ServiceError, UntrustedArtifact

# How long a client goes on with a list that it has just asked for.
REVOCATION_SECONDS = 60.0
# Keys that were accepted for an address and could not be written to the file of known servers.
_UNWRITTEN: dict[str, frozenset[str]] = {}


class ServerTrust:
    """Whose artifacts are accepted from the service of ``session``, which says with ``shown()`` what it signs with.

    Where a caller ``given`` a Trust, that one and nothing else; otherwise the user's keys and those that were accepted
    for this address, and trust on first use.
    """

    def __init__(self, session: ServiceConnection, given: Trust | None) -> None:
        self.url = session.url
        self._session = session
        self._asked_at = -math.inf
        self.trust = given or _trust_in(self.url)
        self._first_use = given is None
        self._checked = False

    def shown(self, *, quick: bool = False) -> tuple[str, ...]:
        """The public keys that the service signs with; ``quick`` gives a service that is away up at once."""
        shown = documents(self._session.request("GET", "/v1/keys", quick=quick).body, "keys", self.url, {})
        return tuple(key for entry in shown if is_public_key(key := entry.get("key")))

    def check(self, *, again: bool = False, quick: bool = False) -> None:
        """Compare what the service signs with with what is trusted, once or ``again``; a caller's own Trust is not
        compared.

        The user's own service is accepted, told from the log, and remembered. Raises UntrustedArtifact for any other
        whose key is not trusted, with the line that accepts it.
        """
        if not self._first_use or (self._checked and not again):
            return
        self.trust = _trust_in(self.url)
        shown = self.shown(quick=quick)
        if not self.trust.keys & set(shown):
            own = own_service_keys(self.url) & set(shown)
            known = KnownServers.default().keys(self.url)
            if not own:
                raise UntrustedArtifact(_refusal(self.url, shown, known))
            instead = f" (until now {_listed(known)})" if known else ""
            LOG.warning("trusting the key of your own service at %s: %s%s", address(self.url), _listed(own), instead)
            self._remember(own, "your own service")
        self._checked = True
        self.learn_revocations(quick=quick, again=again)

    def learn_revocations(self, *, quick: bool = False, again: bool = False) -> None:
        """Ask the service, once in REVOCATION_SECONDS or ``again``, for its list of revocations, and believe one that a
        trusted key has signed; of an accepted service its new keys are accepted, told from the log.

        Where there is no answer the known list holds. Raises UntrustedArtifact for a list that is not to be believed;
        where a caller's Trust is without the service's keys it is passed over.
        """
        if time.monotonic() - self._asked_at < REVOCATION_SECONDS and not again:
            return
        try:
            before = KnownRevocations.default().known(self.url)
            tag = "" if before is None else f'"{hashlib.sha256(before).hexdigest()}"'
            # Empty where it has none, or still the one that is known.
            data = self._session.download("/v1/revocations", MAX_BYTES, if_none_match=tag, quick=quick)
        except ServiceError as error:
            LOG.debug("no list of revocations: %s", error)
            data = b""
        if data:
            self._believe(data)
        # Only now: a list that is not to be believed is refused at the next request, too.
        self._asked_at = time.monotonic()

    def _believe(self, data: bytes) -> None:
        """Keep a list, and the new keys of an accepted service. Raises UntrustedArtifact."""
        if not self._first_use and not self.trust.keys & signers(data):
            LOG.warning("%s revokes keys or artifacts, by a list that no key you gave has signed", address(self.url))
            return
        fresh = KnownRevocations.default().keep(self.url, data, self.trust.keys)
        accepted = _accepted(self.url)
        new = set(fresh.keys) - self.trust.keys
        if self._first_use and accepted and new:
            vouched = "for which a key that you accepted vouches"
            LOG.warning("%s signs with a new key, %s, %s", address(self.url), _listed(new), vouched)
            self._remember(accepted | new)

    def _remember(self, keys: frozenset[str], comment: str = "") -> None:
        """Trust keys of the service from now on; where their file cannot be written in this process alone."""
        try:
            self._write(keys, comment)
        except OSError as error:
            _UNWRITTEN[address(self.url)] = keys
            LOG.warning("they are trusted by this process alone, as they cannot be remembered: %s", error)
        self.trust = _trust_in(self.url)

    def _write(self, keys: frozenset[str], comment: str = "") -> None:
        KnownServers.default().accept(self.url, keys, comment)
        _UNWRITTEN.pop(address(self.url), None)

    def accept(self, keys: Sequence[str], *, replace: bool = False) -> tuple[str, ...]:
        """Trust ``keys`` of the service, by default all that it shows, from now on, and return them.

        They are remembered for the address; where others were accepted for it before, only with ``replace``, and
        instead of those. With a caller's Trust they are added to that. Raises UntrustedArtifact, and InvalidRequest for
        what is no key, before the service is asked.
        """
        for key in keys:
            public_bytes(key)
        shown, known = self.shown(), KnownServers.default().keys(self.url) if self._first_use else frozenset()
        for key in keys:
            if key not in shown:
                raise UntrustedArtifact(f"{address(self.url)} signs with {_listed(shown) or 'no key'}, not with {key}")
        accepted = tuple(keys) or tuple(shown)
        if not accepted or (known and not replace and not known & set(accepted)):
            raise UntrustedArtifact(_refusal(self.url, accepted, known))
        if self._first_use:
            self._write(frozenset(accepted))
            self.trust = _trust_in(self.url)
        else:
            for key in accepted:
                self.trust = self.trust.add(key, self.url)
        return accepted


def _trust_in(url: str) -> Trust:
    trust = Trust.of_user()
    return replace(trust, keys=trust.keys | _accepted(url))


def _accepted(url: str) -> frozenset[str]:
    return KnownServers.default().keys(url) | _UNWRITTEN.get(address(url), frozenset())


def _listed(keys: Collection[str]) -> str:
    return ", ".join(sorted(keys))


def _refusal(url: str, shown: Sequence[str], known: frozenset[str]) -> str:
    """Why the keys that a service shows are refused, and the line to paste that accepts them."""
    url = address(url)
    if not shown:
        return f"{url} shows no signing key, so that nothing that it serves can be trusted; is it a tirgemm service?"
    if known:
        return (
            f"THE KEY OF {url} HAS CHANGED: you accepted {_listed(known)}, and now it signs with {_listed(shown)}; "
            "somebody else may be answering there. No work was asked for. If whoever runs it says that the new key is "
            f"right, accept it: tirgemm trust add {url} {shown[0]} --replace"
        )
    return (
        f"{url} signs with {_listed(shown)}, which you have not accepted; no work was asked for. Compare the key with"
        f" whoever runs the service, then accept it: tirgemm trust add {url} {shown[0]}"
    )
