"""Why a server cannot be reached, said so that it can be mended, and TLS. Used by both forms of _io.py."""

from __future__ import annotations

import functools
import socket
from typing import TYPE_CHECKING

from ._endpoint import Endpoint
from .errors import ConnectionFailedError, HuskError, TimedOutError

if TYPE_CHECKING:
    import ssl


@functools.lru_cache(maxsize=1)
def _default_tls() -> ssl.SSLContext:
    import ssl  # costs a tenth of a second that most programs need not pay

    return ssl.create_default_context()


def tls_context(endpoint: Endpoint) -> ssl.SSLContext:
    return endpoint.tls_context or _default_tls()


def reach_failure(endpoint: Endpoint, error: BaseException) -> HuskError:
    """What a failed attempt to connect means."""
    if isinstance(error, PermissionError) and endpoint.socket:
        return ConnectionFailedError(
            f"not allowed to use the socket {endpoint.socket}",
            hint="run as the user of the server, or set HUSK_URL and HUSK_TOKEN",
        )
    if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
        hint = "start the server with `husk serve`"
        hint += ", or set HUSK_URL and HUSK_TOKEN" if endpoint.socket else ""
        return ConnectionFailedError(f"nothing listens on {endpoint}", hint=hint)
    if isinstance(error, socket.gaierror):
        return ConnectionFailedError(f"there is no host '{endpoint.host}'", hint="check HUSK_URL")
    if not str(error):  # asyncio's own timeout has no text
        return TimedOutError(f"{endpoint} did not take the connection in time")
    return ConnectionFailedError(f"cannot connect to {endpoint}: {error}")
