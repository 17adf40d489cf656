# Made from husk/_async/desktop_view.py by generate.py: edit it there.
"""What people see of a sandbox's desktop: links to the live view, who is in control, recordings."""

from __future__ import annotations

from typing import List

from .._http import Request, given, path
from ..models import Control, Link, Recording
from .client import Client


class DesktopView:
    """Links, control and recordings of the screen of a sandbox (template "desktop")."""

    def __init__(self, client: Client, sandbox: str) -> None:
        self._client = client
        self._sandbox = sandbox

    def _path(self, *more: object) -> str:
        return path("sandboxes", self._sandbox, "desktop", *more)

    # ---- looking ----

    def url(
        self, *, view_only: bool = True, expires_seconds: int | None = None, recording: str | None = None
    ) -> str:
        """A link to the live view, for a browser. It needs no token until it expires: who has it has access.

        view_only=False: the link also permits to take control. recording: the link plays that recording instead.
        """
        body = given(view_only=view_only, expires_seconds=expires_seconds, recording=recording)
        return Link.from_document(self._client._json(Request.json("POST", self._path("url"), body))).url

    # ---- control ----

    def control(self) -> Control:
        """Who is in control, and whether a person was asked for."""
        return Control.from_document(self._client._json(Request.get(self._path("control"))))

    def take_over(self, name: str, *, holder: str | None = None, ttl_seconds: int | None = None) -> Control:
        """Takes control for a person, or prolongs it for the same holder. Until it is given back or expires, actions of
        agents raise ConflictError, which says who is in control."""
        body = given(name=name, holder=holder, ttl_seconds=ttl_seconds)
        return Control.from_document(self._client._json(Request.json("PUT", self._path("control"), body)))

    def give_back(self, holder: str | None = None) -> None:
        """Gives control back. Without a holder: whoever has it."""
        self._client._done(Request("DELETE", self._path("control"), given(holder=holder)))

    def request_human(self, reason: str, *, wait_seconds: int = 0) -> Control:
        """For an agent that cannot continue, such as at a login: asks for a person, and waits until one has taken control and
        given it back (`request["state"] == "done"`), or the time is over (600 seconds at most)."""
        body = given(reason=reason, wait_seconds=wait_seconds)
        request = Request.json("POST", self._path("control", "request"), body, timeout=wait_seconds + 60.0)
        return Control.from_document(self._client._json(request))

    # ---- recordings ----

    def record(self, *, max_seconds: int | None = None, max_bytes: int | str | None = None) -> Recording:
        """Begins to record the screen. It ends by stop_recording, a limit, or the end of the desktop."""
        body = given(max_seconds=max_seconds, max_bytes=max_bytes)
        return Recording.from_document(self._client._json(Request.json("POST", self._path("recordings"), body)))

    def stop_recording(self, recording: str) -> Recording:
        request = Request("POST", self._path("recordings", recording, "stop"))
        return Recording.from_document(self._client._json(request))

    def recordings(self) -> List[Recording]:
        document = self._client._json(Request.get(self._path("recordings")))
        return [Recording.from_document(each) for each in document["recordings"]]

    def read_recording(self, recording: str) -> bytes:
        """The recorded screen: an RFB stream with times (FBS 001.001)."""
        return self._client._bytes(Request.get(self._path("recordings", recording, "screen")))

    def read_actions(self, recording: str) -> bytes:
        """The recorded actions: a JSON object per line."""
        return self._client._bytes(Request.get(self._path("recordings", recording, "actions")))

    def export_recording(self, recording: str, *, format: str = "mp4") -> bytes:
        """The recording as a video ("mp4" or "webm"), or as a document with its actions ("json")."""
        request = Request("GET", self._path("recordings", recording, "export"), given(format=format), timeout=1800.0)
        return self._client._bytes(request)

    def remove_recording(self, recording: str) -> None:
        self._client._done(Request("DELETE", self._path("recordings", recording)))
