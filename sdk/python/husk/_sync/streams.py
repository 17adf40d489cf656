# Made from husk/_async/streams.py by generate.py: edit it there.
"""Streams of server-sent events, and those that find back after the connection or the server was lost: events of
sandboxes, the output of processes. Iterate over them, inside `with` when the loop may be left early.
"""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Any, Deque, Generic, TypeVar

from .._http import Event, EventParser, Request, given, is_failure
from ..errors import (
    ConnectionFailedError,
    HuskError,
    TimedOutError,
    UnavailableError,
    error_from,
)
from ..models import Exit, Output, OutputCollector, OutputDecoder, SandboxEvent
from ._io import sleep

if TYPE_CHECKING:
    from .client import Client
    from .transport import Response

T = TypeVar("T")

SILENCE_SECONDS = 60.0  # the server sends something every 15 seconds
RESUME_SECONDS = 60.0  # how long a server may be away


class EventSource:
    """The events of one answer. An event that tells of a failure is raised."""

    def __init__(self, response: Response, silence: float | None) -> None:
        self._response = response
        self._silence = silence  # how long nothing may come
        self._parser = EventParser()
        self._ready: Deque[Event] = deque()

    def next(self, deadline: float | None = None) -> Event | None:
        """The next event; None at the end. `deadline`: of time.monotonic()."""
        while not self._ready:
            piece = self._response.next(self._patience(deadline))
            if piece is None:
                return None
            self._ready.extend(self._parser.feed(piece))
        event = self._ready.popleft()
        if is_failure(event):
            self.close()
            raise error_from(event.document)
        return event

    def _patience(self, deadline: float | None) -> float | None:
        """How long to wait for the next bytes."""
        if deadline is None:
            return self._silence
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimedOutError("the time to wait is over")
        return left if self._silence is None else min(self._silence, left)

    def close(self) -> None:
        self._response.close()


class Stream(Generic[T]):
    """What all streams are: opened by the first step or by `with`, closed at the end. Subclasses say what to ask
    for (`_request`), what an event means (`_take`) and, when `_resumes`, keep note of where they are."""

    _resumes = False
    _silence: float | None = SILENCE_SECONDS

    def __init__(self, client: Client) -> None:
        self._client = client
        self._source: EventSource | None = None
        self._over = False
        self._deadline: float | None = None

    def _request(self) -> Request:
        raise NotImplementedError

    def _take(self, event: Event) -> T | None:
        """What the event is to the reader of the stream; None: nothing. Sets `_over` when it is the last."""
        raise NotImplementedError

    def _can_resume(self) -> bool:
        return self._resumes

    def _open(self) -> None:
        if self._source is None and not self._over:
            self._source = self._client._events(self._request(), self._silence)

    def _step(self) -> T | None:
        """The next thing; None at the end."""
        while not self._over:
            try:
                self._open()
                assert self._source is not None
                event = self._source.next(self._deadline)
                if event is None:
                    self._ended()
                    continue
            except ConnectionFailedError as error:
                self._resume(error)
                continue
            thing = self._take(event)
            if self._over:
                self.close()
            if thing is not None:
                return thing
        return None

    def _ended(self) -> None:
        """The server ended the answer. Where the stream has a last event of its own, that was too early."""
        if self._resumes:
            raise ConnectionFailedError("the server ended the stream too early", sent=True)
        self._over = True

    def _resume(self, error: HuskError) -> None:
        """Opens it anew where it broke off. Patient, since a server that is being restarted loses nothing."""
        if self._source is None or not self._can_resume():
            self.close()
            raise error
        self._source.close()
        self._source = None
        until = time.monotonic() + RESUME_SECONDS
        pause = 0.05
        while True:
            try:
                return self._open()
            except (ConnectionFailedError, UnavailableError):
                if time.monotonic() + pause > until:
                    self._over = True
                    raise
            sleep(pause)
            pause = min(2.0, pause * 2)

    def close(self) -> None:
        """Stops listening. The process or sandbox continues."""
        self._over = True
        source, self._source = self._source, None
        if source is not None:
            source.close()

    def __iter__(self: S) -> S:
        return self

    def __next__(self) -> T:
        thing = self._step()
        if thing is None:
            raise StopIteration
        return thing

    def __enter__(self: S) -> S:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


S = TypeVar("S", bound=Stream[Any])


class SandboxEvents(Stream[SandboxEvent]):
    """Events of one sandbox or of all, as they happen."""

    _resumes = True

    def __init__(self, client: Client, url_path: str, after: int | None) -> None:
        super().__init__(client)
        self._path = url_path
        self.last: int | None = after  # the sequence number to continue after

    def _request(self) -> Request:
        return Request.get(self._path, given(follow=True, after=self.last))

    def _take(self, event: Event) -> SandboxEvent | None:
        if not isinstance(event.document, dict) or "sequence" not in event.document:
            return None
        made = SandboxEvent.from_document(event.document)
        self.last = made.sequence
        return made


class OutputStream(Stream[Output]):
    """The output of a process, piece by piece, until it ends: `exit` says how it did then.

    If the server restarts, the stream continues at the same byte: the process does not notice, and its output
    is kept by the sandbox.
    """

    _resumes = True

    def __init__(self, client: Client, output_path: str, request: Request, pid: int | None = None) -> None:
        super().__init__(client)
        self._output_path = output_path  # with {pid} in it
        self._first: Request | None = request
        self._decoder = OutputDecoder()
        self._collector: OutputCollector | None = None
        self.pid = pid
        self.exit: Exit | None = None

    def _request(self) -> Request:
        if self._first is not None:
            request, self._first = self._first, None
            return request
        return Request.get(
            self._output_path.format(pid=self.pid),
            {"stdout_offset": self.stdout_offset, "stderr_offset": self.stderr_offset},
        )

    def _can_resume(self) -> bool:
        return self.pid is not None

    def _take(self, event: Event) -> Output | None:
        document = event.document
        if event.kind in ("stdout", "stderr"):
            piece = self._decoder.decode(event.kind, document)
            if self._collector:
                self._collector.add(piece)
            return piece
        if event.kind == "start":
            self._start(document)
        elif event.kind == "exit":
            self.exit = Exit.from_document(document)
            self._over = True
        return None

    def _start(self, document: Any) -> None:
        self.pid = int(document.get("pid", self.pid))
        for stream in ("stdout", "stderr"):
            dropped = int(document.get(f"{stream}_dropped") or 0)
            if dropped and self._collector:
                self._collector.lose(stream, dropped)
            if document.get(f"{stream}_offset") is not None:
                self._decoder.offsets[stream] = int(document[f"{stream}_offset"])

    @property
    def stdout_offset(self) -> int:
        """Of the next byte: where to attach again later."""
        return self._decoder.offsets["stdout"]

    @property
    def stderr_offset(self) -> int:
        return self._decoder.offsets["stderr"]

    @property
    def exit_code(self) -> int | None:
        return self.exit.exit_code if self.exit else None
