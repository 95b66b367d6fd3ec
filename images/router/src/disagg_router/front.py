"""What clients talk to: checks the key, takes the body, runs the legs, answers."""

import asyncio
import logging
import time

from aiohttp import web

from disagg_router import errors, legs
from disagg_router.discovery import Discovery
from disagg_router.engines import Pool, Role
from disagg_router.intake import Intake, RefusedError
from disagg_router.keys import Keyring
from disagg_router.legs import Route
from disagg_router.metrics import Metrics
from disagg_router.prefill import PrefillLeg
from disagg_router.relay import Relay
from disagg_router.settings import Settings
from disagg_router.upstream import Outcome, Upstream

log = logging.getLogger(__name__)

# Methods that HTTP itself calls safe to repeat.
_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
_REFUSED_METHODS = frozenset({"CONNECT", "TRACE"})


class Front:
    """The handler of every request of a client."""

    def __init__(
        self,
        *,
        settings: Settings,
        pool: Pool,
        discovery: Discovery,
        keyring: Keyring,
        intake: Intake,
        prefill: PrefillLeg,
        relay: Relay,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._discovery = discovery
        self._keyring = keyring
        self._intake = intake
        self._prefill = prefill
        self._relay = relay
        self._metrics = metrics
        self._started = int(time.time())
        self._in_flight = 0
        self.draining = False
        self.idle = asyncio.Event()
        self.idle.set()

    @property
    def in_flight(self) -> int:
        """Requests being worked on."""
        return self._in_flight

    def _move_in_flight(self, step: int) -> None:
        self._in_flight += step
        self._metrics.in_flight.set(self._in_flight)
        if self._in_flight:
            self.idle.clear()
        else:
            self.idle.set()

    def app(self) -> web.Application:
        """The aiohttp application. Limits of body size are this module's, not aiohttp's."""
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self.handle)
        return app

    def why_not_ready(self) -> str:
        """Why no client should come here now; empty when all is well.

        Decode engines are not needed: while there is none, somebody has to say 503.
        """
        if self.draining:
            return "draining: this router is about to end"
        if not self._discovery.answered:
            return "discovery has not answered yet"
        if not self._keyring.loaded:
            return "the API keys were not read yet"
        return ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Any request."""
        if request.path == "/health" and request.method in {"GET", "HEAD"}:
            problem = self.why_not_ready()
            return web.Response(status=503 if problem else 200, text=problem)
        self._move_in_flight(+1)
        route, status = "refused", "cancelled"
        try:
            self._admit(request)
            body = await self._intake.read(request)
            try:
                plan = legs.plan_request(request.method, request.path, body)
                route = plan.route.value
                response = await self._answer(request, body, plan)
            finally:
                self._intake.give_back(len(body))
            status = f"{response.status // 100}xx"
        except RefusedError as refused:
            self._metrics.refused.labels(refused.reason).inc()
            response = refused.response
            status = f"{response.status // 100}xx"
        finally:
            self._metrics.requests.labels(route, status).inc()
            self._move_in_flight(-1)
        if self.draining and not response.prepared:
            response.force_close()
        return response

    def _admit(self, request: web.Request) -> None:
        if not self._keyring.accepts(request.headers.get("Authorization", "")):
            refusal = errors.unauthorized()
            if request.body_exists:
                refusal.force_close()
            raise RefusedError("unauthorized", refusal)
        if request.method in _REFUSED_METHODS:
            refusal = errors.error_response(
                405, f"{request.method} is not served.", kind="invalid_request_error", code="method_not_allowed"
            )
            raise RefusedError("method", refusal)
        if self._in_flight > self._settings.max_in_flight:
            busy = errors.overloaded(
                "This router works on too many requests; try again later.", self._settings.retry_after
            )
            raise RefusedError("in_flight", busy)

    async def _answer(self, request: web.Request, body: bytes, plan: legs.Plan) -> web.StreamResponse:
        headers = legs.request_headers(request.headers.items(), keep_authorization=not self._keyring.required)
        if plan.route is Route.DIRECT:
            upstream = Upstream(request.method, _path_qs(request), headers, body, request.method in _REPEATABLE)
            return await self._answer_direct(request, upstream)
        path_qs = _path_qs(request, canonical=request.path)
        revision = self._pool.next_revision()
        params = await self._run_prefill(request.path, path_qs, headers, body, plan, revision)
        sent = legs.derive_decode_body(body, plan.body, params)
        upstream = Upstream("POST", path_qs, headers, sent, True)
        return await self._relay.answer(request, upstream, prompt=True, revision=revision)

    async def _answer_direct(self, request: web.Request, upstream: Upstream) -> web.StreamResponse:
        if not (request.method == "GET" and request.path.rstrip("/") == "/v1/models" and self._settings.model_names):
            return await self._relay.answer(request, upstream, prompt=False)
        if self._pool.listed(Role.DECODE):
            response = await self._relay.answer(request, upstream, prompt=False)
            if response.status < 500:
                return response
        return self._models()

    async def _run_prefill(
        self, path: str, path_qs: str, headers: list[tuple[str, str]], body: bytes, plan: legs.Plan, revision: str
    ) -> legs.Body | None:
        if plan.route is not Route.PD or plan.body is None:
            self._metrics.decode_only.labels(plan.reason).inc()
            return None
        result = await self._prefill.run(path, path_qs, legs.prefill_headers(headers), plan.body, len(body), revision)
        if result.outcome is not Outcome.OK:
            self._metrics.decode_only.labels(f"prefill_{result.outcome}").inc()
        return result.params

    def _models(self) -> web.Response:
        """The list of models while decode is scaled to zero: the model is away, not unknown."""
        data = [
            {"id": name, "object": "model", "created": self._started, "owned_by": "vllm", "root": name, "parent": None}
            for name in self._settings.model_names
        ]
        return web.json_response({"object": "list", "data": data})


def _path_qs(request: web.Request, canonical: str = "") -> str:
    """The path and query to send on. A prompt's path is written in its one true form, any other goes as it came."""
    url = request.rel_url
    path = canonical or url.raw_path
    return f"{path}?{url.raw_query_string}" if url.raw_query_string else path
