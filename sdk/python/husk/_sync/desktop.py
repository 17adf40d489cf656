# Made from husk/_async/desktop.py by generate.py: edit it there.
"""The screen of a sandbox (template "desktop"): look at it, click and type. `sandbox.desktop`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, List

from .._http import Request, given
from ..models import DesktopAnswer, Element, Window
from .desktop_view import DesktopView

Point = Sequence[float]
# A call waits and holds for 100 seconds at most; the browser takes its time to start.
LIMIT_SECONDS = 320.0


class Desktop(DesktopView):
    """Coordinates are pixels from the upper left. Each call acts, waits until the screen is still (settle=False: does not),
    and returns when that is done.

        sandbox.desktop.open("http://localhost:8000/")
        sandbox.desktop.click(640, 400)
        sandbox.desktop.type("Grüße")
        picture = sandbox.desktop.screenshot()
    """

    def act(
        self,
        actions: Sequence[Mapping[str, Any]],
        *,
        space: tuple[int, int] | None = None,
        settle: bool | Mapping[str, int] = True,
        screenshot: bool | Mapping[str, Any] = False,
    ) -> DesktopAnswer:
        """A list of actions, one after the other, each {"action": "left_click", "coordinate": [640, 400]}: the names and fields
        of Anthropic's computer tool, and more (docs/desktop.md). The first that is not possible raises InvalidError, which
        names it and its place; those before it are done.

        space: what the coordinates are relative to, such as (1000, 1000). settle: wait until the screen is still. screenshot:
        True, or {"format": "jpeg", "max_width": 1024, …}.
        """
        body = given(
            actions=list(actions),
            space={"width": space[0], "height": space[1]} if space else None,
            settle=settle,
            screenshot=screenshot,
        )
        request = Request.json("POST", self._path("actions"), body, timeout=LIMIT_SECONDS)
        return DesktopAnswer.from_document(self._client._json(request))

    def screenshot(
        self,
        *,
        format: str | None = None,
        quality: int | None = None,
        region: Sequence[int] | None = None,
        max_width: int | None = None,
        max_height: int | None = None,
        cursor: bool | None = None,
        settle: bool | None = None,
    ) -> bytes:
        """A picture: "png", "jpeg" or "webp". region: (x0, y0, x1, y1)."""
        query = given(
            format=format,
            quality=quality,
            region=",".join(str(int(each)) for each in region) if region else None,
            max_width=max_width,
            max_height=max_height,
            cursor=None if cursor is None else str(cursor).lower(),
            settle=None if settle is None else str(settle).lower(),
        )
        return self._client._bytes(Request.get(self._path("screenshot"), query))

    def _one(self, action: str, settle: bool = True, **fields: Any) -> dict[str, Any]:
        answer = self.act([given(action=action, **fields)], settle=settle)
        return answer.results[0]

    # ---- mouse ----

    def click(
        self,
        x: float | None = None,
        y: float | None = None,
        *,
        element: str | Mapping[str, str] | None = None,
        button: str = "left",
        count: int = 1,
        keys: str | None = None,
    ) -> None:
        """There, or where the pointer is. button: "left", "middle", "right". count: 2 and 3 with the left one. keys: held meanwhile.
        element: the id of an element of `tree`, or {"role": "push button", "name": "Send"}, which only one may have."""
        names = {("left", 1): "left_click", ("left", 2): "double_click", ("left", 3): "triple_click"}
        names.update({("middle", 1): "middle_click", ("right", 1): "right_click"})
        if (button, count) not in names:
            raise ValueError("button is left, middle or right; count is 1, and 2 or 3 with the left button")
        at = None if x is None or y is None else [x, y]
        self._one(names[button, count], coordinate=at, element=element, text=keys)

    def double_click(self, x: float | None = None, y: float | None = None) -> None:
        self.click(x, y, count=2)

    def move(self, x: float, y: float) -> None:
        self._one("mouse_move", coordinate=[x, y])

    def drag(self, start: Point, end: Point, *, keys: str | None = None) -> None:
        self._one("left_click_drag", start_coordinate=list(start), coordinate=list(end), text=keys)

    def scroll(
        self, direction: str, amount: int = 3, *, x: float | None = None, y: float | None = None, keys: str | None = None
    ) -> None:
        """direction: "up", "down", "left", "right". amount: notches of the wheel."""
        at = None if x is None or y is None else [x, y]
        self._one("scroll", scroll_direction=direction, scroll_amount=amount, coordinate=at, text=keys)

    def cursor_position(self) -> tuple[int, int]:
        x, y = (self._one("cursor_position", settle=False))["coordinate"]
        return x, y

    # ---- keyboard, clipboard ----

    def type(self, text: str) -> None:
        """Text of any script, as if it were typed; a line break is Return."""
        self._one("type", text=text)

    def key(self, keys: str, *, repeat: int | None = None) -> None:
        """"Return", "ctrl+s", "alt+F4"."""
        self._one("key", text=keys, repeat=repeat)

    def hold_key(self, keys: str, seconds: float) -> None:
        self._one("hold_key", text=keys, duration=seconds)

    def clipboard(self) -> str:
        return str((self._client._json(Request.get(self._path("clipboard"))))["text"])

    def set_clipboard(self, text: str) -> None:
        self._client._done(Request.json("PUT", self._path("clipboard"), {"text": text}))

    # ---- screen, windows, browser ----

    def size(self) -> tuple[int, int]:
        document = self._client._json(Request.get(self._path()))
        return document["width"], document["height"]

    def resize(self, width: int, height: int) -> None:
        self._client._done(Request.json("PUT", self._path("size"), {"width": width, "height": height}))

    def windows(self) -> List[Window]:
        """From the bottom to the top."""
        document = self._client._json(Request.get(self._path("windows")))
        return [Window.from_document(each) for each in document["windows"]]

    def tree(self, window: str | None = None, *, max_elements: int | None = None, all: bool = False) -> List[Element]:
        """The elements on the screen, as programs describe them to assistive technology: roles, names, boxes, states. window: only
        windows whose title contains this. all: with elements that only hold others."""
        query = given(window=window, max_elements=max_elements, all="true" if all else None)
        document = self._client._json(Request.get(self._path("tree"), query))
        return [Element.from_document(each) for each in document["elements"]]

    def focus_window(self, window: int) -> None:
        self._client._done(Request.json("PUT", self._path("windows", window), {"focus": True}))

    def move_window(
        self, window: int, *, x: int | None = None, y: int | None = None, width: int | None = None, height: int | None = None
    ) -> None:
        body = given(x=x, y=y, width=width, height=height)
        self._client._done(Request.json("PUT", self._path("windows", window), body))

    def close_window(self, window: int) -> None:
        self._client._done(Request("DELETE", self._path("windows", window)))

    def open(self, url: str = "about:blank") -> None:
        """Opens an address in the browser: in a new tab, if it runs."""
        self._one("open", url=url)
