"""A real S3 server on loopback, for what keeps checkpoints in an object store. Needs moto; who uses it skips without."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from patience import PATIENCE_S


@contextmanager
def serving() -> Iterator[str]:
    """Run the server until the `with` ends; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            end_s = time.monotonic() + PATIENCE_S
            while not ask(f"{url}/moto-api/"):
                assert time.monotonic() < end_s, "the store never listened"
                assert process.poll() is None, "the store ended"
                time.sleep(0.05)
            yield url
        finally:
            process.kill()


def ask(url: str, method: str = "GET") -> bool:
    """Whether a request succeeds."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method)):
            return True
    except (urllib.error.URLError, ConnectionError):
        return False


def variables(url: str) -> dict[str, str]:
    """Return what a process needs in its environment to find the store at `url`."""
    return {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": url,
        "AWS_ALLOW_HTTP": "true",
    }


def empty_bucket(url: str, name: str) -> None:
    """Forget everything in the store and make a bucket."""
    assert ask(f"{url}/moto-api/reset", "POST")
    assert ask(f"{url}/{name}", "PUT")
