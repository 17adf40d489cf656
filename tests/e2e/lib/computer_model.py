"""A model on loopback that uses a computer: a session of more than thirty actions, which every client gets in its own shape. It looks
at the pictures that it is sent: it goes on when the page is there, and clicks where it sees it.

    with Model("anthropic", number) as model:
        …  # a client with model.url as its server
    model.check(answer, read)

| shape | requests |
|-|-|
| anthropic | POST /v1/messages |
| openai | POST /v1/responses |
| gemini | POST /v1beta/models/NAME:generateContent |
| plain | POST /plain {"picture": base64 or null} -> {"actions": […]}: the actions of docs/desktop.md, for MCP and the SDKs |

SITE runs in the sandbox: a form, a pad that notes what is done to it, and a file to download.
"""

import base64
import contextlib
import http.server
import json
import threading

from lib.png import pixels

RED, PURPLE, GREEN = b"\xff\x00\x00", b"\x88\x00\x88", b"\x00\xff\x00"
TABS = b"\xd3\xe3\xfd"  # Chromium's, at the top of its window
LAUNCHER = (120, 784)  # of the browser, in the panel
ADDRESS = (640, 63)
TEXT = "Grüße, 日本語 ✓"
PORT = 8000
SITE = """
import http.server, json, urllib.parse
PAGE = '''<!doctype html><meta charset=utf-8><title>form</title>
<style>* {box-sizing:border-box; margin:0} form, form * {position:absolute; border:0; padding:0}</style>
<body style="background:#fff; height:3000px"><form method=post style="left:0; top:0">
<div style="left:0; top:0; width:60px; height:60px; background:#f00"></div>
<input name=first style="left:100px; top:0; width:400px; height:40px; background:#eee; font-size:20px">
<textarea name=second style="left:100px; top:60px; width:400px; height:80px; background:#eee; font-size:20px"></textarea>
<input name=third type=range min=0 max=100 value=0 style="left:100px; top:150px; width:400px; height:30px">
<button style="left:100px; top:200px; width:200px; height:40px; background:#00f; color:#fff">send</button>
<a href=REPORT style="left:320px; top:200px; width:180px; height:40px; background:#fa0; font-size:20px">the report</a>
<div id=pad tabindex=0 style="left:550px; top:0; width:300px; height:250px; background:#ddd"></div><input type=hidden name=log id=log></form>
<script>
const pad = document.getElementById("pad"), log = document.getElementById("log");
const note = (what) => { log.value += what + " "; pad.textContent = log.value; };
for (const kind of ["mousedown", "mouseup", "contextmenu", "wheel"])
  pad.addEventListener(kind, (event) => { event.preventDefault();
    note(kind + (kind === "wheel" ? (event.deltaY > 0 ? "+" : "-") : event.button) + (event.ctrlKey ? "c" : "")); }, {passive: false});
pad.addEventListener("click", (event) => note("click" + event.detail));
pad.addEventListener("auxclick", (event) => event.preventDefault());
addEventListener("keydown", (event) => event.key === "F2" && !event.repeat && note("F2"));
</script>'''
class Site(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def answer(self, body, **headers):
        self.send_response(200)
        for name, value in {"Content-Type": "text/html", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        name = self.path.strip("/")
        if name.startswith("report"):
            self.answer(b"<body style='background:#0f0'>" + name.encode(), Content_Disposition="attachment; filename=" + name)
        else:
            self.answer(PAGE.replace("REPORT", "/report-" + name + ".html").encode())
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        fields = {key: values[0] for key, values in urllib.parse.parse_qs(body).items()}
        open("/root/answer" + self.path.replace("/", "-"), "w").write(json.dumps(fields))
        self.answer(b"<title>thanks</title><body style='background:#808'>")
http.server.ThreadingHTTPServer(("127.0.0.1", %d), Site).serve_forever()
""" % PORT


def act(name, *at, **fields):
    """An action; `at` is relative to the page, or two absolute numbers in `screen`."""
    return {"action": name, **({"page": at} if at else {}), **fields}


def visit(url):
    """Not by ctrl+l: a bubble that tells of a download may have the keyboard."""
    return [act("left_click", screen=ADDRESS), act("key", text="ctrl+a"), act("type", text=url), act("key", text="Return")]


def session(name, short):
    """What the model does, turn after turn. A turn ends with a look at the screen; "until" names the colour that the model waits for.
    A short one has every action, but no file."""
    pad = (700, 100)
    turns = [
        [act("screenshot")],
        [act("left_click", screen=LAUNCHER), act("wait", duration=0.3), {"until": TABS}],
        [*visit(f"http://127.0.0.1:{PORT}/{name}"), {"until": RED}],
        [act("left_click", 480, 20), act("type", text=TEXT), act("key", text="ctrl+a"), act("key", text="ctrl+c")],
        [act("left_click", 480, 100), act("key", text="ctrl+v"), act("key_down", text="shift"), act("key_up", text="shift"), act("type", text="\nEnd")],
        [act("left_click_drag", 490, 165, start=(110, 165))],
        [act("mouse_move", *pad), act("left_mouse_down", *pad), act("left_mouse_up", *pad), act("cursor_position")],
        [act("double_click", *pad), act("triple_click", 600, 200), act("right_click", *pad), act("middle_click", *pad)],
        [act("left_click", *pad, text="ctrl"), act("scroll", *pad, scroll_direction="down", scroll_amount=3)],
        [act("scroll", *pad, scroll_direction="up", scroll_amount=3), act("hold_key", text="F2", duration=1), act("zoom", region=(0, 0, 60, 60))],
        [act("left_click", 410, 220), act("screenshot")],
        [act("left_click", 200, 220, risky=True), {"until": PURPLE}],
        [*visit(f"file:///root/Downloads/report-{name}.html"), {"until": GREEN}],
        [act("key", text="ctrl+shift+w"), act("screenshot")],
    ]
    return [turn for turn in turns if not short or turn[-1].get("until") != GREEN]


def size_of(data):
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def find(data, colour):
    """The upper left corner of the first area of this colour that is 20 pixels wide, or None."""
    _, _, size, rows = pixels(data)
    for y, row in enumerate(rows):
        at = bytes(row).find(colour * 20)
        if at >= 0 and at % size == 0:
            return at // size, y
    return None


class Model:
    """Speaks one shape. `space`: the size of its coordinates, if that is not the picture's."""

    def __init__(self, shape, name, short=False):
        self.shape, self.name, self.short = shape, name, short
        self.turns = session(name, short)
        self.origin, self.waits, self.shown, self.done = None, None, None, False
        self.visited = []  # the actions of the last turn
        self.pictures, self.asked, self.acknowledged, self.problems = [], 0, 0, []
        self.kinds, self.zooms = set(), set()  # what was asked for; the calls whose pictures show only a part
        self.number = 0
        self.size = (1280, 800)

    # ---- what it decides ----

    def look(self, data):
        """A picture came."""
        self.pictures.append(data)
        self.size = size_of(data)

    def next(self):
        """The actions of the next turn; none: it has finished."""
        if self.waits:
            at = find(self.pictures[-1], self.waits)
            if at is None:
                self.asked += 1
                assert self.asked < 40, "the page does not come"
                # On a busy machine the browser may lose a letter of the address: then it is typed again.
                again = self.visited if self.waits in (RED, GREEN) and self.asked % 8 == 0 else []
                return [*again, act("wait", duration=0.3), act("screenshot")]
            if self.waits == RED:
                self.origin = at
            self.shown = self.pictures[-1]
            self.waits = None
        if not self.turns:
            self.done = True
            return []
        turn = self.turns.pop(0)
        self.waits = next((each["until"] for each in turn if "until" in each), None)
        turn = self.visited = [each for each in turn if "action" in each]
        # A turn that waits ends with a look.
        return turn + [act("screenshot")] if self.waits and turn[-1]["action"] != "screenshot" else turn

    def point(self, step, field="page"):
        """In the picture's own pixels."""
        if "screen" in step and field == "page":
            return [step["screen"][0] * self.size[0] // 1280, step["screen"][1] * self.size[1] // 800]
        at = step.get(field)
        scale = self.size[0] / 1280
        return [round(self.origin[0] + at[0] * scale), round(self.origin[1] + at[1] * scale)] if at else None

    def fields(self, step):
        """The step as an action of docs/desktop.md."""
        made = {key: value for key, value in step.items() if key not in ("page", "screen", "start", "risky", "region")}
        if step.get("page") or step.get("screen"):
            made["coordinate"] = self.point(step)
        if "start" in step:
            made["start_coordinate"] = self.point(step, "start")
        if "region" in step:
            corners = (step["region"][:2], step["region"][2:])
            made["region"] = [number for corner in corners for number in self.point({"page": corner})]
        return made

    def identify(self):
        self.number += 1
        return f"call_{self.number}"

    # ---- shapes ----

    def plain(self, body):
        if body.get("picture"):
            self.look(base64.b64decode(body["picture"]))
        return {"actions": [self.fields(step) for step in self.next() if step["action"] != "screenshot"] if not self.done else [], "done": self.done}

    def anthropic(self, body):
        # Later requests hold only what is new.
        assert self.number or any(tool["type"] == "computer_toolset_20260801" for tool in body["tools"]), body
        for block in body["messages"][-1]["content"] if self.number else []:
            if block.get("is_error"):
                self.problems.append(block["content"])
            for piece in block["content"]:
                if piece["type"] == "image" and block["tool_use_id"] not in self.zooms:
                    self.look(base64.b64decode(piece["source"]["data"]))
        content = []
        for step in self.next():
            if step["action"] in ("key_down", "key_up"):
                continue
            made = self.fields(step)
            name = made.pop("action")
            if name in ("left_mouse_down", "left_mouse_up"):
                made.pop("coordinate")
            if name == "wait":
                made["duration"] = 1
            self.kinds.add(name)
            identity = self.identify()
            if name == "zoom":
                self.zooms.add(identity)
            content.append({"type": "tool_use", "id": identity, "name": name, "toolset_name": "computer", "input": made})
        stop = "tool_use" if content else "end_turn"
        content = content or [{"type": "text", "text": "done"}]
        usage = {"input_tokens": 1, "output_tokens": 1}
        return {"id": self.identify(), "type": "message", "role": "assistant", "model": "m", "content": content, "stop_reason": stop, "stop_sequence": None, "usage": usage}

    def openai_action(self, step):
        name, at = step["action"], self.point(step)
        place = {"x": at[0], "y": at[1]} if at else {}
        keys = step["text"].upper().split("+") if name in ("key", "left_click") and "text" in step else None
        held = {"keys": keys} if keys else {}
        buttons = {"left_click": "left", "right_click": "right", "middle_click": "wheel"}
        if name in buttons:
            return {"type": "click", "button": buttons[name], **place, **held}
        if name in ("double_click", "mouse_move"):
            return {"type": {"mouse_move": "move"}.get(name, name), **place}
        if name == "left_click_drag":
            start = self.point(step, "start")
            return {"type": "drag", "path": [{"x": start[0], "y": start[1]}, place]}
        if name == "scroll":
            sign = 1 if step["scroll_direction"] == "down" else -1
            return {"type": "scroll", "scroll_x": 0, "scroll_y": sign * 360, **place}
        if name == "key":
            return {"type": "keypress", **held}
        if name == "type":
            return {"type": "type", "text": step["text"]}
        if name == "hold_key":
            return {"type": "keypress", "keys": [step["text"]]}
        return {"type": name} if name in ("wait", "screenshot") else None

    def openai(self, body):
        last = body["input"][-1]
        if last.get("type") == "computer_call_output":
            self.look(base64.b64decode(last["output"]["image_url"].partition("base64,")[2]))
            self.acknowledged += len(last.get("acknowledged_safety_checks") or [])
        steps = self.next()
        actions = [made for made in map(self.openai_action, steps) if made]
        self.kinds.update(each["type"] for each in actions)
        checks = [{"id": "check", "code": "risky", "message": "it sends a form"}] if any(step.get("risky") for step in steps) else []
        call = {"type": "computer_call", "id": self.identify(), "call_id": self.identify(), "status": "completed", "actions": actions, "pending_safety_checks": checks}
        said = {"type": "output_text", "text": "done", "annotations": [], "logprobs": []}
        message = {"type": "message", "id": self.identify(), "role": "assistant", "status": "completed", "content": [said]}
        return {"id": self.identify(), "object": "response", "created_at": 1, "status": "completed", "model": "m", "output": [call if actions else message],
                "parallel_tool_calls": False, "tool_choice": "auto", "tools": [], "error": None, "incomplete_details": None}  # fmt: skip

    def gemini_call(self, step):
        name, at = step["action"], self.point(step)
        def thousand(point, prefix=""):
            return {f"{prefix}x": point[0] * 1000 / self.size[0], f"{prefix}y": point[1] * 1000 / self.size[1]}
        place = thousand(at) if at else {}
        names = {"left_click": "click", "left_mouse_down": "mouse_down", "left_mouse_up": "mouse_up", "mouse_move": "move"}
        if name == "left_click_drag":
            return "drag_and_drop", {**thousand(self.point(step, "start"), "start_"), **thousand(at, "end_")}
        if name == "scroll":
            return "scroll", {**place, "direction": step["scroll_direction"], "magnitude_in_pixels": 450}
        if name in ("key", "hold_key"):
            keys = step["text"].split("+")
            return ("hotkey", {"keys": keys}) if len(keys) > 1 else ("press_key", {"key": keys[0]})
        if name in ("key_down", "key_up"):
            return name, {"key": step["text"]}
        if name == "type":
            return "type", {"text": step["text"]}
        if name == "wait":
            return "wait", {"seconds": 1}
        if name in ("screenshot", "zoom", "cursor_position"):
            return "take_screenshot", {}
        held = " with keys" if step.get("text") else ""
        return (names.get(name, name), place) if not held else None

    def gemini(self, body):
        for part in body["contents"][-1]["parts"]:
            answer = part.get("functionResponse")
            if answer:
                # The package writes these names and this base64 in the one form or the other; the service reads both.
                blob = answer["parts"][0].get("inlineData") or answer["parts"][0]["inline_data"]
                self.look(base64.urlsafe_b64decode(blob["data"].replace("+", "-").replace("/", "_")))
                self.acknowledged += bool(answer["response"].get("safety_acknowledgement"))
                if "error" in answer["response"]:
                    self.problems.append(answer["response"]["error"])
        parts = []
        for step in self.next():
            made = self.gemini_call(step)
            if not made:
                continue
            name, args = made
            if step.get("risky"):
                args["safety_decision"] = {"decision": "require_confirmation", "explanation": "it sends a form"}
            self.kinds.add(name)
            parts.append({"functionCall": {"id": self.identify(), "name": name, "args": {**args, "intent": "test"}}})
        content = {"role": "model", "parts": parts or [{"text": "done"}]}
        return {"candidates": [{"content": content, "finishReason": "STOP", "index": 0}], "modelVersion": "m"}

    # ---- the server ----

    def __enter__(self):
        model = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status = 200
                try:
                    said = getattr(model, model.shape)(body)
                except (AssertionError, LookupError, TypeError) as error:
                    model.problems.append(f"{type(error).__name__}: {error}")
                    said, status = {"error": {"type": "invalid_request_error", "message": repr(error)}}, 400
                data = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                with contextlib.suppress(BrokenPipeError):
                    self.wfile.write(data)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    # ---- what it has come to ----

    def check(self, answer, report):
        """answer: what the form sent. report: the downloaded file."""
        assert self.done and not self.problems, f"{self.shape}: {self.problems}, {len(self.turns)} turns left"
        assert (answer["first"], answer["second"]) == (TEXT, f"{TEXT}\r\nEnd"), answer
        assert int(answer["third"]) > 90, answer
        assert f"report-{self.name}".encode() in report, report
        noted = answer["log"].split()
        for wanted in ("mousedown0", "mouseup0", "mousedown2", "contextmenu2", "mousedown1", "wheel+", "wheel-", "F2"):
            assert wanted in noted, f"{wanted} is missing: {noted}"
        assert self.shape == "gemini" or "mousedown0c" in noted, noted
        # A press for each click. How a page counts them depends on how fast they come.
        clicks = sum(each.startswith("click") for each in noted)
        assert clicks >= (3 if self.shape == "openai" else 6), noted
        assert self.short or find(self.shown, GREEN), "the downloaded page is not on the screen"
