"""The application and its socket: what every request passes before a handler sees it, and what every answer says.

Fed by `cli` with a socket, an `Access` and, once it has joined the bus, a page; feeds handlers (api.py, streaming.py) by the
table of routes. Until there is a page every route but the two probes says 503: what looks is told at once, and nothing waits.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping

from aiohttp import web
from aiohttp.typedefs import Handler as AnyHandler

from rover_bus.events.errors import AccessDenied, BusError, InputError, Refused, RoverError
from rover_bus.events.logs import get_logger
from rover_bus.web.access import Access, HttpRefusal, Need
from rover_bus.web.api import CALLER, SEQUENCE, TIMELINE, answer
from rover_bus.web.bodies import Problem
from rover_bus.web.openapi import document
from rover_bus.web.port import Page
from rover_bus.web.rendering import CONTENT_TYPE, Rendering
from rover_bus.web.routes import API, ROUTES, HttpRoute
from rover_bus.web.static_files import FILES
from rover_bus.web.streaming import STREAMS, OpenStreams

MOST_BODY_BYTES = 16 << 10
LEAVE_S = 2.0  # for answers that are on their way when the server ends
SECURITY: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
log = get_logger("rover.web")


class WebServer:
    """One HTTP server. `page` is set once there is one to show."""

    def __init__(self, access: Access, release: str) -> None:
        self.page: Page | None = None
        self._access = access
        self._release = release
        self.rendering = Rendering(ROUTE_NAMES, release)
        self._runner: web.AppRunner | None = None
        self._needs: dict[object, tuple[str, Need]] = {}  # by handler: its route's name, and what it needs

    async def start(self, listening: socket.socket, encrypted: ssl.SSLContext | None = None) -> None:
        """Serve what connects to a listening socket."""
        runner = self._runner = web.AppRunner(
            self._application(), access_log=None, shutdown_timeout=LEAVE_S, handle_signals=False
        )
        await runner.setup()
        await web.SockSite(runner, listening, ssl_context=encrypted).start()

    async def stop(self) -> None:
        """Let answers leave that are on their way, and end."""
        self.end_streams()
        if self._runner is not None:
            await self._runner.cleanup()

    def end_streams(self) -> None:
        """End every stream of events: its client comes back."""
        if self._runner is not None:
            self._runner.app[STREAMS].end()

    def _application(self) -> web.Application:
        application = web.Application(client_max_size=MOST_BODY_BYTES, middlewares=[self._pass])
        application[STREAMS] = OpenStreams()
        router = application.router
        own: tuple[tuple[str, str, Need, AnyHandler], ...] = (
            ("/healthz", "healthz", "nothing", self._health),
            ("/readyz", "readyz", "nothing", self._readiness),
            ("/metrics", "metrics", "metrics", self._metrics),
            (f"{API}/openapi.json", "openapi", "look", self._openapi),
            ("/", "page", "nothing", _page),
            ("/static/{name}", "static", "nothing", _static),
        )
        for path, name, need, handler in own:
            router.add_get(path, handler)
            self._needs[handler] = name, need
        for route in ROUTES:
            shows = self._showing(route)
            router.add_route(route.method, _pattern(route.path), shows)
            self._needs[shows] = route.name, route.need
        return application

    # What every request passes

    @web.middleware
    async def _pass(self, request: web.Request, handler: AnyHandler) -> web.StreamResponse:
        name, need = self._needs.get(request.match_info.handler, ("unknown", "look"))
        try:
            response = await self._judged(request, handler, need)
        except web.HTTPException as error:
            response = _problem(error.status, "no_route" if error.status == 404 else "http", error.reason)
        except RoverError as error:
            response = _problem(_status(error), error.code, str(error))
        except ConnectionError:  # the client has gone
            raise
        except Exception as error:  # noqa: BLE001 - one request that fails ends no server
            log.error("a request failed", route=name, error=repr(error))
            response = _problem(500, "error", "the server failed at this request: its log says more")
        self.rendering.count(name, response.status)
        if not response.prepared:
            response.headers.update(SECURITY)
        return response

    async def _judged(self, request: web.Request, handler: AnyHandler, need: Need) -> web.StreamResponse:
        judged = self._access.judge(request.method, need, request.headers)
        if isinstance(judged, HttpRefusal):
            refused = _problem(judged.status, judged.code, judged.message)
            if judged.status == 401:
                refused.headers["WWW-Authenticate"] = "Bearer"
            return refused
        request[CALLER] = judged.name
        return await handler(request)

    # Handlers of its own

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readiness(self, _request: web.Request) -> web.Response:
        ready = self.page is not None and self.page.ready
        return web.Response(text="ready\n" if ready else "not ready\n", status=200 if ready else 503)

    async def _metrics(self, _request: web.Request) -> web.Response:
        figures = self.page.figures() if self.page is not None and self.page.ready else []
        body = await asyncio.to_thread(self.rendering.render, figures)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    async def _openapi(self, _request: web.Request) -> web.Response:
        return answer(document(self._release))

    def _showing(self, route: HttpRoute) -> AnyHandler:
        async def show(request: web.Request) -> web.StreamResponse:
            if self.page is None or not self.page.ready:
                return _problem(
                    503, "not_ready", "what is stored has not all been read yet: ask again in a second"
                )
            page, sequence = self.page, self.page.sequence
            response = await route.handler(page, request)
            if not response.prepared:
                response.headers.setdefault(SEQUENCE, str(sequence))
                response.headers[TIMELINE] = str(page.timeline)
            return response

        return show


async def _page(_request: web.Request) -> web.Response:
    return _file("index.html")


async def _static(request: web.Request) -> web.Response:
    return _file(request.match_info["name"])


def _file(name: str) -> web.Response:
    found = FILES.get(name)
    if found is None:
        raise web.HTTPNotFound
    return web.Response(
        body=found.body, content_type=found.kind, charset="utf-8", headers={"Cache-Control": "no-cache"}
    )


def _pattern(path: str) -> str:
    return path.replace("{plan}", "{plan:[0-9]{1,9}}")


def _problem(status: int, code: str, message: str) -> web.Response:
    return answer(Problem(code=code, message=message), status)


def _status(error: RoverError) -> int:
    match error:
        case InputError():
            return 404 if "there is no job" in str(error) else 400
        case Refused():
            return 409
        case AccessDenied():
            return 403
        case BusError():
            return 503
        case _:
            pass  # of no kind that a request is to blame for
    return 500


ROUTE_NAMES = (
    "healthz",
    "readyz",
    "metrics",
    "openapi",
    "page",
    "static",
    "unknown",
    *(route.name for route in ROUTES),
)
