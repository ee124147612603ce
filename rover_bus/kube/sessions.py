"""The HTTP session of an API server's client: what the environment says is read once, and each request says when it was sent.

Used by api.py. The session that the client makes looks for a proxy and for a `.netrc` before each request, on threads of the whole
process: a tenth of an operator's processor time, and a wait of its own for each of a burst (docs/design/0072). kubectl reads no
`.netrc` either.
"""

from __future__ import annotations

from types import SimpleNamespace
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from aiohttp import ClientSession, TraceConfig, TraceRequestHeadersSentParams

from rover_bus.kube.reactions import note_sent

READ_BYTES = 2 << 20  # of a watch that are buffered at most, as the client has it


def proxy_of(address: str) -> str | None:
    """Return the proxy that the environment names for a server (HTTPS_PROXY, NO_PROXY, ...); None: there is none."""
    parts = urlsplit(address)
    if not parts.hostname or proxy_bypass(parts.hostname):
        return None
    return getproxies().get(parts.scheme)


def session_above(former: ClientSession) -> ClientSession:
    """Return a session above the connections of another, with their certificates and limits; that one has none from then on."""
    tracing = TraceConfig()
    tracing.on_request_headers_sent.append(_on_sent)
    made = ClientSession(connector=former.connector, read_bufsize=READ_BYTES, trace_configs=[tracing])
    former.detach()
    return made


async def _on_sent(
    _session: ClientSession, _context: SimpleNamespace, _request: TraceRequestHeadersSentParams
) -> None:
    note_sent()
