"""``Client``: ask a tirgemm service for a kernel and get a callable back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

from tirgemm import artifact
from tirgemm._client.api_key import key_header
from tirgemm._client.arguments import (
    SearchWish,
    Trusted,
    Wait,
    as_gemm,
    as_trust,
    check_seconds,
    deadline_of,
    device_name,
    listing_filters,
    request_body,
)
from tirgemm._client.artifact_source import ArtifactSource
from tirgemm._client.cache import LOG, Cache
from tirgemm._client.http import ServiceConnection
from tirgemm._client.kernel_index import CachedKernel, KernelIndex
from tirgemm._client.locked_artifacts import LockedArtifacts
from tirgemm._client.requested_kernel import TAKES_DEFAULT, RequestedKernel, is_default
from tirgemm._client.resource_path import is_id, path_of
from tirgemm._client.server_trust import ServerTrust
from tirgemm._client.service_batches import ServiceBatches
from tirgemm._client.service_documents import KERNEL, Document, documents
from tirgemm._client.service_jobs import ServiceJobs
from tirgemm._client.watch import kernel_of, watch
from tirgemm._terminal.progress_view import both, python_view
from tirgemm._user_folders import user_cache
from tirgemm.artifact import Kernel, Trust
from tirgemm.artifact.closing import Closing
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest, MismatchedArtifact, NotCached, ServiceError, ServiceUnreachable
from tirgemm.events import EventHandler, FallbackStored, Phase
from tirgemm.gemm import Gemm, Range, regime_named

if TYPE_CHECKING:
    import httpx


@dataclass(frozen=True, slots=True)
class Submitted:
    """The answer to a request: the ``kernel`` document, or the ``job`` that tunes it and what to use meanwhile."""

    kernel: Document | None = None
    job: Document | None = None
    fallback: Document | None = None

    @property
    def job_id(self) -> str:
        """The job's id; empty where the kernel is there."""
        return str(self.job["id"]) if self.job else ""


class Client(ServiceJobs, ServiceBatches, LockedArtifacts, Closing):
    """A tirgemm service at ``url``.

    ``trust`` says whose signatures are accepted: a key (``ed25519:...``), several, a file of keys, or a Trust. None is
    whom the user trusts, and trust on first use: before anything is asked of the service, its key is compared with
    those that the user trusts and with the one that was accepted for this address; the user's own service on this
    machine is accepted, remembered and logged; any other is refused with UntrustedArtifact, whose text is what to paste
    to accept it. ``cache_dir`` is where artifacts are kept by their SHA-256 (default: the user's cache folder).
    ``timeout`` bounds every read in seconds; a service that is away is retried for ``patience`` seconds, but for a
    kernel that is in the cache: that is served at once, and the log of ``tirgemm.client`` told its age. ``offline``
    asks the service nothing and serves from the cache alone. ``key`` is the API key (default: TIRGEMM_KEY); over plain
    HTTP it is sent to loopback only, unless TIRGEMM_KEY_OVER_HTTP is 1. Methods raise InvalidRequest (also for what is
    no id), ServiceError (with the problem document), ServiceUnreachable and, offline, NotCached, and may be called from
    several threads.
    """

    def __init__(
        self,
        url: str,
        *,
        trust: Trusted = None,
        cache_dir: str | Path | None = None,
        timeout: float = 30.0,
        patience: float = 30.0,
        offline: bool = False,
        key: str | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        check_seconds("timeout", timeout, positive=True)
        check_seconds("patience", patience)
        self.cache = Cache(Path(cache_dir) if cache_dir else user_cache() / "artifacts")
        self.index = KernelIndex(self.cache.folder / "index")
        self.offline, self.patience = offline, patience
        self._session = ServiceConnection(
            url, timeout=timeout, patience=patience, offline=offline, transport=transport, key=key_header(url, key)
        )
        self._server = ServerTrust(self._session, None if trust is None else as_trust(trust))
        self._artifacts = ArtifactSource(self._session, self._server, self.cache, self.index)

    @property
    def trust(self) -> Trust:
        """Whose artifacts this client accepts."""
        return self._server.trust

    def close(self) -> None:
        self._session.close()

    def kernel(
        self,
        m: SupportsIndex | Range | Gemm | str,
        n: SupportsIndex | None = None,
        k: SupportsIndex | None = None,
        *,
        device: Device | str | None = None,
        regime: str = "sustained",
        wait: Wait = True,
        on_event: EventHandler | None = None,
        progress: bool | None = None,
        effort: str | None = None,
        budget: Mapping[str, float] | None = None,
        seed: int | None = None,
        retune: bool = False,
        verify: bool = True,
        queue: Mapping[str, Any] | None = None,
        other_devices: bool = False,
        check_device: bool = True,
        **fields: Any,
    ) -> Kernel:
        """The kernel for ``m, n, k`` (and Gemm's other fields by name), or for a Gemm or its text, ready to call.

        ``device``: the device of this machine by default; a name or key that the service knows otherwise. ``wait``:
        True waits for the tuned kernel; a number of seconds takes the default kernel if tuning takes longer;
        ``"fallback"`` takes the default kernel as soon as it is there. ``effort`` (``none``, ``quick``, ``standard``,
        ``exhaustive``), ``budget`` (``trials``, ``seconds``: at most) and ``seed`` are the search's, the service's own
        by default; more effort than was spent on the kernel that is there goes on with the search, or more ``budget``
        where that had not come to its end, and so does ``retune``, by up to ``trials`` further candidates. ``queue``
        (``priority``, ``window`` such as "22:00-06:00" in UTC) says how a new job waits. ``other_devices`` has
        what was shipped for other devices of the architecture tried too, verified and timed on the service's device;
        what is chosen of it says so (``other_device`` of its document). ``on_event`` sees the job's events, and
        ``download``; ``progress`` shows them, in a notebook by itself. ``verify=False`` takes a kernel without a passed
        certificate too, such as a cross-compiled build. ``check_device=False`` loads what cannot run here.

        A service that does not answer is made up for by the cache, but where ``retune`` is asked for. Raises
        InvalidGemm, UntrustedArtifact, CorruptArtifact, MismatchedArtifact, UnverifiedArtifact, IncompatibleArtifact,
        Cancelled, NotCached, ServiceError.
        """
        gemm, device = as_gemm(m, n, k, fields), device_name(device)
        search = SearchWish(effort, budget, seed, retune, verify, queue, other_devices)
        with python_view(str(gemm), progress, phase=Phase.QUEUED) as view:
            tell = both(view, on_event)
            document = self._document(gemm, device, regime, wait, tell, search)
            data = self.package(document, gemm, device=device, regime=regime, verify=verify, on_event=tell)
        return artifact.load(data, trust=self.trust, check_device=check_device)

    def document(
        self,
        gemm: Gemm | str,
        *,
        device: Device | str | None = None,
        regime: str = "sustained",
        wait: Wait = True,
        on_event: EventHandler | None = None,
        effort: str | None = None,
        budget: Mapping[str, float] | None = None,
        seed: int | None = None,
        retune: bool = False,
        verify: bool = True,
        queue: Mapping[str, Any] | None = None,
        other_devices: bool = False,
    ) -> Document:
        """The kernel document that ``kernel`` loads. ``verify=False`` accepts a build that nobody ran."""
        search = SearchWish(effort, budget, seed, retune, verify, queue, other_devices)
        problem, tell = as_gemm(gemm, None, None, {}), on_event or (lambda _event: None)
        return self._document(problem, device, regime, wait, tell, search)

    def cached(
        self,
        gemm: Gemm | str,
        *,
        device: Device | str | None = None,
        regime: str = "sustained",
        verify: bool = True,
        other_devices: bool = False,
    ) -> CachedKernel | None:
        """What the cache has for a problem: its document, where it came from and how old it is. Nothing is sent.

        What another service gave counts where this client trusts who signed it.
        """
        what = as_gemm(gemm, None, None, {}), device_name(device), regime_named(regime)
        counted: dict[str, Any] = {"verified": verify, "other_devices": other_devices}
        return self.index.find(*what, self.url, **counted, usable=self._artifacts.serves)

    def package(
        self,
        document: Document,
        gemm: Gemm,
        *,
        device: Device | str | None = None,
        regime: str = "sustained",
        verify: bool = True,
        on_event: EventHandler | None = None,
    ) -> bytes:
        """The signed artifact of a kernel document, downloaded unless cached.

        Refused unless its hash and signature hold, it is for the problem, device and regime that were asked for, its
        role is that of the document, and it has a passed certificate of its kernel or ``verify`` is False.
        """
        requested = RequestedKernel(gemm, device_name(device), regime_named(regime), verify)
        return self._artifacts.package(document, requested, on_event)

    def artifact(self, sha256: str, *, on_event: EventHandler | None = None) -> bytes:
        """The bytes of an artifact, from the cache or downloaded: whole, by their hash, but signed by whomever.

        Only what ``package`` has checked is kept in the cache. CorruptArtifact if their hash is not this.
        """
        return self._artifacts.unchecked(sha256, on_event)

    def kernels(
        self,
        limit: int = 100,
        *,
        gemm: Gemm | str | None = None,
        device: Device | str | None = None,
        regime: str | None = None,
        quick: bool = False,
    ) -> list[Document]:
        """The newest kernels of the service, at most ``limit``; where given only those of a problem, device, regime.

        With ``quick`` a service that is away is given up within a second or two.
        """
        wanted = listing_filters(gemm, device) | ({"regime": regime} if regime is not None else {})
        listing: list[Document] = []
        after: str | None = ""
        while after is not None and len(listing) < limit:
            params = wanted | {"limit": min(limit - len(listing), 100), "after": after}
            page = self._session.request("GET", "/v1/kernels", params=params, quick=quick).body
            kernels = documents(page, "kernels", self.url, KERNEL)
            listing += kernels
            after = page.get("next") if kernels else None
        return listing[:limit]

    def kernel_document(self, kernel_id: str) -> Document:
        """The document of one kernel by its id."""
        return self._session.document("GET", path_of("kernels", kernel_id), KERNEL)

    def delete(self, kernel_id: str) -> None:
        """Delete a kernel from the service; what was measured for it stays, and makes the next one quick."""
        try:
            self._session.request("DELETE", path_of("kernels", kernel_id))
        except ServiceError as error:
            if not (error.repeated and error.problem.get("code") == "kernel_not_found"):
                raise

    def pin(self, kernel_id: str, *, pinned: bool = True) -> Document:
        """Pin a kernel, so that it is the answer whatever is tuned later, or unpin it; the kernel document."""
        return self._session.document("PUT" if pinned else "DELETE", path_of("kernels", kernel_id, "/pin"), KERNEL)

    def submit(
        self,
        gemm: Gemm | str,
        *,
        device: Device | str | None = None,
        regime: str = "sustained",
        effort: str | None = None,
        budget: Mapping[str, float] | None = None,
        seed: int | None = None,
        retune: bool = False,
        verify: bool = True,
        queue: Mapping[str, Any] | None = None,
        other_devices: bool = False,
        prefer_wait: int | None = 0,
    ) -> Submitted:
        """Ask without waiting: the kernel where the service has it, else the job that tunes it.

        ``prefer_wait`` is how many seconds the service may wait for the tuned kernel; None: as long as it waits for the
        fallback by itself.
        """
        search = SearchWish(effort, budget, seed, retune, verify, queue, other_devices)
        return self._submit(request_body(as_gemm(gemm, None, None, {}), device, regime, search), prefer_wait)

    def meta(self) -> Document:
        """What the service says about itself: version, signing key, devices."""
        return self._session.request("GET", "/v1/meta").body

    def keys(self) -> tuple[str, ...]:
        """The public keys that the service signs with. Whether to trust them is for the user to decide."""
        return self._server.shown()

    def check_server(self) -> None:
        """Compare the service's key with those that are trusted, as every request for work does first, once a client.

        A client that was given whom to trust compares nothing before it loads. Raises UntrustedArtifact.
        """
        self._server.check(again=True)

    def trust_server(self, *keys: str, replace: bool = False) -> tuple[str, ...]:
        """Trust the service's keys from now on (only ``keys``, where any are given) and return them.

        They are remembered for this address; by a client that was given a file of keys, in that file. Raises
        UntrustedArtifact where the service does not sign with one of ``keys``, and, unless they are to ``replace``
        them, where others were accepted for this address before.
        """
        return self._server.accept(keys, replace=replace)

    def _document(
        self, gemm: Gemm, device: Device | str | None, regime: str, wait: Wait, tell: EventHandler, search: SearchWish
    ) -> Document:
        deadline, body = deadline_of(wait), request_body(gemm, device, regime, search)
        usable: dict[str, Any] = {"regime": regime, "verify": search.verify, "other_devices": search.other_devices}
        cached = None if search.retune else self.cached(gemm, device=body["device"], **usable)
        if self.offline:
            return self._offline(cached, body)
        try:
            answer = self._ask(body, wait, quick=cached is not None)
            wants_tuned = wait is True and search.verify and search.effort != "none"
            if wants_tuned and is_default(answer.kernel):
                answer = self._submit(body, None)  # the worker may be starting, as in _ask
            if wants_tuned and is_default(answer.kernel):
                raise MismatchedArtifact(
                    f"{self.url} answered a request for a tuned kernel of {gemm} with the default kernel, as where no "
                    f"worker has the device; {TAKES_DEFAULT} takes it"
                )
            if answer.kernel is not None:
                return answer.kernel
            return self._follow(answer, wait, deadline, tell)
        except ServiceUnreachable as error:
            if cached is None:
                raise
            LOG.warning("%s; serving %s", error, cached)
            return cached.document

    def _ask(self, body: Document, wait: Wait, *, quick: bool) -> Submitted:
        """The kernel or the job; at once where the job is to be followed, so that its events are seen from the first
        on."""
        try:
            return self._submit(body, 0 if wait is True else None, quick=quick)
        except ServiceError as error:
            if wait is not True or error.problem.get("code") != "device_unavailable":
                raise
        # The worker may be starting: who does not insist on an answer at once is let wait for it.
        return self._submit(body, None)

    def _submit(self, body: Document, prefer_wait: int | None, *, quick: bool = False) -> Submitted:
        self._server.check(quick=quick)
        once = "retune" in body  # any other request is answered by what it made before
        answer = self._session.request(
            "POST", "/v1/kernels", body=body, prefer_wait=prefer_wait, quick=quick, once=once
        )
        if answer.status != 202:
            return Submitted(kernel=answer.body)
        job = answer.body.get("job")
        if not isinstance(job, dict) or not is_id(job.get("id")):
            raise ServiceError(f"{self.url} accepted the request but named no job: {answer.body!r:.200}")
        return Submitted(job=job, fallback=answer.body.get("fallback"))

    def _offline(self, cached: CachedKernel | None, body: Document) -> Document:
        """The document of what the cache has, where nothing may be sent."""
        what = f"{body['gemm']} on {body['device']} ({body['regime']})"
        if "retune" in body:
            raise InvalidRequest(f"offline, a client cannot have {what} tuned again; leave out offline or retune")
        if cached is None:
            key = Gemm.parse(body["gemm"]), body["device"], body["regime"], self.url
            counted: dict[str, Any] = {"verified": "verify" not in body, "other_devices": "other_devices" in body}
            other = self.index.find(*key, **counted, usable=self._artifacts.has)
            if other is not None:
                raise self._artifacts.not_served(other, what)
            raise NotCached(
                f"no kernel for {what} is in the cache {self.cache.folder}; get it once while {self.url} answers"
            )
        LOG.info("offline: serving %s", cached)
        return cached.document

    def _follow(self, answer: Submitted, wait: Wait, deadline: float, tell: EventHandler) -> Document:
        """The kernel document that a job ends with, or its fallback where ``wait`` says so."""
        if wait == "fallback" and answer.fallback:
            return answer.fallback
        job_id = answer.job_id
        for received in watch(self._session, job_id, 0, deadline):
            tell(event := received.event)
            meanwhile = event.kernel if isinstance(event, FallbackStored) else received.data.get("fallback")
            if wait == "fallback" and meanwhile:
                return self._kernel(meanwhile)
        job = self.job(job_id)
        kernel = self._kernel(kernel_of(job, job_id))
        if job.get("status") == "done" and kernel.get("role") == "fallback" and job.get("effort") != "none":
            raise ServiceError(f"job {job_id} is done, but with the default kernel in place of a tuned one", job)
        return kernel

    def _kernel(self, kernel: Document | str) -> Document:
        """A kernel document that came whole, or by its id."""
        if isinstance(kernel, dict):
            return kernel
        if not is_id(kernel):
            raise ServiceError(f"{self.url} named the kernel {kernel!r:.80}, which is no id; is it a tirgemm service?")
        return self.kernel_document(kernel)
