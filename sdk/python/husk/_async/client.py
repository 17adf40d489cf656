"""A server of Husk: sends requests, raises its errors, tries again where that does no harm. Every other class of the
SDK goes through here; programs need it only to talk to a server other than the one the environment names.
"""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .._endpoint import Endpoint, resolve
from .._http import Request, decode_json, given, path
from ..errors import ConnectionFailedError, HuskError, UnavailableError
from ..models import SandboxEvent
from ._io import default_client, sleep
from .streams import AsyncEventSource, AsyncSandboxEvents
from .transport import AsyncResponse, AsyncTransport

if TYPE_CHECKING:
    import ssl

USER_AGENT = "husk-python/0.1.0"
ATTEMPTS = 4
PAUSE_SECONDS = 0.1  # before the second attempt; each later one waits twice as long


class AsyncClient:
    """A connection to a server: HUSK_URL and HUSK_TOKEN unless given, and with neither the local unix socket.

    A program may hold many sandboxes through one client, which keeps connections open between requests.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        tls_context: ssl.SSLContext | None = None,
        _endpoint: Endpoint | None = None,
        _shared: bool = False,
    ) -> None:
        self._transport = AsyncTransport(
            _endpoint or resolve(url, token, tls_context), {"User-Agent": USER_AGENT, "Accept": "application/json"}
        )
        self._shared = _shared  # nobody closes it: it keeps connections only while someone uses it
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()

    @classmethod
    def _or_default(cls, client: AsyncClient | None) -> AsyncClient:
        return client or default_client()

    @property
    def url(self) -> str:
        return str(self._transport.endpoint)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    # ---- the server ----

    async def health(self) -> dict[str, Any]:
        """{"status": "ok", "version": …}"""
        return dict(await self._json(Request.get("/healthz")))

    async def events(self, *, after: int = 0, limit: int | None = None) -> list[SandboxEvent]:
        """What happened to all sandboxes, oldest first, after the event of that sequence number."""
        document = await self._json(Request.get(path("events"), given(after=after, limit=limit)))
        return [SandboxEvent.from_document(each) for each in document["events"]]

    def follow_events(self, *, after: int | None = None) -> AsyncSandboxEvents:
        """Events as they happen, without end."""
        return AsyncSandboxEvents(self, path("events"), after)

    async def metrics(self) -> str:
        """Prometheus text."""
        return (await self._bytes(Request.get("/metrics"))).decode()

    # ---- requests ----

    async def _open(self, request: Request) -> AsyncResponse:
        """Sends a request; the answer, which is no error, with its body still to be read."""
        pause = PAUSE_SECONDS
        for attempt in range(1, ATTEMPTS + 1):
            self._transport.keeping = not self._shared or len(self._users) > 0
            try:
                return await (await self._transport.send(request)).check()
            except (ConnectionFailedError, UnavailableError) as error:
                if attempt == ATTEMPTS or not self._may_repeat(request, error):
                    raise
            await sleep(pause)
            pause *= 2
        raise AssertionError("unreachable")

    @staticmethod
    def _may_repeat(request: Request, error: HuskError) -> bool:
        """Whether the server cannot have acted on the request, or acting twice does no harm."""
        if isinstance(error, ConnectionFailedError) and not error.sent:
            return True
        return request.repeatable and (request.body is None or isinstance(request.body, bytes))

    async def _bytes(self, request: Request) -> bytes:
        for attempt in range(1, ATTEMPTS + 1):
            response = await self._open(request)
            try:
                return await response.read()
            except ConnectionFailedError:
                if attempt == ATTEMPTS or not request.repeatable:
                    raise
        raise AssertionError("unreachable")

    async def _json(self, request: Request) -> Any:
        return decode_json(await self._bytes(request))

    async def _done(self, request: Request) -> None:
        """For requests whose answer says nothing more than that it worked."""
        await self._bytes(request)

    async def _events(self, request: Request, silence: float | None) -> AsyncEventSource:
        """Opens a stream of server-sent events, on which nothing may come for `silence` seconds."""
        request.headers = {**request.headers, "Accept": "text/event-stream"}
        return AsyncEventSource(await self._open(request), silence)

    # ---- those who use it ----

    def _use(self, user: Any) -> None:
        self._users.add(user)

    async def _leave(self, user: Any) -> None:
        self._users.discard(user)
        if self._shared and not self._users:
            await self._transport.aclose()

    async def aclose(self) -> None:
        """Closes the connections that are not in use. The client can still be used, and opens new ones then."""
        await self._transport.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
