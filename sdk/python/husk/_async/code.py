"""Code with state: runs it in an interpreter of the sandbox that stays between calls. Used by the sandbox's class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable

from .._http import Event, Request, given, path
from ..errors import ConnectionFailedError
from ..models import CodeContext, CodeOutput, CodeResult
from ._io import deliver
from .processes import Callback, read_limit
from .streams import AsyncStream

if TYPE_CHECKING:
    from .client import AsyncClient


class AsyncCodeEvents(AsyncStream[Event]):
    """What code does while it runs."""

    def __init__(self, client: AsyncClient, request: Request) -> None:
        super().__init__(client)
        self._first = request
        self.document: dict[str, Any] = {"stdout": "", "stderr": "", "results": []}
        self.done = False

    def _request(self) -> Request:
        return self._first

    def _take(self, event: Event) -> Event | None:
        document = event.document
        if event.kind in ("stdout", "stderr"):
            self.document[event.kind] += str(document.get("text", ""))
        elif event.kind == "result":
            self.document["results"].append(document)
            if document.get("main"):
                self.document["text"] = document.get("text")
        elif event.kind == "error":
            self.document["error"] = document
        elif event.kind == "done":
            self.document.update(document)
            self.done = self._over = True
        return event


async def run_code(
    client: AsyncClient,
    sandbox: str,
    fields: Mapping[str, Any],
    on_stdout: Callback | None,
    on_stderr: Callback | None,
    on_result: Callable[[CodeOutput], Any] | None,
) -> CodeResult:
    body = given(**fields)
    timeout = read_limit(body.get("timeout_seconds"))
    streamed = bool(on_stdout or on_stderr or on_result)
    if streamed:
        body["stream"] = True
    request = Request.json("POST", path("sandboxes", sandbox, "code"), body, timeout=timeout)
    if not streamed:
        return CodeResult.from_document(await client._json(request))
    events = AsyncCodeEvents(client, request)
    async with events:
        async for event in events:
            if event.kind == "stdout" and on_stdout:
                await deliver(on_stdout, event.document.get("text", ""))
            elif event.kind == "stderr" and on_stderr:
                await deliver(on_stderr, event.document.get("text", ""))
            elif event.kind == "result" and on_result:
                await deliver(on_result, CodeOutput.from_document(event.document))
    if not events.done:
        raise ConnectionFailedError("the connection broke before the code was done", sent=True)
    return CodeResult.from_document(events.document)


async def list_contexts(client: AsyncClient, sandbox: str) -> list[CodeContext]:
    document = await client._json(Request.get(path("sandboxes", sandbox, "contexts")))
    return [CodeContext.from_document(each) for each in document["contexts"]]
