"""``Client``: ask a tirgemm service for a kernel and get a callable back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, SupportsIndex, TypeAlias

import httpx

from tirgemm import artifact
from tirgemm._cache import Cache, check_name, user_cache
from tirgemm._http import Event, Session
from tirgemm._watch import watch
from tirgemm.artifact import Kernel, Trust
from tirgemm.detect import device as detect_device
from tirgemm.device import Device
from tirgemm.errors import Cancelled, CorruptArtifact, InvalidRequest, ServiceError, UntrustedArtifact
from tirgemm.gemm import REGIMES, Gemm, Range

Document: TypeAlias = "dict[str, Any]"
Trusted: TypeAlias = "Trust | str | Path | Iterable[str] | None"
Wait: TypeAlias = "bool | float | Literal['fallback']"
OnEvent: TypeAlias = "Callable[[str, Document], None]"

MAX_ARTIFACT_BYTES = 256 * 2**20


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


class Client:
    """A tirgemm service at ``url``.

    ``trust`` says whose signatures are accepted: a key (``ed25519:...``), several, a file of keys, or a Trust;
    None is the user's trust file. ``cache_dir`` is where artifacts are kept by their SHA-256 (default: the user's cache
    folder). ``timeout`` bounds every read in seconds; a service that is away is retried for ``patience`` seconds.
    Methods raise ServiceError (with the problem document), and may be called from several threads.
    """

    def __init__(
        self,
        url: str,
        *,
        trust: Trusted = None,
        cache_dir: str | Path | None = None,
        timeout: float = 30.0,
        patience: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.trust = as_trust(trust)
        self.cache = Cache(Path(cache_dir) if cache_dir else user_cache() / "artifacts")
        self._session = Session(url, timeout=timeout, patience=patience, transport=transport)

    @property
    def url(self) -> str:
        return self._session.url

    def close(self) -> None:
        self._session.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # -- kernels -------------------------------------------------------------------------------

    def kernel(
        self,
        m: SupportsIndex | Range | Gemm | str,
        n: SupportsIndex | None = None,
        k: SupportsIndex | None = None,
        *,
        device: Device | str | None = None,
        regime: str = "sustained",
        wait: Wait = True,
        on_event: OnEvent | None = None,
        budget: Mapping[str, float] | None = None,
        seed: int | None = None,
        check_device: bool = True,
        **fields: Any,
    ) -> Kernel:
        """The kernel for ``m, n, k`` (and Gemm's other fields by name), or for a Gemm or its text, ready to call.

        ``device``: the device of this machine by default; a name or key that the service knows otherwise. ``wait``:
        True waits for the tuned kernel; a number of seconds takes the fallback if tuning takes longer; ``"fallback"``
        takes the fallback as soon as it is there. ``budget`` (``trials``, ``seconds``) and ``seed`` are the search's, the
        service's own by default. ``on_event(kind, data)`` sees the job's events, and ``download``.
        ``check_device=False`` loads what cannot run here.

        Raises InvalidGemm, UntrustedArtifact, CorruptArtifact, IncompatibleArtifact, Cancelled, ServiceError.
        """
        gemm = as_gemm(m, n, k, fields)
        document = self.document(
            gemm, device=device, regime=regime, wait=wait, on_event=on_event, budget=budget, seed=seed
        )
        return artifact.load(
            self.package(document, gemm, on_event=on_event), trust=self.trust, check_device=check_device
        )

    def document(
        self,
        gemm: Gemm | str,
        *,
        device: Device | str | None = None,
        regime: str = "sustained",
        wait: Wait = True,
        on_event: OnEvent | None = None,
        budget: Mapping[str, float] | None = None,
        seed: int | None = None,
        verify: bool = True,
    ) -> Document:
        """The kernel document that ``kernel`` loads. ``verify=False`` accepts a cross-compiled build that nobody ran."""
        deadline = _deadline(wait)
        answer = self.submit(
            gemm,
            device=device,
            regime=regime,
            budget=budget,
            seed=seed,
            verify=verify,
        )
        if answer.kernel is not None:
            return answer.kernel
        return self._follow(answer, wait, deadline, on_event or (lambda _kind, _data: None))

    def package(self, document: Document, gemm: Gemm, *, on_event: OnEvent | None = None) -> bytes:
        """The signed artifact of a kernel document: downloaded unless cached, its hash, signature and problem checked."""
        data = self.artifact(_artifact_sha256(document), on_event=on_event)
        try:
            found = artifact.read(data, self.trust).manifest.gemm
        except UntrustedArtifact as error:
            raise UntrustedArtifact(
                f"{error}: compare it with whoever runs {self.url}, then accept it with"
                f" `tirgemm get --url {self.url} --trust KEY ...`, Client(url, trust=KEY) or Client.trust_server()"
            ) from error
        if found != gemm:
            raise CorruptArtifact(f"{self.url} answered a request for {gemm} with a kernel for {found}")
        return data

    def artifact(self, sha256: str, *, on_event: OnEvent | None = None) -> bytes:
        """The bytes of an artifact, from the cache or downloaded into it. CorruptArtifact if their hash is not this."""
        found = self.cache.get(check_name(sha256))
        if found is not None:
            return found
        tell = on_event or (lambda _kind, _data: None)
        data = self._session.download(
            f"/v1/artifacts/{sha256}",
            MAX_ARTIFACT_BYTES,
            lambda done, total: tell("download", {"bytes": done, "total": total}),
        )
        self.cache.put(sha256, data)
        return data

    def kernels(self, limit: int = 100) -> list[Document]:
        """The newest kernels of the service, at most ``limit``."""
        found: list[Document] = []
        after: str | None = ""
        while after is not None and len(found) < limit:
            page = self._session.request(
                "GET", "/v1/kernels", params={"limit": min(limit - len(found), 100), "after": after}
            ).body
            found += page["kernels"]
            after = page["next"]
        return found

    def kernel_document(self, kernel_id: str) -> Document:
        """The document of one kernel by its id."""
        return self._session.request("GET", f"/v1/kernels/{kernel_id}").body

    # -- jobs ----------------------------------------------------------------------------------

    def submit(
        self,
        gemm: Gemm | str,
        *,
        device: Device | str | None = None,
        regime: str = "sustained",
        budget: Mapping[str, float] | None = None,
        seed: int | None = None,
        verify: bool = True,
        prefer_wait: int = 0,
    ) -> Submitted:
        """Ask without waiting: the kernel where the service has it, else the job that tunes it."""
        if regime not in REGIMES:
            raise InvalidRequest(f"regime is {regime!r}; it must be one of {', '.join(REGIMES)}")
        gemm = as_gemm(gemm, None, None, {})
        body: Document = {"gemm": str(gemm), "device": _device_name(device), "regime": regime}
        body |= {"budget": dict(budget)} if budget is not None else {}
        body |= {"seed": seed} if seed is not None else {}
        body |= {} if verify else {"verify": False}
        answer = self._session.request("POST", "/v1/kernels", body=body, prefer_wait=prefer_wait)
        if answer.status != 202:
            return Submitted(kernel=answer.body)
        job = answer.body.get("job")
        if not isinstance(job, dict) or not job.get("id"):
            raise ServiceError(f"{self.url} accepted the request but named no job: {answer.body!r:.200}")
        return Submitted(job=job, fallback=answer.body.get("fallback"))

    def job(self, job_id: str) -> Document:
        """The job document."""
        return self._session.request("GET", f"/v1/jobs/{job_id}").body

    def cancel(self, job_id: str) -> Document:
        """Cancel a job; the job document. What it has measured stays recorded."""
        return self._session.request("DELETE", f"/v1/jobs/{job_id}").body

    def events(self, job_id: str, after: int = 0) -> Iterator[Event]:
        """The job's events from behind the event ``after``, each once, until it is finished.

        A lost stream is resumed where it broke; where there is no stream (a proxy swallows it) the job is polled, and
        what is polled comes as an event of kind ``job`` with the job document.
        """
        return watch(self._session, job_id, after)

    # -- the service ---------------------------------------------------------------------------

    def meta(self) -> Document:
        """What the service says about itself: version, signing key, devices."""
        return self._session.request("GET", "/v1/meta").body

    def keys(self) -> tuple[str, ...]:
        """The public keys that the service signs with. Whether to trust them is for the user to decide."""
        found = self._session.request("GET", "/v1/keys").body.get("keys", [])
        return tuple(str(entry["key"]) for entry in found)

    def trust_server(self, key: str | None = None) -> tuple[str, ...]:
        """Trust the service's keys (only ``key``, where given) and return them.

        They are written to the file of keys that this client trusts (the user's trust file by default), if it is one.
        Nothing else ever adds a key. Raises UntrustedArtifact where the service does not sign with ``key``.
        """
        found = self.keys()
        if key is not None:
            if key not in found:
                raise UntrustedArtifact(f"{self.url} signs with {', '.join(found) or 'no key'}, not with {key}")
            found = (key,)
        for each in found:
            self.trust = self.trust.add(each, self.url)
        return found

    def _follow(self, answer: Submitted, wait: Wait, deadline: float, tell: OnEvent) -> Document:
        """The kernel document that a job ends with, or its fallback where ``wait`` says so."""
        if wait == "fallback" and answer.fallback:
            return answer.fallback
        job_id = answer.job_id
        for event in watch(self._session, job_id, 0, deadline):
            tell(event.kind, event.data)
            meanwhile = event.data.get("kernel" if event.kind == "fallback" else "fallback")
            if wait == "fallback" and meanwhile:
                return self._kernel(meanwhile)
        job = self.job(job_id)
        status, what = job["status"], f"job {job_id} for {job.get('gemm')}"
        if status == "cancelled":
            raise Cancelled(f"{what} was cancelled")
        if status == "failed":
            error = job.get("error") or {}
            raise ServiceError(f"{what} failed: {error.get('detail') or 'no reason given'}", error)
        found = job.get("kernel") or job.get("fallback")
        if not found:
            raise ServiceError(f"{what} is {status} and has no fallback yet; wait longer, or ask again later", job)
        return self._kernel(found)

    def _kernel(self, found: Document | str) -> Document:
        """A kernel document that came whole, or by its id."""
        return found if isinstance(found, dict) else self.kernel_document(found)


def as_gemm(
    m: SupportsIndex | Range | Gemm | str, n: SupportsIndex | None, k: SupportsIndex | None, fields: dict[str, Any]
) -> Gemm:
    """The Gemm of ``Client.kernel``'s arguments. Raises InvalidGemm, or InvalidRequest for a mixture of forms."""
    if isinstance(m, (Gemm, str)):
        if n is not None or k is not None or fields:
            raise InvalidRequest("give either a whole Gemm (or its text) or m, n, k and fields, not both")
        return m if isinstance(m, Gemm) else Gemm.parse(m)
    if n is None or k is None:
        raise InvalidRequest(f"m is {m}; n and k are missing")
    rows = str(m) if isinstance(m, Range) else _integer(m)
    return Gemm.from_json({"m": rows, "n": _integer(n), "k": _integer(k)} | fields)


def _integer(value: Any) -> Any:
    """NumPy's and other integers as int; anything else as it is, for Gemm to refuse."""
    return int(value) if hasattr(value, "__index__") and not isinstance(value, bool) else value


def as_trust(trust: Trusted) -> Trust:
    """A Trust from a key, keys, a file of keys or a Trust; the user's trust file for None."""
    if trust is None:
        return Trust.default()
    if isinstance(trust, Trust):
        return trust
    if isinstance(trust, Path):
        return Trust.file(trust)
    if isinstance(trust, str):
        return Trust.of(trust) if trust.startswith("ed25519:") else Trust.file(Path(trust))
    return Trust.of(*trust)


def _deadline(wait: Wait) -> float:
    if wait is True or wait == "fallback":
        return math.inf
    if isinstance(wait, (int, float)) and wait >= 0:
        return time.monotonic() + float(wait)
    raise InvalidRequest(f"wait is {wait!r}; it must be True, a number of seconds, or 'fallback'")


def _device_name(device: Device | str | None) -> str:
    """What the service is asked for: the class of a device that is here, the name of one that is not."""
    if isinstance(device, str):
        return device
    found = device if device is not None else detect_device()
    return found.key if found.present else found.name


def _artifact_sha256(document: Document) -> str:
    try:
        return str(document["artifact"]["sha256"])
    except (KeyError, TypeError) as error:
        raise ServiceError(f"the kernel document names no artifact: {document!r:.200}") from error
