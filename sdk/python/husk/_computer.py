"""What the computer tools of OpenAI and Gemini ask for, as actions of docs/desktop.md. Anthropic's tool has those names already.
Nothing here needs a package of a vendor: calls are read by their fields."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ._http import given
from .errors import InvalidError

Action = dict[str, Any]

# One notch of the wheel in Chromium, which is what the models' pixels are about.
NOTCH_PIXELS = 120
NOTCHES_MAX = 200
# Gemini counts from 0 to 999 in both directions.
GEMINI_SPACE = (1000, 1000)
SEARCH = "https://www.google.com/"


def fitted(width: int, height: int, edge: int, patches: int) -> tuple[int, int]:
    """The largest size of these proportions that a model does not make smaller itself: neither side is longer than `edge`, and it
    has at most `patches` squares of 28 pixels. Models that scale a picture click beside what they mean."""

    def fits(wide: int, high: int) -> bool:
        return max(wide, high) <= edge and math.ceil(wide / 28) * math.ceil(high / 28) <= patches

    for wide in range(width, 0, -1):
        high = max(1, round(height * wide / width))
        if fits(wide, high):
            return wide, high
    return 1, 1


def keys_of(keys: Sequence[str] | str | None) -> str | None:
    """["CTRL", "S"] is "ctrl+s" for us; "Control+S" is left as it is."""
    return keys if isinstance(keys, str) else "+".join(keys) if keys else None


def notches(pixels: float) -> int:
    return min(NOTCHES_MAX, max(1, round(abs(pixels) / NOTCH_PIXELS)))


# ---- OpenAI ----

OPENAI_CLICKS = {"left": "left_click", "right": "right_click", "wheel": "middle_click"}
OPENAI_HISTORY = {"back": "alt+Left", "forward": "alt+Right"}


def _openai_click(action: Mapping[str, Any], at: list[float], keys: str | None) -> list[Action]:
    button = action.get("button", "left")
    if button in OPENAI_HISTORY:  # the buttons at the side of a mouse
        return [{"action": "mouse_move", "coordinate": at}, {"action": "key", "text": OPENAI_HISTORY[button]}]
    if button not in OPENAI_CLICKS:
        raise InvalidError(f"button '{button}' is not known (left, right, wheel, back, forward)")
    return [given(action=OPENAI_CLICKS[button], coordinate=at, text=keys)]


def _openai_scroll(action: Mapping[str, Any], at: list[float], keys: str | None) -> list[Action]:
    made = []
    for field, back, on in (("scroll_y", "up", "down"), ("scroll_x", "left", "right")):
        pixels = action.get(field) or 0
        if pixels:
            direction = on if pixels > 0 else back
            made.append(given(action="scroll", coordinate=at, scroll_direction=direction, scroll_amount=notches(pixels), text=keys))
    return made


def openai_actions(action: Mapping[str, Any]) -> list[Action]:
    """An action of a computer_call, as fields. A screenshot is no action: the picture is taken at the end."""
    kind = action.get("type")
    keys = keys_of(action.get("keys"))
    at = [action.get("x", 0), action.get("y", 0)]
    if kind == "click":
        return _openai_click(action, at, keys)
    if kind == "double_click":
        return [given(action="double_click", coordinate=at, text=keys)]
    if kind == "drag":
        return [given(action="left_click_drag", path=[[each["x"], each["y"]] for each in action["path"]], text=keys)]
    if kind == "keypress":
        return [{"action": "key", "text": keys or ""}]
    if kind == "move":
        move = {"action": "mouse_move", "coordinate": at}
        return [{"action": "key_down", "text": keys}, move, {"action": "key_up", "text": keys}] if keys else [move]
    if kind == "scroll":
        return _openai_scroll(action, at, keys)
    if kind == "type":
        return [{"action": "type", "text": action["text"]}]
    if kind == "wait":
        return [{"action": "wait", "duration": 1}]
    if kind == "screenshot":
        return []
    raise InvalidError(f"the action '{kind}' of OpenAI's computer tool is not known")


# ---- Gemini ----

# Actions that differ by name only: 3.5's names, then 2.5's.
GEMINI_POINTED = {
    "click": "left_click",
    "double_click": "double_click",
    "triple_click": "triple_click",
    "middle_click": "middle_click",
    "right_click": "right_click",
    "mouse_down": "left_mouse_down",
    "mouse_up": "left_mouse_up",
    "move": "mouse_move",
    "click_at": "left_click",
    "hover_at": "mouse_move",
}
GEMINI_KEYS = {"press_key": "key", "key_down": "key_down", "key_up": "key_up", "hotkey": "key", "key_combination": "key"}
GEMINI_SCROLLS = ("scroll", "scroll_at", "scroll_document")
GEMINI_HISTORY = {"go_back": "alt+Left", "go_forward": "alt+Right"}


def _gemini_point(args: Mapping[str, Any], x: str = "x", y: str = "y") -> list[float] | None:
    return [args[x], args[y]] if args.get(x) is not None and args.get(y) is not None else None


def _gemini_scroll(name: str, args: Mapping[str, Any], screen: tuple[int, int]) -> Action:
    direction = args.get("direction", "down")
    amount = args.get("magnitude_in_wheel_clicks")
    if amount is None:
        # In thousandths of the screen, like coordinates.
        magnitude = args.get("magnitude_in_pixels", args.get("magnitude", 300 if name == "scroll" else 800))
        amount = notches(magnitude * screen[direction in ("up", "down")] / 1000)
    return given(action="scroll", coordinate=_gemini_point(args), scroll_direction=direction, scroll_amount=amount)


def _gemini_type(name: str, args: Mapping[str, Any]) -> list[Action]:
    older = name == "type_text_at"
    at, made = _gemini_point(args), []
    if at:
        made.append({"action": "left_click", "coordinate": at})
    if older and args.get("clear_before_typing", True):
        made += [{"action": "key", "text": "ctrl+a"}, {"action": "key", "text": "BackSpace"}]
    made.append({"action": "type", "text": args["text"]})
    if args.get("press_enter", older):
        made.append({"action": "key", "text": "Return"})
    return made


def _gemini_drag(args: Mapping[str, Any]) -> Action:
    start = _gemini_point(args, "start_x", "start_y") or _gemini_point(args)
    end = _gemini_point(args, "end_x", "end_y") or _gemini_point(args, "destination_x", "destination_y")
    return given(action="left_click_drag", start_coordinate=start, coordinate=end)


def gemini_actions(name: str, args: Mapping[str, Any], screen: tuple[int, int]) -> list[Action]:
    """A function of Gemini's computer use, of 3.5 (desktop, browser) or 2.5. The picture is taken at the end."""
    if name in GEMINI_POINTED:
        return [given(action=GEMINI_POINTED[name], coordinate=_gemini_point(args))]
    if name in GEMINI_KEYS:
        return [{"action": GEMINI_KEYS[name], "text": keys_of(args.get("keys") or args.get("key")) or ""}]
    if name in GEMINI_SCROLLS:
        return [_gemini_scroll(name, args, screen)]
    if name in GEMINI_HISTORY:
        return [{"action": "key", "text": GEMINI_HISTORY[name]}]
    if name in ("type", "type_text_at"):
        return _gemini_type(name, args)
    if name == "drag_and_drop":
        return [_gemini_drag(args)]
    if name == "long_press":
        at, seconds = _gemini_point(args), args.get("seconds", 2)
        down, up = given(action="left_mouse_down", coordinate=at), {"action": "left_mouse_up"}
        return [down, {"action": "wait", "duration": seconds}, up]
    if name in ("wait", "wait_5_seconds"):
        return [{"action": "wait", "duration": args.get("seconds", 5 if name == "wait_5_seconds" else 1)}]
    if name in ("navigate", "search", "open_web_browser"):
        return [{"action": "open", "url": args.get("url") or (SEARCH if name == "search" else "about:blank")}]
    if name == "take_screenshot":
        return []
    raise InvalidError(f"the function '{name}' of Gemini's computer use is not supported on a desktop")
