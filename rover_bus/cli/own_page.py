"""The page of a stack that runs here: its socket, which listens for as long as the stack runs, and what its process is told.

Used by stack.py. The socket is opened by the stack and handed on, so that the port is known at once and kept, and a browser
that asks while the process restarts waits instead of being refused.
"""

from __future__ import annotations

import socket

from rover_bus.auth.vault import Vault
from rover_bus.cli.home import Home
from rover_bus.cli.http_options import is_loopback, listen_kept


class OwnPage:
    """Where a stack serves HTTP."""

    def __init__(self, home: Home, address: str) -> None:
        self._home, self._address = home, address
        self._socket: socket.socket | None = None

    @property
    def descriptor(self) -> int:
        """The listening socket; opened when it is first asked for. Raises InputError."""
        if self._socket is None:
            self._socket = listen_kept(self._address, self._home.page_port)
        return self._socket.fileno()

    @property
    def url(self) -> str:
        """Where a browser finds it, "" while it does not listen."""
        if self._socket is None:
            return ""
        scheme = "http" if is_loopback(self._address) else "https"
        return f"{scheme}://{self._address}:{self._socket.getsockname()[1]}/"

    def words(self, vault: Vault | None) -> list[str]:
        """Return what its process is told. Beyond loopback it shows a certificate of the stack's authority."""
        words = ["--listen-fd", str(self.descriptor), "--tokens", str(self._home.page_tokens)]
        if vault is not None and not is_loopback(self._address):
            files = vault.certificate(self._address, served="page")
            words += ["--certificate", str(files.certificate), "--key", str(files.key)]
        return words

    def renew(self, vault: Vault) -> None:
        """Make its certificate again when its time has come: its process takes that in by itself. Raises OSError."""
        if not is_loopback(self._address):
            vault.certificate(self._address, served="page")

    def close(self) -> None:
        """Listen no more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
