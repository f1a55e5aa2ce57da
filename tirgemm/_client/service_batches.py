"""``ServiceBatches``: batches of a service, submitted, looked at, followed, cancelled."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tirgemm._client.arguments import Document, SearchWish, as_gemm, device_name, documents
from tirgemm._client.http import ServiceConnection
from tirgemm._client.server_trust import ServerTrust
from tirgemm._client.watch import watch
from tirgemm.device import Device
from tirgemm.errors import ServiceError
from tirgemm.gemm import Gemm, regime_named


class ServiceBatches:
    """What ``Client`` does with batches. Methods raise ServiceError and ServiceUnreachable."""

    _session: ServiceConnection
    _server: ServerTrust

    def submit_batch(
        self,
        gemms: Sequence[Gemm | str],
        *,
        device: Device | str | None = None,
        regime: str = "sustained",
        effort: str | None = None,
        budget: Mapping[str, float] | None = None,
        queue: Mapping[str, Any] | None = None,
        seed: int | None = None,
        other_devices: bool = False,
    ) -> Document:
        """Ask for the kernels of up to 1,000 problems without waiting; the batch document.

        ``budget`` (``trials``, ``seconds``) is of all of them together, and ``queue`` (``priority``, ``window``) and
        ``other_devices`` hold for each.
        """
        regime_named(regime)
        self._server.check()
        body = {
            "gemms": [str(as_gemm(gemm, None, None, {})) for gemm in gemms],
            "device": device_name(device),
            "regime": regime,
        } | SearchWish(effort, budget, seed, queue=queue, other_devices=other_devices).to_json()
        key = secrets.token_hex(16)
        batch = self._session.request("POST", "/v1/batches", body=body, idempotency_key=key).body
        if not isinstance(batch.get("id"), str) or not isinstance(batch.get("items"), list):
            raise ServiceError(f"{self._session.url} accepted a batch but named none: {batch!r:.200}")
        return batch

    def batch(self, batch_id: str) -> Document:
        """The batch document."""
        return self._session.request("GET", f"/v1/batches/{batch_id}").body

    def batches(self, limit: int = 20) -> list[Document]:
        """The newest batches of the service without their items, at most ``limit`` (up to 100)."""
        page = self._session.request("GET", "/v1/batches", params={"limit": limit}).body
        return documents(page, "batches", self._session.url)

    def cancel_batch(self, batch_id: str) -> Document:
        """Cancel the jobs that a batch made; the batch document."""
        return self._session.request("DELETE", f"/v1/batches/{batch_id}").body

    def batch_progress(self, batch_id: str) -> Iterator[Document]:
        """The batch without its items, now and whenever one of its problems changes its state, to its end."""
        for received in watch(self._session, batch_id, of="batches"):
            yield received.data
