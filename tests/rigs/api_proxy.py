"""A proxy in front of a real API server, which does to its requests what a busy or forgetful server would.

It has the server's own certificate, so that a client knows no difference. What it is not told to do, it passes on unchanged.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec.yaml
from aiohttp import ClientSession, ClientTimeout, web
from kube_cluster import Cluster, free_ports

READS = ("GET", "HEAD")
ENDS = ("Content-Length", "Transfer-Encoding", "Connection")  # of one connection, not of what goes over two
GONE = {
    "kind": "Status",
    "status": "Failure",
    "code": 410,
    "reason": "Expired",
    "message": "too old resource version",
}
BUSY = {
    "kind": "Status",
    "status": "Failure",
    "code": 429,
    "reason": "TooManyRequests",
    "message": "too many requests",
}
WRITE_AGAIN_S = "1"


class ApiProxy:
    """`config`: a kubeconfig that leads through it. `refuse_every`: of so many writes one is refused (429); 0: none. `after_write`:
    called when the server has done a write (`done`: how many), before its client is answered. Writes of Leases do not count.
    `renewed`: Leases written since the last other write.
    """

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        given = msgspec.yaml.decode(cluster.config.read_bytes())
        server = given["clusters"][0]["cluster"]
        self._upstream, self._pki = server["server"], Path(server["certificate-authority"]).parent
        self._port = free_ports(1)
        server["server"] = f"https://127.0.0.1:{self._port}"
        self.config = folder / "proxy.kubeconfig"
        self.config.write_bytes(msgspec.yaml.encode(given))
        self.refuse_every, self.refused, self.writes, self.done, self.renewed = 0, 0, 0, 0, 0
        self.after_write: Callable[[], None] = lambda: None
        self._past = asyncio.Event()

    def expire(self) -> None:
        """Tell each watch that is open that its version is too old."""
        self._loop.call_soon_threadsafe(self._forget)

    def _forget(self) -> None:
        self._past.set()
        self._past = asyncio.Event()

    async def serve(self, ready: threading.Event, stop: asyncio.Event) -> None:
        self._loop = asyncio.get_running_loop()
        trusted = ssl.create_default_context(cafile=self._pki / "ca.crt")
        shown = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        shown.load_cert_chain(self._pki / "server.crt", self._pki / "server.key")
        async with ClientSession(timeout=ClientTimeout(), auto_decompress=False) as session:
            self._session, self._trusted = session, trusted
            application = web.Application(client_max_size=16 << 20)
            application.router.add_route("*", "/{path:.*}", self._pass)
            runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self._port, ssl_context=shown).start()
            ready.set()
            await stop.wait()
            await runner.cleanup()

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        counts = request.method not in READS and "/leases" not in request.path
        if request.method not in READS and not counts:
            self.renewed += 1
        if counts:
            self.writes += 1
            self.renewed = 0
            if self.refuse_every and self.writes % self.refuse_every == 0:
                self.refused += 1
                return web.json_response(BUSY, status=429, headers={"Retry-After": WRITE_AGAIN_S})
        headers = {key: value for key, value in request.headers.items() if key not in (*ENDS, "Host")}
        past = self._past
        async with self._session.request(
            request.method,
            self._upstream + request.path_qs,
            data=await request.read(),
            headers=headers,
            ssl=self._trusted,
        ) as answer:
            if counts and answer.status < 300:
                await answer.read()
                self.done += 1
                self.after_write()
            kept = {key: value for key, value in answer.headers.items() if key not in ENDS}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            if request.query.get("watch"):
                await self._watch(answer.content, response, past)
            else:
                await response.write(await answer.read())
            await response.write_eof()
            return response

    @staticmethod
    async def _watch(
        content: asyncio.StreamReader, response: web.StreamResponse, past: asyncio.Event
    ) -> None:
        """Pass lines on until the watch ends, or is too old."""
        gone = asyncio.create_task(past.wait())
        try:
            while True:
                line = asyncio.ensure_future(content.readline())
                await asyncio.wait([line, gone], return_when=asyncio.FIRST_COMPLETED)
                if not line.done():
                    line.cancel()
                    await response.write(json.dumps({"type": "ERROR", "object": GONE}).encode() + b"\n")
                    return
                if not line.result():
                    return
                await response.write(line.result())
        finally:
            gone.cancel()


@contextmanager
def api_proxy(cluster: Cluster, folder: Path) -> Iterator[ApiProxy]:
    """A proxy in front of a cluster that is ours, until the `with` ends."""
    cluster.user()  # the certificate of any other cluster is not ours to show
    made, ready, ended = ApiProxy(cluster, folder), threading.Event(), list[asyncio.Event]()

    async def serve() -> None:
        ended.append(asyncio.Event())
        await made.serve(ready, ended[0])

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(30.0)
        yield made
    finally:
        made._loop.call_soon_threadsafe(ended[0].set)
        thread.join()
