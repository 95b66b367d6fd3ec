"""A stand-in for the model hub, on the node's own address: it serves one model folder and asks for a token.

The real hub cannot be reached from a test. What is real is the engine's own download code, pointed here by
HF_ENDPOINT; this server speaks the few calls that it makes.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = hashlib.sha1(b"one commit", usedforsecurity=False).hexdigest()


class _Hub(BaseHTTPRequestHandler):
    """Answers metadata and file requests of one repository."""

    protocol_version = "HTTP/1.1"

    def __init__(self, *args: Any, folder: Path, repository: str, token: str, **kwargs: Any) -> None:
        self.folder = folder
        self.repository = repository
        self.token = token
        super().__init__(*args, **kwargs)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, *args: Any) -> None:
        """Stay quiet; the test looks at results."""

    def _answer(self, *, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        if self.headers.get("Authorization") != f"Bearer {self.token}":
            return self._send(401, b'{"error": "a token is needed"}', with_body=with_body)
        if path.startswith(f"api/models/{self.repository}"):
            listing: Any = self._tree() if "/tree/" in path else self._info()
            return self._send(200, json.dumps(listing).encode(), with_body=with_body)
        file = self.folder / path.rsplit("/", 1)[-1]
        if path.startswith(f"{self.repository}/resolve/") and file.is_file():
            return self._send_file(file, with_body=with_body)
        return self._send(404, b'{"error": "not found"}', {"X-Error-Code": "EntryNotFound"}, with_body=with_body)

    def _files(self) -> list[Path]:
        return sorted(path for path in self.folder.iterdir() if path.is_file())

    def _info(self) -> dict[str, Any]:
        siblings = [{"rfilename": path.name} for path in self._files()]
        return {"id": self.repository, "modelId": self.repository, "sha": COMMIT, "siblings": siblings, "tags": []}

    def _tree(self) -> list[dict[str, Any]]:
        return [
            {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": _etag(path)}
            for path in self._files()
        ]

    def _send_file(self, path: Path, *, with_body: bool) -> None:
        self.send_response(200)
        for name, value in {"ETag": f'"{_etag(path)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "none"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(path.stat().st_size))
        self.end_headers()
        if with_body:
            with path.open("rb") as source:
                while chunk := source.read(1 << 20):
                    self.wfile.write(chunk)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None, *, with_body: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", COMMIT)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)


def _etag(path: Path) -> str:
    facts = f"{path.name} {path.stat().st_size}"
    return hashlib.sha1(facts.encode(), usedforsecurity=False).hexdigest()


@contextmanager
def serving(folder: Path, repository: str, token: str, address: str) -> Iterator[str]:
    """Serve `folder` as `repository` on `address` (an IP of this machine that pods reach) while the block runs."""
    server = ThreadingHTTPServer((address, 0), partial(_Hub, folder=folder, repository=repository, token=token))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{address}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)
