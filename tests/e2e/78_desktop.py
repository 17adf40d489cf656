#!/usr/bin/python3
"""The desktop template: a screen that is there with the first call, pages that are clicked and typed into, and half-typed forms that
go on in forks and after a hibernation. By the command line, HTTP, MCP and the Python SDK; pictures are read back pixel by pixel."""

# timeout: 2700
import base64
import json
import subprocess
import sys
import time

from lib import documents, pypi
from lib.harness import *
from lib.http import server
from lib.npm import installed, node
from lib.png import pixels
from lib.schema import problems

TEMPLATE = "desktop"
DOCUMENT = json.loads((TOP / "docs/openapi.json").read_text(encoding="utf-8"))
SCHEMAS = DOCUMENT["components"]["schemas"]
RED, GREEN, BLUE, YELLOW = b"\xff\x00\x00", b"\x00\xff\x00", b"\x00\x00\xff", b"\xff\xff\x00"
DESKTOP = bytes((56, 84, 112))  # its colour
# A page with a form. What the form sends is written to /root/answer.
SITE = """
import http.server, json, urllib.parse
PAGE = '''<!doctype html><meta charset=utf-8><title>form</title>
<style>input:focus, textarea:focus {background:#ff0 !important; outline:0} form, form *, .low {position:absolute; box-sizing:border-box; border:0; padding:0; margin:0}</style>
<body style="margin:0; background:#fff; height:3000px"><form method=post action=/done style="left:0; top:0">
<div style="left:0; top:0; width:60px; height:60px; background:#f00" onclick="this.style.background='#0f0'"></div>
<input name=first style="left:100px; top:0; width:500px; height:40px; background:#eee; font-size:20px">
<textarea name=second style="left:100px; top:60px; width:500px; height:80px; background:#eee; font-size:20px"></textarea>
<input name=third type=range min=0 max=100 value=0 style="left:100px; top:150px; width:500px; height:30px">
<button style="left:100px; top:200px; width:200px; height:40px; background:#00f; color:#00f">send</button></form>
<div class=low style="left:0; top:2000px; width:600px; height:1000px; background:#00f"></div>'''.encode()
class Site(http.server.BaseHTTPRequestHandler):
    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer(PAGE)
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        fields = {key: values[0] for key, values in urllib.parse.parse_qs(body).items()}
        open("/root/answer", "w").write(json.dumps(fields))
        self.answer(b"<title>thanks</title><body style='background:#0f0'>")
http.server.HTTPServer(("127.0.0.1", 8000), Site).serve_forever()
"""
# What a program of the SDK does.
PROGRAM = """
import sys
from husk import InvalidError, Sandbox

screen = Sandbox.connect(sys.argv[1]).desktop
assert screen.size() == (1280, 800)
assert any("Chromium" in window.program for window in screen.windows())
screen.click(640, 300)
screen.move(100, 200)
assert screen.cursor_position() == (100, 200)
screen.set_clipboard("ä")
assert screen.clipboard() == "ä"
answer = screen.act([{"action": "wait", "duration": 0.1}], screenshot={"format": "jpeg", "max_width": 640})
assert (answer.screenshot.type, answer.screenshot.width) == ("image/jpeg", 640) and answer.screenshot.raw[0] == 0xff
assert screen.screenshot(region=(0, 0, 10, 10))[1:4] == b"PNG"
try:
    screen.key("nokey")
except InvalidError as error:
    print("refused", error.field)
"""


class Shot:
    """A picture of the screen."""

    def __init__(self, data):
        self.width, self.height, self.size, self.rows = pixels(data)
        assert self.size == 3, "pictures are expected without alpha"

    def at(self, x, y):
        return bytes(self.rows[y][x * 3 : x * 3 + 3])

    def find(self, colour):
        """The upper left corner of the first area of this colour that is 20 pixels wide."""
        for y, row in enumerate(self.rows):
            at = bytes(row).find(colour * 20)
            if at >= 0 and at % 3 == 0:
                return at // 3, y
        raise AssertionError(f"{colour!r} is not on the screen")


def desktop(box, *words, **options):
    return husk("desktop", box, *words, **options)


def act(box, *actions, **fields):
    return desktop(box, "act", json.dumps({"actions": list(actions), "settle": True, **fields}), timeout=120).json()


def shot(box):
    return Shot(desktop(box, "screenshot").out)


def decoded(picture):
    return Shot(base64.b64decode(picture["data"]))


def machine():
    return create("-t", TEMPLATE, "--memory", "2G")


def windows(box):
    return act(box, {"action": "windows"})["results"][0]["windows"]


def shows(box, title):
    return any(title in each["title"] for each in windows(box))


def browsing():
    """A sandbox whose browser shows the form, and the place of the page's corner."""
    box = machine()
    husk("exec", "-i", box, "--", "sh", "-c", "cat >/root/site.py", stdin=SITE.encode())
    husk("exec", "--detach", box, "--", "python3", "/root/site.py")
    sh(box, "until curl -s -o /dev/null http://127.0.0.1:8000/; do sleep 0.1; done")
    desktop(box, "open", "http://127.0.0.1:8000/", timeout=120)
    until(lambda: shows(box, "form"), "the page", 60)
    return box, shot(box).find(RED)


def answer(box):
    return json.loads(sh(box, "until [ -s /root/answer ]; do sleep 0.1; done; cat /root/answer; rm /root/answer"))


def at(origin, x, y):
    return [origin[0] + x, origin[1] + y]


@test
def the_screen_is_there_with_the_first_call():
    box = machine()
    picture = shot(box)
    assert_equal((picture.width, picture.height, picture.at(640, 300)), (1280, 800, DESKTOP))
    assert len({picture.at(x, 784) for x in range(0, 240)}) > 20, "no panel is drawn"
    assert_equal(desktop(box, "size").text, "1280x800\n")
    assert_in("Xfdesktop", desktop(box, "windows").text)
    with scratch() as place:
        for name, start in (("a.jpg", b"\xff\xd8\xff"), ("a.webp", b"RIFF"), ("a.png", b"\x89PNG")):
            desktop(box, "screenshot", place / name)
            assert (place / name).read_bytes().startswith(start), name
    small = Shot(desktop(box, "screenshot", "--region", "600,200,680,300", "--max-width", "40").out)
    assert_equal((small.width, small.height, small.at(20, 25)), (40, 50, DESKTOP))
    # Pages of the browser reach every open port, and other users every open directory.
    assert_equal(sh(box, "stat -c %a /run/husk/desktop; netstat -tln | grep -c LISTEN || true"), "700\n0")
    a_terminal_runs_commands(box)
    a_display_that_died_is_started_again(box)


def half_a_form_goes_on(box, origin):
    """In forks, and after a hibernation."""
    desktop(box, "open", "http://127.0.0.1:8000/", timeout=120)
    until(lambda: shot(box).at(*at(origin, 30, 30)) == RED, "a new page")
    act(box, {"action": "left_click", "coordinate": at(origin, 580, 20)})
    until(lambda: shot(box).at(*at(origin, 300, 35)) == YELLOW, "the focus")
    act(box, {"action": "type", "text": "half"})
    copies = [adopt(each) for each in husk("fork", box, "--count", "2", timeout=180).text.split()]
    for number, each in enumerate([*copies, box]):
        act(each, {"action": "type", "text": f" and {number}"})
    husk("hibernate", box, timeout=120)
    act(box, {"action": "type", "text": ", woken"})
    for each in [*copies, box]:
        act(each, {"action": "left_click", "coordinate": at(origin, 200, 220)})
    assert_equal([answer(each)["first"] for each in [*copies, box]], ["half and 0", "half and 1", "half and 2, woken"])
    # The lock of the browser's profile names the machine: in a copy, another tab opens all the same.
    desktop(copies[0], "open", "http://127.0.0.1:8000/", timeout=120)
    until(lambda: shows(copies[0], "form"), "the tab", 60)


@test
def a_form_is_filled_in_and_goes_on_in_copies():
    box, origin = browsing()
    text = "Grüße, 日本語 Ж 😀 ~@#{}|"
    act(
        box,
        {"action": "left_click", "coordinate": at(origin, 30, 30)},
        {"action": "left_click", "coordinate": at(origin, 580, 20)},
    )
    until(lambda: shot(box).at(*at(origin, 300, 35)) == YELLOW, "the focus")
    act(box, {"action": "type", "text": text}, {"action": "key", "text": "ctrl+a"}, {"action": "key", "text": "ctrl+c"})
    until(lambda: desktop(box, "clipboard").text == text + "\n", "what was typed and copied")
    act(
        box,
        {"action": "set_clipboard", "text": "from the clipboard ✓"},
        {"action": "left_click", "coordinate": at(origin, 580, 80)},
    )
    until(lambda: shot(box).at(*at(origin, 300, 135)) == YELLOW, "the focus")
    done = act(
        box,
        {"action": "key", "text": "CTRL+V"},
        {"action": "wait", "duration": 0.5},
        {"action": "type", "text": "\nA second line"},
        {"action": "left_click_drag", "start_coordinate": at(origin, 110, 165), "coordinate": at(origin, 595, 165)},
        {"action": "mouse_move", "coordinate": at(origin, 700, 300)},
        {"action": "cursor_position"},
        {"action": "zoom", "region": [*at(origin, 0, 0), *at(origin, 60, 60)]},
        screenshot=True,
    )
    results = done["results"]
    assert_equal(results[5]["coordinate"], at(origin, 700, 300))
    zoom = decoded(results[6]["screenshot"])
    assert_equal((zoom.width, zoom.height, zoom.at(400, 400)), (800, 800, GREEN))
    assert_equal(decoded(done["screenshot"]).at(*at(origin, 30, 30)), GREEN)
    # 1000 by 1000, as some models count.
    space = [(origin[0] + 200) * 1000 / 1280, (origin[1] + 220) * 1000 / 800]
    act(box, {"action": "left_click", "coordinate": space}, space={"width": 1000, "height": 1000})
    sent = answer(box)
    assert_equal((sent["first"], sent["second"]), (text, "from the clipboard ✓\r\nA second line"))
    assert int(sent["third"]) > 90, sent
    until(lambda: shows(box, "thanks"), "the next page")
    desktop(box, "key", "alt+Left")
    until(lambda: shows(box, "form"), "the first page")
    desktop(box, "scroll", "down", str(origin[0] + 700), str(origin[1] + 300), "--count", "40")
    until(lambda: shot(box).at(*at(origin, 300, 300)) == BLUE, "the end of the page")
    half_a_form_goes_on(box, origin)


def a_terminal_runs_commands(box):
    sh(box, "gtk-launch xfce4-terminal >/dev/null 2>&1")
    until(lambda: any(each["program"] == "Xfce4-terminal" and each["active"] for each in windows(box)), "the terminal", 60)
    # What comes before the shell listens is kept by the terminal.
    act(box, {"action": "type", "text": "echo $TERM ä >/root/typed; env | grep -c PRELOAD >>/root/typed\n"})
    assert_equal(sh(box, "until [ $(wc -l </root/typed) -ge 2 ]; do sleep 0.1; done 2>/dev/null; cat /root/typed"), "xterm-256color ä\n0")


@test
def what_is_not_possible_is_said():
    box = machine()
    wrong = (
        ({"action": "left_click", "coordinate": [1280, 5]}, ".coordinate", "off the screen, which is 1280x800"),
        ({"action": "left_click", "coordinate": [1]}, ".coordinate", "two numbers"),
        ({"action": "key", "text": "retrun"}, ".text", "did you mean 'Return'"),
        ({"action": "type", "text": "\u0007"}, ".text", "U+0007"),
        ({"action": "type"}, ".text", "missing"),
        ({"action": "zoom", "region": [5, 5, 5, 9]}, ".region", "no size"),
        ({"action": "screenshot", "region": [0, 0, 5000, 9]}, ".region", "not within 1280x800"),
        ({"action": "screenshot", "format": "bmp"}, ".format", "png, jpeg, webp"),
        ({"action": "wait", "duration": 101}, ".duration", "0 to 100"),
        ({"action": "focus_window", "window": 77}, ".window", "not on the screen"),
        ({"action": "resize", "width": 99999, "height": 10}, ".width", "320 to 4096"),
        ({"action": "left_clikc"}, "", "did you mean 'left_click'"),
        ({"action": "left_click", "coordinates": [1, 2]}, "", "did you mean 'coordinate'"),
        ({"action": "open", "url": "--version"}, ".url", "not an address"),
        (7, "", "not an object"),
    )
    with server() as huskd:
        for action, field, says in wrong:
            moves = [{"action": "mouse_move", "coordinate": [11, 12]}, action, {"action": "mouse_move", "coordinate": [500, 500]}]
            answered = huskd.post(f"/v1/sandboxes/{box}/desktop/actions", {"actions": moves}, 400)
            assert_in("action 1", answered.error("invalid", f"actions[1]{field}", says)["message"])
    # Those before it were done, nothing after it.
    assert_equal(act(box, {"action": "cursor_position"})["results"][0]["coordinate"], [11, 12])
    assert_in("did you mean 'click'", desktop(box, "clikc", code=2).error)
    assert_in("not four numbers", desktop(box, "act", '{"screenshot": {"region": [1]}}', code=2).error)
    assert_in("usage", desktop(box, "move", "1", code=2).error)
    husk("template", "build", "base", timeout=BUILD_SECONDS)
    plain = create()
    assert_in("use -t desktop", desktop(plain, "screenshot", code=None).error)
    session = "/.husk/guest/desktop-session 2>&1"
    assert_in("this image has no Xtigervnc xfce4-session dbus-run-session xdpyinfo; install the packages", sh(plain, session, code=1))
    assert_in("it has no apt either; use an image of Debian or Ubuntu", sh(plain, f"mv /usr/bin/apt-get /root/; {session}", code=1))


def a_display_that_died_is_started_again(box):
    act(box, {"action": "mouse_move", "coordinate": [11, 12]})
    sh(box, "pkill -x Xtigervnc")
    assert_in("started again", desktop(box, "click", "5", "5", code=None).error)
    until(lambda: any(each["program"] == "Xfdesktop" for each in windows(box)), "the session", 60)
    assert_equal(desktop(box, "size").text, "1280x800\n")
    sh(box, "pkill -x husk-desktop")
    until(lambda: desktop(box, "size", code=None).code == 0, "the helper")
    # As --warm of an image does it: started in the background, and there when the command ends.
    ends = "pkill -KILL -x desktop-session; pkill -x xfce4-session; pkill -x Xtigervnc; while pgrep -x Xtigervnc; do sleep 0.1; done"
    sh(box, f"{ends} >/dev/null; /.husk/guest/desktop-session --ready && exit 3; /.husk/guest/desktop-session --detach && /.husk/guest/desktop-session --ready")
    assert_in("started again", desktop(box, "size", code=None).error)  # said once
    assert any(each["program"] == "Xfdesktop" for each in windows(box))


@test
def the_routes_answer_as_documented():
    box = machine()
    with server() as huskd:
        path = f"/v1/sandboxes/{box}/desktop"
        state = huskd.get(path).json()
        assert not problems(DOCUMENT, SCHEMAS["Desktop"], state), state
        huskd.put(f"{path}/size", {"width": 1024, "height": 768}, 204)
        made = huskd.post(f"{path}/actions", {"actions": [{"action": "windows"}], "settle": True, "screenshot": True}, 200).json()
        assert not problems(DOCUMENT, SCHEMAS["DesktopAnswer"], made)
        assert_equal((made["width"], made["height"], made["screenshot"]["width"]), (1024, 768, 1024))
        picture = huskd.get(f"{path}/screenshot?region=0,0,100,50&format=png&settle=true")
        assert_equal((picture.headers["Content-Type"], Shot(picture.body).width), ("image/png", 100))
        assert huskd.get(f"{path}/screenshot?format=jpeg&quality=50").body.startswith(b"\xff\xd8\xff")
        huskd.get(f"{path}/screenshot?region=1,2,3", 400).error("invalid", "region")
        huskd.put(f"{path}/size", {"width": 10, "height": 10}, 400).error("invalid", "width")
        huskd.put(f"{path}/clipboard", {"text": "ключ 🔑"}, 204)
        assert_equal(huskd.get(f"{path}/clipboard").json(), {"text": "ключ 🔑"})
        assert_equal(sh(box, "timeout 10 xclip -selection clipboard -o"), "ключ 🔑")
        sh(box, "printf 'from a program' | xclip -selection clipboard -i >/dev/null 2>&1")
        assert_equal(huskd.get(f"{path}/clipboard").json(), {"text": "from a program"})
        husk("exec", "--detach", box, "--", "mousepad")
        editors = lambda: [each for each in huskd.get(f"{path}/windows").json()["windows"] if each["program"] == "Mousepad"]
        until(editors, "the editor", 60)
        window = editors()[0]["id"]
        huskd.put(f"{path}/windows/{window}", {"x": 50, "y": 60, "width": 400, "height": 300, "focus": True}, 204)
        until(lambda: [(each["x"], each["y"], each["active"]) for each in editors()] == [(50, 60, True)], "the move")
        huskd.put(f"{path}/windows/{window}", {}, 400).error("invalid", "focus")
        huskd.call("DELETE", f"{path}/windows/{window}", None, 204)
        until(lambda: not editors(), "the end of the editor")
        huskd.call("DELETE", f"{path}/windows/{window}", None, 400)


def mcp(*calls):
    """The results of these calls of tools."""
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    results = []
    with ending(start("mcp", "--all", stdin=subprocess.PIPE)) as process:

        def say(**message):
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

        say(id=0, method="initialize", params=hello)
        say(method="notifications/initialized")
        for number, (name, arguments) in enumerate(calls, 1):
            say(id=number, method="tools/call", params={"name": name, "arguments": arguments})
            while True:
                message = json.loads(process.stdout.readline())
                if message.get("id") == number:
                    results.append(message["result"])
                    break
        process.stdin.close()
        process.wait(30)
    return results


@test
def the_example_of_the_document_runs():
    blocks = [lines for _, blocks in documents.sections(TOP / "docs/desktop.md") for kind, lines in blocks if kind == "console"]
    with scratch() as place:
        (place / "bin").mkdir()
        (place / "bin/husk").symlink_to(HUSK)
        env = environment({"HOME": str(place)})
        env["PATH"] = f"{place}/bin:{env['PATH']}"
        shell, names = documents.Shell(place, env), {}
        try:
            for command, printed in documents.commands(blocks[0]):
                said, status = shell.run(documents.translate(names, command))
                documents.check(command, printed, said, False)
                documents.learn(names, printed, said)
                assert status == 0 or any(line.startswith("husk: ") for line in printed), f"{command!r}: {said}"
        finally:
            shell.close()
            husk("rm", "-f", "screen", code=None)
        assert Shot((place / "page.png").read_bytes()).width == 1280
        assert (place / "after.jpg").read_bytes().startswith(b"\xff\xd8\xff")


@test
def models_and_programs_use_it():
    box = machine()
    moved, opened, refused = mcp(
        ("computer", {"sandbox": box, "actions": [{"action": "mouse_move", "coordinate": [20, 30]}, {"action": "cursor_position"}]}),
        ("browser_open", {"sandbox": box, "url": "about:blank"}),
        ("computer", {"sandbox": box, "actions": [{"action": "key", "text": "nokey"}]}),
    )
    picture = next(each for each in moved["content"] if each["type"] == "image")
    assert_equal((picture["mimeType"], decoded(picture).width), ("image/png", 1280))
    assert_equal(moved["structuredContent"]["results"][1]["coordinate"], [20, 30])
    assert any(each["type"] == "image" for each in opened["content"]), opened
    assert refused["isError"] and "nokey" in refused["content"][0]["text"], refused
    with server() as huskd:
        env = environment({"PYTHONPATH": str(TOP / "sdk/python"), "HUSK_SOCKET": huskd.socket_path})
        done = subprocess.run([sys.executable, "-c", PROGRAM, box], env=env, capture_output=True, timeout=120 * SLOW, text=True, check=False)
        assert (done.stdout, done.returncode) == ("refused actions[0].text\n", 0), done.stdout + done.stderr


def e2b(command, where):
    """Runs a program of E2B's desktop clients."""
    with server() as huskd:
        url = f"http://127.0.0.1:{huskd.port}"
        key = husk("token", "create", "desktop", "--e2b", "--json").json()["token"]
        env = {"E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_API_KEY": key, "E2B_DOMAIN": None, "E2B_DEBUG": None}
        try:
            done = subprocess.run(
                command, cwd=where, env=environment(env), capture_output=True, text=True, timeout=300 * SLOW, check=False
            )
        finally:
            husk("token", "rm", "desktop")
    assert done.stdout.endswith("done\n"), done.stdout[-2000:] + done.stderr[-2000:]


@test
def e2b_desktop_for_javascript():
    e2b([node(), "suite.mjs"], installed("e2b-desktop"))


@test
def e2b_desktop_for_python():
    try:
        python = pypi.environment(("e2b-desktop==2.7.2",), "e2b-desktop") / "bin/python"
    except (AssertionError, subprocess.TimeoutExpired) as error:
        raise Skip(f"PyPI cannot be reached: {str(error)[-200:]}") from error
    e2b([python, "suite.py"], TOP / "tests/compat/e2b-desktop")


# A definition of somebody who wants a screen, and a program on it that runs in the snapshot. One of its files takes the place of one of
# the desktop's own.
SMALL = {
    "template": "description: a screen\npackages: curl\ndesktop: true\nready: [ -e /root/started ]\n",
    "files/etc/xdg/mimeapps.list": "# of the definition\n",
    "files/etc/xdg/autostart/mine.desktop": "[Desktop Entry]\nType=Application\nName=mine\nExec=touch /root/started\n",
}


def small_definition(place):
    for name, text in SMALL.items():
        path = place / "screen" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return place / "screen"


@test
def any_definition_can_have_one():
    with scratch() as place:
        definition = small_definition(place)
        husk("template", "build", definition, timeout=BUILD_SECONDS)
        (definition / "template").write_text("packages: curl\ndesktop: yes\n", encoding="utf-8")
        assert_in("screen/template:2: desktop: 'yes' is not true or false", husk("template", "build", definition, code=2).error)
    box = create("-t", "screen", "--memory", "1G")
    assert_equal(shot(box).at(640, 300), DESKTOP)
    assert_equal(sh(box, "ls /root/started; cat /etc/xdg/mimeapps.list; echo $DISPLAY; ls /usr/bin/chromium 2>&1 | grep -c 'No such'"), "/root/started\n# of the definition\n:0\n1")
    act(box, {"action": "left_click", "element": {"name": "Xfce Terminal"}})
    until(lambda: any(each["program"] == "Xfce4-terminal" and each["active"] for each in windows(box)), "the terminal", 60)
    act(box, {"action": "type", "text": "echo Grüße >/root/typed\n"})
    assert_equal(sh(box, "until [ -s /root/typed ]; do sleep 0.1; done; cat /root/typed"), "Grüße")
    a_browser_is_missing(box)
    remove(box)
    husk("template", "rm", "screen")


def a_browser_is_missing(box):
    says = "add chromium to the packages of its template"
    assert_in(f"action 0 (open): this desktop has no browser; use -t desktop, or {says}", desktop(box, "open", "about:blank", code=None).error)
    assert_in(f"has no browser; create one from the template 'desktop', or {says}", desktop(box, "profile", "save", "-", code=None).error)
    with server() as huskd:
        huskd.post(f"/v1/sandboxes/{box}/browser", {}, 409).error("conflict", says=says)
    refused = mcp(("browser_open", {"sandbox": box, "url": "about:blank"}))[0]
    assert refused["isError"] and says in refused["content"][0]["text"], refused


@test
def others_act_while_one_waits():
    box = create("-t", "desktop", "--memory", "2G")
    husk("desktop", box, "wait", "0")
    with subprocess.Popen([HUSK, "desktop", box, "wait", "90"], stdin=subprocess.DEVNULL) as waiting:
        time.sleep(1)
        husk("desktop", box, "move", "5", "6")
        husk("desktop", box, "windows")
        assert waiting.poll() is None, "the wait ended first"
        waiting.terminate()


if __name__ == "__main__":
    main(TEMPLATE)
