"""nats-py, imported once, and without aiohttp, which it would load for WebSockets that nothing here speaks.

Read by nats_bus.py, nats_client.py and nats_questions.py. Every process of a stack and every command begins with this import, and
aiohttp was two fifths of what it cost (0.26 s of a processor, 0.16 without).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without(package: str) -> Iterator[None]:
    """Let an optional package be missing while others are imported; one that is loaded already stays."""
    absent = package not in sys.modules
    if absent:
        sys.modules[package] = None  # type: ignore[assignment]  # the import system's own way to say so
    try:
        yield
    finally:
        if absent:
            del sys.modules[package]


with without("aiohttp"):
    import nats.errors
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription as ClientSubscription

__all__ = ["Client", "ClientSubscription", "Msg", "nats"]
