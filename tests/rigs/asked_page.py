"""What a browser or a scraper has of a stack: its page's URL, and a token."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from outside import rover

from rover_bus.cli.stack import RunningStack


class Said(NamedTuple):
    """An answer: its status, its body, its headers."""

    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class AskedPage:
    """The page of a running stack, asked over HTTP."""

    def __init__(self, url: str, home: Path) -> None:
        self.url, self.home = url.rstrip("/"), home

    def token(self, *words: str) -> str:
        """Return a new token."""
        made = rover("auth", "page-token", *words, home=self.home)
        assert made.returncode == 0, made.stderr
        return made.stdout.strip()

    def ask(self, path: str, body: Any = None, **headers: str) -> Said:
        """Return what it answers, whatever its status; a body makes it a POST."""
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        data = None
        if body is not None:
            data, named = json.dumps(body).encode(), {"Content-Type": "application/json", **named}
        request = urllib.request.Request(self.url + path, data, named)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return Said(answer.status, answer.read(), dict(answer.headers))
        except urllib.error.HTTPError as refusal:
            return Said(refusal.code, refusal.read(), dict(refusal.headers))

    @property
    def ready(self) -> bool:
        """Whether it has read all that there is, and the broker is there."""
        try:
            return self.ask("/readyz").status == 200
        except OSError:
            return False

    @contextmanager
    def events(self, path: str, last: int | None = None) -> Iterator[Iterator[dict[str, Any]]]:
        """Open a stream of events; yields them as they come, until the connection ends."""
        request = urllib.request.Request(self.url + path)
        if last is not None:
            request.add_header("Last-Event-ID", str(last))
        with urllib.request.urlopen(request, timeout=120) as answer:

            def each() -> Iterator[dict[str, Any]]:
                number = 0
                for line in answer:
                    if line.startswith(b"id: "):
                        number = int(line[4:])
                    elif line.startswith(b"data: "):
                        event = json.loads(line[6:])
                        assert event["sequence"] == number
                        yield event

            yield each()


def page_of(stack: RunningStack) -> AskedPage:
    """Return the page of a stack that serves one."""
    assert stack.page_url
    return AskedPage(stack.page_url, stack.home.root)
