"""Plain requests to the API server, for tests that make hundreds: a kubectl each would take minutes."""

import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from cluster.apiserver import ApiServer

Json = dict[str, Any]

RESOURCES = "/apis/inference.disagg.io/v1alpha1/namespaces/{namespace}/disaggregatedinferences"


@dataclass(frozen=True)
class Answer:
    """What the API server said: the HTTP code, the body, and its warnings."""

    code: int
    body: Json
    warnings: tuple[str, ...]

    @property
    def message(self) -> str:
        """The sentence of an error; empty for a success."""
        return str(self.body.get("message", "")) if self.code >= 400 else ""


@dataclass(frozen=True)
class Rest:
    """The API server, asked as its administrator."""

    server: ApiServer

    def ask(self, method: str, path: str, body: Json | None = None, kind: str = "application/json") -> Answer:
        """One request. An error's code is an answer, not an exception."""
        pki = self.server.plane.pki
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(pki / "kubelet-client.crt", pki / "kubelet-client.key")
        request = urllib.request.Request(  # noqa: S310  # an https URL of our own making
            self.server.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": kind},
        )
        try:
            with urllib.request.urlopen(request, context=context, timeout=30) as reply:  # noqa: S310
                return Answer(reply.status, json.load(reply), tuple(reply.headers.get_all("Warning", [])))
        except urllib.error.HTTPError as error:
            return Answer(error.code, json.load(error), tuple(error.headers.get_all("Warning", [])))

    def create(self, resource: Json, namespace: str, *, dry_run: bool = False) -> Answer:
        """Create a DisaggregatedInference under strict decoding, as `kubectl --validate=strict` does."""
        query = "?fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
        return self.ask("POST", RESOURCES.format(namespace=namespace) + query, resource)

    def update(self, resource: Json, namespace: str) -> Answer:
        """Replace a DisaggregatedInference under strict decoding."""
        path = f"{RESOURCES.format(namespace=namespace)}/{resource['metadata']['name']}?fieldValidation=Strict"
        return self.ask("PUT", path, resource)
