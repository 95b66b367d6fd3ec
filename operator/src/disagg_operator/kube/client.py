"""The operator's client: a handful of calls on plain manifests, each with a time limit.

It stands on the asyncio side of the `kubernetes` package, which brings authentication and TLS. Manifests stay plain
dictionaries, so that no field is lost that this code does not know.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
from kubernetes.aio.client import ApiClient

from disagg_operator.api.names import FIELD_MANAGER
from disagg_operator.kube.errors import ApiError
from disagg_operator.kube.kinds import Kind, Manifest, kind_of

_TIMEOUT_SECONDS: Final = 15.0
_PAGE: Final = 100
_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
_JSON: Final = "application/json"

Query = list[tuple[str, str]]
_AS_US: Final[Query] = [("fieldManager", FIELD_MANAGER), ("force", "true")]
Observer = Callable[[str, int], None]


def _observe_nothing(method: str, status: int) -> None:
    """Without somebody who counts, calls are not counted."""


def _allow() -> None:
    """Without somebody who says when to stop, everything may be written."""


class KubeClient:
    """Calls to one API server. Raises ApiError; a missing object is None where one is read.

    `on_call` is told the method and the HTTP status of each call; 0 when nobody answered. `before_write` is called
    right before each write is sent, and may prevent it by not returning.
    """

    def __init__(self, api: ApiClient, on_call: Observer = _observe_nothing) -> None:
        self._api = api
        self._on_call = on_call
        self.before_write: Callable[[], None] = _allow

    async def __aenter__(self) -> Self:
        """Use the client for a block."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Close its connections."""
        await self._api.close()

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """One object, or None."""
        try:
            return await self._call("GET", kind.path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list(self, kind: Kind, namespace: str, selector: str = "", fields: str = "") -> list[Manifest]:
        """Objects that match a label and a field selector, apiVersion and kind filled in.

        An empty namespace means all of them. None where the kind is unknown.
        """
        selectors = {"labelSelector": selector, "fieldSelector": fields}
        query = [(key, value) for key, value in selectors.items() if value]
        try:
            answer = await self._call("GET", kind.path(namespace), query)
        except ApiError as error:
            if error.status == 404:
                return []
            raise
        return [{"apiVersion": kind.api_version, "kind": kind.kind, **item} for item in answer["items"]]

    async def walk(self, kind: Kind, namespace: str) -> AsyncGenerator[Manifest]:
        """All objects of a kind, without apiVersion and kind, with no more than a page of them in memory.

        An empty namespace means all of them. None where the kind is unknown.
        """
        rest = ""
        while True:
            query = [("limit", str(_PAGE)), *([("continue", rest)] if rest else [])]
            try:
                answer = await self._call("GET", kind.path(namespace), query)
            except ApiError as error:
                if error.status == 404:
                    return
                raise
            for item in answer["items"]:
                yield item
            rest = answer["metadata"].get("continue", "")
            if not rest:
                return

    async def is_served(self, kind: Kind) -> bool:
        """Whether the API server knows a kind."""
        prefix = "/api" if "/" not in kind.api_version else "/apis"
        try:
            answer = await self._call("GET", f"{prefix}/{kind.api_version}")
        except ApiError as error:
            if error.status in (403, 404):
                return False
            raise
        return any(resource["name"] == kind.plural for resource in answer.get("resources", []))

    async def apply(self, manifest: Manifest, uid: str = "") -> Manifest:
        """Server-side apply of a child. Fields of ours are taken back from whoever changed them.

        With a UID only that very object is changed: a new one of its name is a conflict (409).
        """
        metadata = manifest["metadata"]
        path = kind_of(manifest).path(metadata["namespace"], metadata["name"])
        body = {**manifest, "metadata": {**metadata, "uid": uid}} if uid else manifest
        return await self._call("PATCH", path, _AS_US, body, _APPLY)

    async def delete(self, manifest: Manifest) -> None:
        """Delete exactly this object: another one of its name, or a newer state of it, is left alone."""
        metadata = manifest["metadata"]
        preconditions = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        options = {"preconditions": preconditions, "propagationPolicy": "Background"}
        try:
            await self._call("DELETE", kind_of(manifest).path(metadata["namespace"], metadata["name"]), body=options)
        except ApiError as error:
            if error.status != 404:
                raise

    async def apply_status(self, kind: Kind, metadata: Manifest, status: Manifest) -> None:
        """Server-side apply of the status of exactly this object. Raises ApiError, 404 or 409 when it is gone."""
        name, namespace = metadata["name"], metadata["namespace"]
        body = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {"name": name, "namespace": namespace, "uid": metadata["uid"]},
            "status": status,
        }
        await self._call("PATCH", kind.path(namespace, name) + "/status", _AS_US, body, _APPLY)

    async def create(self, kind: Kind, namespace: str, body: Manifest, manager: str = FIELD_MANAGER) -> Manifest:
        """Create an object. Its fields are the manager's."""
        return await self._call("POST", kind.path(namespace), [("fieldManager", manager)], body)

    async def replace(self, kind: Kind, namespace: str, name: str, body: Manifest) -> Manifest:
        """Replace an object; its resourceVersion must still be the current one."""
        return await self._call("PUT", kind.path(namespace, name), [("fieldManager", FIELD_MANAGER)], body)

    async def _call(
        self, method: str, path: str, query: Query | None = None, body: Any = None, content_type: str = _JSON
    ) -> Manifest:
        headers = {"Accept": "application/json", "Content-Type": content_type}
        request = await self._api.param_serialize(
            method, path, query_params=query or [], header_params=headers, auth_settings=["BearerToken"]
        )
        method, url, headers, _, _ = request
        if method != "GET":
            self.before_write()
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                response = await self._api.call_api(method, url, headers, body, _request_timeout=_TIMEOUT_SECONDS)
                text = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            self._on_call(method, 0)
            raise ApiError(0, "Unreachable", f"the API server cannot be reached: {error!r}") from error
        self._on_call(method, response.status)
        if response.status >= 400:
            raise _api_error(response.status, text, response.headers.get("Retry-After"))
        answer: Manifest = json.loads(text)
        return answer


def _api_error(status: int, text: bytes, retry_after: str | None) -> ApiError:
    try:
        told = json.loads(text)
        reason, message = told.get("reason", ""), told.get("message", "")
    except (ValueError, AttributeError):
        reason, message = "", text.decode(errors="replace")[:500]
    wait = float(retry_after) if retry_after and retry_after.isdigit() else None
    return ApiError(status, reason, message, wait)
