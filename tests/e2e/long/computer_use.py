#!/usr/bin/env python3
"""A session of more than thirty actions on a desktop, by each way in which a model uses one: the computer tools of Anthropic, OpenAI and
Gemini with the vendors' own packages from PyPI and npm, MCP, and both SDKs. The model is a program on loopback that looks at the
pictures (lib/computer_model.py)."""
# timeout: 1200

import concurrent.futures
import contextlib
import itertools
import json
import os
import pathlib
import subprocess

from lib import npm, pypi
from lib.computer_model import SITE, Model
from lib.harness import *
from lib.http import server
from lib.schema import problems

PACKAGES = ("anthropic==2.9.0", "openai==3.51.0", "google-genai==3.3.0")
PLACE = TOP / "tests/compat/computer"
DOCUMENT = json.loads((TOP / "docs/openapi.json").read_text(encoding="utf-8"))
# Every action of each vendor's tool.
ANTHROPIC = sorted("""key hold_key type cursor_position mouse_move left_mouse_down left_mouse_up left_click left_click_drag right_click middle_click
double_click triple_click scroll wait screenshot zoom""".split())
OPENAI = sorted("click double_click drag keypress move scroll type wait screenshot".split())
GEMINI = sorted("""click double_click triple_click middle_click right_click mouse_down mouse_up move type drag_and_drop wait press_key key_down key_up hotkey
take_screenshot scroll""".split())


def machine():
    """A sandbox with the site, whose browser runs already, with its window out of sight: the model opens one of its own."""
    box = create("-t", "desktop", "--memory", "2G")
    husk("exec", "-i", box, "--", "sh", "-c", "cat >/root/site.py", stdin=SITE.encode())
    husk("exec", "--detach", box, "--", "python3", "/root/site.py")
    husk("desktop", box, "open", "about:blank", timeout=120)
    sh(box, "DISPLAY=:0 xdotool search --onlyvisible --class chromium windowminimize; until curl -s -o /dev/null http://127.0.0.1:8000/; do sleep 0.1; done")
    return box


def play(huskd, box, shape, command, short=False):
    """A session by a program; the model, and what it asked the user."""
    name = f"{shape}-session"
    with Model(shape.rpartition("-")[2], name, short) as model:
        settings = {"PYTHONPATH": str(TOP / "sdk/python"), "PYTHONDONTWRITEBYTECODE": "1", "HUSK_SOCKET": huskd.socket_path}
        command = [*map(str, command), shape, model.url, box]
        done = subprocess.run(command, env=environment(settings), capture_output=True, text=True, timeout=240 * SLOW, check=False)
        keep(model)
        assert done.returncode == 0, f"{name}: {model.problems} {done.stdout[-500:]} {done.stderr[-2500:]}"
    check(box, model)
    return model, json.loads(done.stdout)


def check(box, model):
    sent = json.loads(sh(box, f"cat /root/answer-{model.name}"))
    model.check(sent, husk("cp", f"{box}:/root/Downloads/report-{model.name}.html", "-").out)


def keep(model):
    """With HUSK_TEST_PICTURES, the pictures are kept in that folder, to be looked at."""
    folder = os.environ.get("HUSK_TEST_PICTURES")
    for number, data in enumerate(model.pictures if folder else []):
        pathlib.Path(folder, f"{model.name}-{number:02}.png").write_bytes(data)


@contextlib.contextmanager
def mcp():
    """A session of `husk mcp`: a function that asks it."""
    with ending(start("mcp", "--all", stdin=subprocess.PIPE)) as process:
        numbers = itertools.count()

        def call(method, **parameters):
            number = next(numbers)
            process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": parameters}).encode() + b"\n")
            while True:
                message = json.loads(process.stdout.readline())
                if message.get("id") == number:
                    return message["result"]

        call("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "test", "version": "1"})
        process.stdin.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
        yield call
        process.stdin.close()
        process.wait(30)


def play_mcp(box):
    """A session by the tool `computer` of MCP: actions go in, and a picture comes out."""
    with Model("plain", "mcp-session") as model, mcp() as call:
        wanted = model.plain({})
        while not wanted["done"]:
            result = call("tools/call", name="computer", arguments={"sandbox": box, "actions": wanted["actions"]})
            pictures = [each["data"] for each in result["content"] if each["type"] == "image"]
            assert pictures and not result.get("isError"), result
            wanted = model.plain({"picture": pictures[-1]})
    keep(model)
    check(box, model)


def anthropic(huskd, box, program, programs):
    model, asked = play(huskd, box, "anthropic", program)
    assert_equal((sorted(model.kinds), asked), (ANTHROPIC, [ANTHROPIC]))  # every call was put to the user
    model, asked = play(huskd, box, "ts-anthropic", programs, short=True)
    assert_equal((sorted(model.kinds), asked), (ANTHROPIC, [ANTHROPIC]))
    play_mcp(box)


def openai(huskd, box, program, programs):
    for shape, command, short in (("openai", program, False), ("ts-openai", programs, True)):
        model, asked = play(huskd, box, shape, command, short)
        assert_equal((sorted(model.kinds), model.acknowledged, asked), (OPENAI, 1, [["it sends a form"]]))
    play(huskd, box, "plain", program)


def gemini(huskd, box, program, programs):
    for shape, command, short in (("gemini", program, False), ("ts-gemini", programs, True)):
        model, asked = play(huskd, box, shape, command, short)
        assert_equal((sorted(model.kinds), model.acknowledged), (GEMINI, 1))
        assert_equal([each["explanation"] for each in asked], ["it sends a form"])
    play(huskd, box, "ts-plain", programs)


FORM = """<title>form</title><h1>Hello</h1><form onsubmit="document.title = 'sent ' + this.n.value; return false">
<label>Name <input name=n></label><label><input type=checkbox> Agree</label><button>Send</button></form><button>Twice</button><button>Twice</button>
<input type=password value=hidden><div style="display:none"><button>Unseen</button></div><script>document.write("x".repeat(3000))</script>"""


def elements(huskd, box):
    """Every way to the elements on the screen, in a box that has the browser."""
    husk("exec", "-i", box, "--", "sh", "-c", "cat >/tmp/form.html", stdin=FORM.encode())
    husk("desktop", box, "open", "file:///tmp/form.html", timeout=120)
    path = f"/v1/sandboxes/{box}/desktop"
    listed = []

    def complete():
        listed[:] = huskd.get(f"{path}/tree?window=form", timeout=60).json()["elements"]
        return any(each["name"] == "Send" for each in listed)

    until(complete, "the elements of the page", 60)
    by_name = {(each["role"], each["name"]): each for each in listed}
    for each in listed:
        assert not problems(DOCUMENT, DOCUMENT["components"]["schemas"]["Element"], each), each
    assert_in("editable", by_name["entry", "Name"]["states"])
    assert "Unseen" not in str(listed) and "hidden" not in str(listed), "what is hidden is shown"
    assert all(len(each["name"]) <= 200 for each in listed), "a name is not cut"
    assert_in('push button "Send"', husk("desktop", box, "tree", "form", timeout=120).text)
    few = huskd.get(f"{path}/tree?max_elements=2", timeout=60).json()
    assert_equal((len(few["elements"]), few["truncated"]), (2, True))
    # By name, by id, and by a keyboard that follows.
    fill = [
        {"action": "left_click", "element": {"name": "Name"}},
        {"action": "type", "text": "Ada"},
        {"action": "left_click", "element": by_name["push button", "Send"]["id"]},
    ]
    huskd.post(f"{path}/actions", {"actions": fill, "settle": True}, 200, timeout=120)
    until(lambda: "sent Ada" in husk("desktop", box, "windows").text, "what the form sent")
    for element, says in (({"name": "Twice"}, "2 elements are like that"), ({"name": "Nobody"}, "no element with name 'Nobody'"),
                          ("9.99:1", "not on the screen"), ("../x", "not on the screen"), ({"nam": "x"}, "is not an id"), (7, "is not an id")):
        wrong = {"actions": [{"action": "left_click", "element": element}]}
        huskd.post(f"{path}/actions", wrong, 400, timeout=60).error("invalid", "actions[0].element", says)
    both = {"actions": [{"action": "left_click", "element": "1.1:1", "coordinate": [1, 1]}]}
    huskd.post(f"{path}/actions", both, 400).error("invalid", "actions[0].element", "both given")
    huskd.get(f"{path}/tree?max_elements=0", 400).error("invalid", "max_elements")


def ask_for_a_person(huskd, box):
    """The tool of MCP, while a person takes control and gives it back."""
    control = f"/v1/sandboxes/{box}/desktop/control"
    with mcp() as call:
        asked = call("tools/call", name="request_human", arguments={"sandbox": box, "reason": "log in", "wait_seconds": 0})["structuredContent"]
        assert_equal(asked["state"], "waiting")
        assert_in("husk_access=control", asked["url"])
        with concurrent.futures.ThreadPoolExecutor() as pool:
            arguments = {"sandbox": box, "reason": "log in again", "wait_seconds": 120}
            waiting = pool.submit(call, "tools/call", name="request_human", arguments=arguments)
            until(lambda: (huskd.get(control).json()["request"] or {}).get("reason") == "log in again", "the request")
            huskd.put(control, {"name": "Ada", "holder": "a"})
            huskd.delete(f"{control}?holder=a")
            assert_equal(waiting.result()["structuredContent"]["state"], "done")
        assert call("tools/call", name="request_human", arguments={"sandbox": box, "reason": ""}).get("isError")


@test
def sessions_and_elements():
    """Three sandboxes, which are forks of one with the browser running, at once: a session waits for its screen most of the time."""
    try:
        program = [pypi.python(PACKAGES, "computer"), PLACE / "suite.py"]
        programs = [npm.node(), npm.with_sdk("computer") / "suite.mjs"]
    except (AssertionError, subprocess.TimeoutExpired) as error:
        raise Skip(f"PyPI or npm cannot be reached: {str(error)[-200:]}") from error
    with server() as huskd, concurrent.futures.ThreadPoolExecutor() as pool:
        first = machine()
        boxes = [first, *fork(first, "--count", "2", timeout=180)]
        lanes = [pool.submit(lane, huskd, box, program, programs) for lane, box in zip((anthropic, openai, gemini), boxes)]
        for lane in lanes:
            lane.result()
        elements(huskd, first)
        ask_for_a_person(huskd, first)


if __name__ == "__main__":
    main("desktop")
