"""What a round trip to two servers costs by transport: selectors or asyncio, TCP on loopback or unix sockets.

    python -m bench.ps_transport [--json] [--trips 300] [--rounds 3]

Two echo-like server processes, one client that sends to both before it receives from both: the pattern of ps/client.py. Sizes
are those of a small request, of a pull and of a push of 512 x 26 nearly uniform ids of width 16. Rounds alternate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import selectors
import socket
import statistics
import time
from typing import Any

SIZES = {"small": (64, 64), "pull": (26_624, 425_984), "push": (425_984, 64)}
WAYS = [(loop, family) for loop in ("selectors", "asyncio") for family in ("tcp", "unix")]


class Echo(asyncio.BufferedProtocol):
    """Answers every `request` bytes with `reply` bytes, received without copies."""

    def __init__(self, request: int, reply: bytes) -> None:
        self._view, self._filled, self._reply = memoryview(bytearray(request)), 0, reply

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled == len(self._view):
            self._filled = 0
            self._transport.write(self._reply)


def serve_asyncio(listener: socket.socket, request: int, reply: bytes) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        kind = loop.create_unix_server if listener.family == socket.AF_UNIX else loop.create_server
        server = await kind(lambda: Echo(request, reply), sock=listener)
        await server.serve_forever()

    asyncio.run(run())


def serve_selectors(listener: socket.socket, request: int, reply: bytes) -> None:
    sock, _ = listener.accept()
    sock.setblocking(False)
    if sock.family == socket.AF_INET:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    selector = selectors.DefaultSelector()
    selector.register(sock, selectors.EVENT_READ)
    view, filled, waiting = memoryview(bytearray(request)), 0, memoryview(b"")
    while True:
        for _, events in selector.select():
            if events & selectors.EVENT_READ:
                received = sock.recv_into(view[filled:])
                if not received:
                    return
                filled += received
                if filled == request:
                    filled, waiting = 0, memoryview(reply)
            try:
                while waiting:
                    waiting = waiting[sock.send(waiting) :]
            except BlockingIOError:
                pass
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if waiting else 0)
            if selector.get_key(sock).events != wanted:
                selector.modify(sock, wanted)


def listen(family: str, name: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET if family == "tcp" else socket.AF_UNIX)
    sock.bind(("127.0.0.1", 0) if family == "tcp" else f"\0{name}")
    sock.listen()
    return sock


def measure(loop: str, family: str, request: int, reply: int, trips: int) -> float:
    """Return the median microseconds from the first byte sent to the last byte received, over both servers."""
    target = serve_asyncio if loop == "asyncio" else serve_selectors
    context, processes, socks = multiprocessing.get_context("fork"), [], []
    try:
        for at in range(2):
            listener = listen(family, f"rover-bench-{os.getpid()}-{at}-{time.time_ns()}")
            processes.append(
                context.Process(target=target, args=(listener, request, bytes(reply)), daemon=True)
            )
            processes[-1].start()
            socks.append(socket.socket(listener.family))
            socks[-1].connect(listener.getsockname())
            if family == "tcp":
                socks[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            listener.close()
        return (
            statistics.median(trip(socks, bytes(request), memoryview(bytearray(reply))) for _ in range(trips))
            * 1e6
        )
    finally:
        for sock in socks:
            sock.close()
        for process in processes:
            process.terminate()
            process.join()


def trip(socks: list[socket.socket], request: bytes, view: memoryview) -> float:
    start = time.perf_counter()
    for sock in socks:
        sock.sendall(request)
    for sock in socks:
        filled = 0
        while filled < len(view):
            filled += sock.recv_into(view[filled:])
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trips", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print the result as one last JSON line")
    arguments = parser.parse_args()
    found: dict[tuple[str, str], dict[str, float]] = {way: {} for way in WAYS}
    for size, (request, reply) in SIZES.items():
        rounds = [
            [measure(*way, request, reply, arguments.trips) for way in WAYS] for _ in range(arguments.rounds)
        ]
        for way, column in zip(WAYS, zip(*rounds, strict=True), strict=True):
            found[way][size] = round(statistics.median(column), 1)
    print(f"{'loop':10} {'family':7} " + " ".join(f"{size + ' us':>9}" for size in SIZES))
    for (loop, family), times in found.items():
        print(f"{loop:10} {family:7} " + " ".join(f"{times[size]:9}" for size in SIZES))
    if arguments.json:
        cells = [{"loop": loop, "family": family, **times} for (loop, family), times in found.items()]
        print(json.dumps({"bench": "ps_transport", "unit": "us", "cells": cells}))


if __name__ == "__main__":
    main()
