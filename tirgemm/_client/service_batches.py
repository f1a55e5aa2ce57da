"""``ServiceBatches``: batches of a service, submitted, looked at, followed, cancelled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tirgemm._client.arguments import SearchWish, as_gemm, device_name
from tirgemm._client.http import ServiceConnection
from tirgemm._client.resource_path import path_of
from tirgemm._client.server_trust import ServerTrust
from tirgemm._client.service_documents import BATCH, BATCH_SUMMARY, Document, checked, documents
from tirgemm._client.watch import watch
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm, regime_named


class ServiceBatches:
    """What ``Client`` does with batches. Methods raise InvalidRequest for what is no id, ServiceError and
    ServiceUnreachable."""

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
        if isinstance(gemms, (Gemm, str)):
            raise InvalidRequest(f"gemms is {str(gemms)!r:.80}; give a list of problems")
        self._server.check()
        body = {
            "gemms": [str(as_gemm(gemm, None, None, {})) for gemm in gemms],
            "device": device_name(device),
            "regime": regime,
        } | SearchWish(effort, budget, seed, queue=queue, other_devices=other_devices).to_json()
        return self._session.document("POST", "/v1/batches", BATCH, body=body, once=True)

    def batch(self, batch_id: str) -> Document:
        """The batch document."""
        return self._session.document("GET", path_of("batches", batch_id), BATCH)

    def batches(self, limit: int = 20) -> list[Document]:
        """The newest batches of the service without their items, at most ``limit`` (up to 100)."""
        page = self._session.request("GET", "/v1/batches", params={"limit": limit}).body
        return documents(page, "batches", self._session.url, BATCH_SUMMARY)

    def cancel_batch(self, batch_id: str) -> Document:
        """Cancel the jobs that a batch made; the batch document."""
        return self._session.document("DELETE", path_of("batches", batch_id), BATCH)

    def batch_progress(self, batch_id: str) -> Iterator[Document]:
        """The batch without its items, now and whenever one of its problems changes its state, to its end."""
        for received in watch(self._session, batch_id, of="batches"):
            yield checked(received.data, BATCH_SUMMARY, f"{self._session.url}{path_of('batches', batch_id, '/events')}")
