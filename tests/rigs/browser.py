"""A headless Chromium, driven by its own protocol: what a page shows, what it asked for, and keys that a person presses."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from patience import PATIENCE_S, until

NEEDED = pytest.mark.skipif(not shutil.which("chromium"), reason="no chromium here: apt-get install chromium")
SWITCHES = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--remote-debugging-port=0",
)
KEYS = {"Enter": (13, "\r"), "Tab": (9, ""), "Home": (36, ""), "ArrowLeft": (37, "")}


class Tab:
    """One page in a browser. `asked`: URLs that it requested; `errors`: what its console complains of."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._numbers = socket, itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.asked: list[str] = []
        self.errors: list[str] = []
        self._traced: list[dict[str, Any]] = []
        self._tracing_ended = asyncio.Event()

    async def read_for_ever(self) -> None:
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                self._waiting.pop(said["id"]).set_result(said)
            elif said["method"] == "Network.requestWillBeSent":
                self.asked.append(said["params"]["request"]["url"])
            elif said["method"] == "Tracing.dataCollected":
                self._traced += said["params"]["value"]
            elif said["method"] == "Tracing.tracingComplete":
                self._tracing_ended.set()
            elif said["method"] == "Runtime.exceptionThrown":
                self.errors.append(str(said["params"]["exceptionDetails"]))
            elif said["method"] == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
                self.errors.append(str(said["params"]["entry"]))

    async def call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(60):
            said = await answer
        assert "error" not in said, said
        return said["result"]

    async def value(self, expression: str) -> Any:
        """Return what an expression is on the page."""
        said = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Wait until an expression is true on the page; return it, an element as True."""
        expression = f"Promise.resolve({expression}).then((found) => found instanceof Node || found)"
        async with asyncio.timeout(PATIENCE_S):
            while not (found := await self.value(expression)):  # noqa: ASYNC110 - a browser that is asked
                await asyncio.sleep(0.05)
        return found

    async def press(self, key: str) -> None:
        """Press a key as a person does."""
        code, text = KEYS[key]
        for kind in ("keyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=text
            )

    async def trace(self) -> None:
        """Note the tasks of its main thread from now on."""
        categories = "-*,devtools.timeline,disabled-by-default-devtools.timeline"
        await self.call("Tracing.start", categories=categories, transferMode="ReportEvents")

    async def tasks_ms(self) -> list[float]:
        """Return the processor time of each task since `trace`, milliseconds: the same on a busy machine and a quiet one."""
        await self.call("Tracing.end")
        async with asyncio.timeout(PATIENCE_S):
            await self._tracing_ended.wait()
        threads = {
            (each["pid"], each["tid"]) for each in self._traced if each["name"] == "FunctionCall"
        }  # that run scripts: the main thread of the page
        tasks = [each for each in self._traced if each["name"] == "RunTask" and "tdur" in each]
        return [each["tdur"] / 1000 for each in tasks if (each["pid"], each["tid"]) in threads]

    async def write(self, text: str) -> None:
        """Write into what has the focus."""
        await self.call("Input.insertText", text=text)

    async def picture(self, box: dict[str, float]) -> bytes:
        """Return a picture of a part of it, as PNG. `box`: x, y, width and height on the page."""
        said = await self.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=True, clip={**box, "scale": 1}
        )
        return base64.b64decode(said["data"])


@contextmanager
def browser(folder: Path) -> Iterator[int]:
    """Run one while the body runs; yields the port at which it is driven."""
    profile = folder / "profile"
    with (folder / "chromium.log").open("wb") as log:
        command = ["chromium", *SWITCHES, f"--user-data-dir={profile}", "about:blank"]
        running = subprocess.Popen(command, stdout=log, stderr=log)
    named = profile / "DevToolsActivePort"
    try:
        until(lambda: named.exists() and "\n" in named.read_text(), "a browser")
        yield int(named.read_text().splitlines()[0])
    finally:
        running.terminate()
        running.wait(60)


@asynccontextmanager
async def tab(port: int, url: str, script: str = "") -> AsyncIterator[Tab]:
    """Open a page while the body runs. `script`: runs there before anything else."""
    async with aiohttp.ClientSession() as session:
        async with session.put(f"http://127.0.0.1:{port}/json/new?about:blank") as made:
            page = await made.json()
        async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=1 << 26) as socket:
            opened = Tab(socket)
            reading = asyncio.create_task(opened.read_for_ever())
            for domain in ("Page", "Runtime", "Network", "Log"):
                await opened.call(f"{domain}.enable")
            await opened.call("Network.setCacheDisabled", cacheDisabled=True)
            if script:
                await opened.call("Page.addScriptToEvaluateOnNewDocument", source=script)
            await opened.call("Page.navigate", url=url)
            try:
                yield opened
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
                await session.get(f"http://127.0.0.1:{port}/json/close/{page['id']}")
