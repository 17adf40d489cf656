"""Where the server is and who we are there: from arguments, else HUSK_URL and HUSK_TOKEN, else the local unix socket.

Used once by each client. Must never put the token into a message.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from .errors import InvalidError

if TYPE_CHECKING:
    import ssl

DEFAULT_HOME = "/var/lib/husk"
DEFAULT_RUN = "/run/husk"
DEFAULT_PORT = 7820


@dataclass(frozen=True)
class Endpoint:
    """A server's address. `socket` is a path, and stands before host and port."""

    socket: str | None
    host: str
    port: int
    tls: bool
    prefix: str  # of every path, when the server is behind a proxy
    token: str | None = field(repr=False, default=None)
    tls_context: ssl.SSLContext | None = field(repr=False, default=None)

    @property
    def authority(self) -> str:
        if self.socket:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"unix:{self.socket}" if self.socket else f"{'https' if self.tls else 'http'}://{self.authority}"


def resolve(
    url: str | None = None, token: str | None = None, tls_context: ssl.SSLContext | None = None
) -> Endpoint:
    token = token or os.environ.get("HUSK_TOKEN") or None
    url = url or os.environ.get("HUSK_URL") or None
    if token and any(not "!" <= letter <= "~" for letter in token):
        raise InvalidError("the token holds a blank or a character that no token has", field="token")
    if url is None and token:
        url = f"http://127.0.0.1:{DEFAULT_PORT}"
    if url is None:
        return Endpoint(local_socket(), "localhost", 0, False, "", token)
    return _parse(url, token, tls_context)


def _parse(url: str, token: str | None, tls_context: ssl.SSLContext | None) -> Endpoint:
    parts = urlsplit(url)
    if parts.scheme == "unix" and parts.path:
        return Endpoint(unquote(parts.path), "localhost", 0, False, "", token)
    try:
        port = parts.port
    except ValueError:
        port = 0
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise InvalidError(
            f"'{_without_user(url)}' is not the address of a server",
            field="url",
            hint="HUSK_URL is like http://127.0.0.1:7820, https://husk.example.com or unix:///run/husk/huskd.sock",
        )
    if parts.query or parts.fragment or parts.username:
        raise InvalidError("the address of a server has no query, fragment or user name", field="url")
    tls = parts.scheme == "https"
    return Endpoint(None, parts.hostname, port or (443 if tls else 80), tls, parts.path.rstrip("/"), token, tls_context)


def _without_user(url: str) -> str:
    return url.rpartition("@")[2]


def local_socket() -> str:
    """HUSK_SOCKET, else where a server for HUSK_HOME listens."""
    path = os.environ.get("HUSK_SOCKET")
    if path:
        return path
    home = os.path.realpath(os.environ.get("HUSK_HOME") or DEFAULT_HOME)
    run = DEFAULT_RUN if home == DEFAULT_HOME else os.path.join(home, "run")
    return os.path.join(run, "huskd.sock")
