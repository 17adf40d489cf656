#!/usr/bin/env python3
"""What people and programs look through at a desktop: the live view in a real browser, take-over, the browser's own protocol driven
by Playwright, and recordings. The VNC socket is also spoken to directly, with what a page would never send."""
# timeout: 2700

import contextlib
import json
import socket
import struct
import subprocess
import sys
import threading
import time

from lib.harness import *
from lib.http import server, start_server, token
from lib.npm import installed, node
from lib.png import pixels
from lib.websocket import Refused, WebSocket

FORM = """<title>form</title><body style="margin:0;background:#00c040"><input id=field style="font-size:60px;width:100%;height:400px">
<script>const field = document.getElementById("field"); field.focus(); field.oninput = () => { document.title = "typed:" + field.value; }</script>"""
HELLO = b"RFB 003.008\n"


def desktop(huskd):
    return huskd.create(template="desktop", memory="2G")["id"]


def form(huskd, box):
    """The browser of the sandbox shows FORM; returns where programs reach it."""
    husk("exec", "-i", box, "--", "sh", "-c", "cat >/tmp/form.html", stdin=FORM.encode())
    return huskd.post(f"/v1/sandboxes/{box}/browser", {"url": "file:///tmp/form.html"}, timeout=120).json()


def play(*words):
    done = subprocess.run([node(), installed("desktop_view") / "suite.mjs", *map(str, words)], capture_output=True, text=True, timeout=240,
                          check=False)
    assert done.returncode == 0, f"{words[0]}: {done.stdout[-2000:]} {done.stderr[-3000:]}"
    return json.loads(done.stdout)


def colours(data):
    """The colours of a picture, the most frequent first."""
    width, height, size, rows = pixels(data)
    count = {}
    for y in range(0, height, 7):
        for x in range(0, width, 7):
            colour = bytes(rows[y][x * size : x * size + 3])
            count[colour] = count.get(colour, 0) + 1
    return sorted(count, key=count.get, reverse=True)


def is_green(data):
    """The picture shows FORM. JPEG inside VNC changes colours a little."""
    return any(red < 12 and abs(green - 0xC0) < 12 and abs(blue - 0x40) < 12 for red, green, blue in colours(data)[:5])


def assert_green(path):
    assert is_green(path.read_bytes()), colours(path.read_bytes())[:5]


class Viewer:
    """A VNC client without a screen."""

    def __init__(self, huskd, target):
        connection = socket.socket(socket.AF_INET)
        connection.connect(("127.0.0.1", huskd.port))
        self.socket = WebSocket(connection, target, host=f"127.0.0.1:{huskd.port}")
        self.rest = b""
        assert_equal(self.take(12), HELLO)
        self.socket.send(HELLO)
        assert 1 in self.take(self.take(1)[0]), "the server wants a password"
        self.socket.send(b"\x01")
        assert_equal(self.take(4), b"\0\0\0\0")
        self.socket.send(b"\x00")
        self.width, self.height = struct.unpack(">HH", self.take(4))
        self.take(16)
        self.take(struct.unpack(">I", self.take(4))[0])

    def take(self, size):
        while len(self.rest) < size:
            piece = self.socket.receive()
            assert piece is not None, "the server closed"
            self.rest += piece
        taken, self.rest = self.rest[:size], self.rest[size:]
        return taken

    def point(self, x, y, buttons=0):
        self.socket.send(struct.pack(">BBHH", 5, buttons, x, y))

    def key(self, symbol, down=True):
        self.socket.send(struct.pack(">BBHI", 4, down, 0, symbol))

    def see(self):
        """Asks for one raw pixel and waits for it: what was sent before has been read by then."""
        self.rest = b""
        self.socket.send(struct.pack(">BBHi", 2, 0, 1, 0))
        self.socket.send(struct.pack(">BBHHHH", 3, 0, 0, 0, 1, 1))
        kind, _, count = struct.unpack(">BBH", self.take(4))
        assert_equal((kind, count > 0), (0, True))

    def close(self):
        self.socket.connection.close()


def link(huskd, box, **fields):
    url = huskd.post(f"/v1/sandboxes/{box}/desktop/url", fields).json()["url"]
    assert url.startswith(f"http://localhost:{huskd.port}/v1/sandboxes/{box}/desktop/view?"), url
    return url


def beside(url, name, **more):
    """The target of another route, with the signature of the link."""
    path, _, query = url.partition("/desktop/view?")
    return "/v1" + path.partition("/v1")[2] + f"/desktop/{name}?" + query + "".join(f"&{key}={value}" for key, value in more.items())


def pointer(box):
    words = sh(box, "DISPLAY=:0 xdotool getmouselocation").split()
    return tuple(int(word.partition(":")[2]) for word in words[:2])


def refused(huskd, target, status):
    try:
        Viewer(huskd, target)
    except Refused as error:
        assert_equal(error.status, status)
        return error.json()["error"]["message"]
    raise AssertionError(f"{target} was not refused")


@test
def input_needs_control():
    with server() as huskd:
        box, other = desktop(huskd), huskd.create(template="desktop", memory="2G")["id"]
        look, control = link(huskd, box), link(huskd, box, view_only=False)

        watching = Viewer(huskd, beside(look, "vnc"))
        assert_equal((watching.width, watching.height), (1280, 800))
        before = pointer(box)
        watching.point(11, 12)
        watching.key(0x61)
        watching.socket.send(struct.pack(">BBHII", 255, 0, 1, 0x61, 0x1E))  # QEMU's key
        watching.socket.send(struct.pack(">BBHHBB", 251, 0, 640, 480, 1, 0) + bytes(16))  # another size
        watching.see()
        assert_equal(pointer(box), before)

        # A link that permits control is not control.
        driving = Viewer(huskd, beside(control, "vnc", holder="me"))
        driving.point(21, 22)
        driving.see()
        assert_equal(pointer(box), before)
        taken = huskd.put(beside(control, "control"), {"name": "Ada", "holder": "me", "ttl_seconds": 60}, token="").json()
        assert_equal((taken["held"], taken["name"], taken["holder"]), (True, "Ada", "me"))
        time.sleep(0.5)  # the server looks four times a second
        driving.point(31, 32)
        driving.see()
        assert_equal(pointer(box), (31, 32))
        # Others watch on, and hear nothing of the key.
        watching.point(41, 42)
        watching.see()
        assert_equal(pointer(box), (31, 32))
        assert_equal(huskd.get(beside(look, "control"), token="").json()["holder"], None)

        # Control that ends while a button is held: it is released.
        driving.point(33, 34, 1)
        driving.see()
        huskd.delete(beside(control, "control", holder="me"), token="")
        time.sleep(0.8)
        driving.point(51, 52)
        driving.see()
        assert_equal(pointer(box), (33, 34))
        watching.close()
        driving.close()

        # What a link does not permit.
        for target in (beside(look, "vnc", view_only="false", holder="me"),):
            assert "viewing only" in refused(huskd, target, 403)
        huskd.put(beside(look, "control"), {"name": "Eve"}, 403, token="")
        huskd.delete(beside(look, "control", holder="me"), 403, token="")
        huskd.post(beside(control, "url"), {}, 401, token="")
        huskd.get(beside(look, "vnc").replace(box, other), 401, token="")
        huskd.get(beside(look, "vnc").replace("husk_access=view", "husk_access=control"), 401, token="")
        huskd.get(f"/v1/sandboxes/{box}/desktop/vnc", 401, token="")
        expired = link(huskd, box, expires_seconds=1)
        time.sleep(1.2)
        huskd.get(beside(expired, "view"), 401, token="")
        what_is_not_vnc_ends(huskd, box, look)


def what_is_not_vnc_ends(huskd, box, look):
    for wrong in (b"GET / HTTP/1.1\r\n\r\n", HELLO + b"\x02", HELLO + b"\x01\x01\x09", HELLO + b"\x01\x01\x02\x00\xff\xff", "text") * 2:
        connection = socket.socket(socket.AF_INET)
        connection.connect(("127.0.0.1", huskd.port))
        viewer = WebSocket(connection, beside(look, "vnc"), host="localhost")
        viewer.send(wrong)
        while viewer.receive() is not None:
            pass
        assert_equal(viewer.close_status, 1008)
        connection.close()
    plain = huskd.create()["id"]
    assert "no desktop" in refused(huskd, beside(link(huskd, plain), "vnc"), 409)
    Viewer(huskd, beside(look, "vnc")).see()


@test
def a_person_takes_over_in_a_browser():
    with server() as huskd, scratch() as place:
        box = desktop(huskd)
        browser = form(huskd, box)
        until(lambda: play("drive", browser["cdp_url"], "", "")["title"] == "form", "the form", 60, 1)
        seen = play("take", link(huskd, box, view_only=False), place / "take.png", 640, 400, "by hand")
        assert_equal((seen["status"], seen["complaints"]), ("You are in control", []))
        assert_green(place / "take.png")
        assert_equal(play("drive", browser["cdp_url"], "", "")["title"], "typed:by hand")
        kinds = event_kinds(box)
        assert "control_taken" in kinds and "control_given_back" in kinds, kinds


@test
def an_agent_asks_for_a_person():
    with server() as huskd, scratch() as place:
        box = desktop(huskd)
        waited = {}

        def agent():
            waited.update(huskd.post(f"/v1/sandboxes/{box}/desktop/control/request", {"reason": "log in <b>", "wait_seconds": 120},
                                     timeout=150).json())

        thread = threading.Thread(target=agent)
        thread.start()
        seen = play("watch", link(huskd, box), place / "watch.png")
        assert_equal((seen["request"], seen["button"], seen["complaints"]), ("The agent asks for a person: log in <b>", False, []))
        huskd.put(f"/v1/sandboxes/{box}/desktop/control", {"name": "Ada", "holder": "a"})
        assert_equal(huskd.get(f"/v1/sandboxes/{box}/desktop/control").json()["request"]["state"], "taken")
        # Agents may look, but not act.
        actions = f"/v1/sandboxes/{box}/desktop/actions"
        click = {"actions": [{"action": "left_click", "coordinate": [5, 5]}]}
        for said in (huskd.post(f"/v1/sandboxes/{box}/browser", {}, 409), huskd.post(actions, click, 409)):
            assert "Ada controls the desktop" in said.json()["error"]["message"], said
        huskd.post(actions, {"actions": [{"action": "cursor_position"}, {"action": "screenshot"}]})
        assert "Ada controls the desktop" in husk("desktop", box, "click", "5", "5", code=1).error
        huskd.delete(f"/v1/sandboxes/{box}/desktop/control?holder=a")
        huskd.post(actions, click)
        thread.join(60)
        assert_equal((waited["held"], waited["request"]["state"]), (False, "done"))


@test
def control_outlives_the_server_and_expires():
    huskd = start_server()
    box = huskd.create()["id"]
    path = f"/v1/sandboxes/{box}/desktop/control"
    huskd.put(path, {"name": "Ada", "holder": "a", "ttl_seconds": 600})
    huskd.kill()
    with server() as again:
        assert_equal(again.get(path).json()["name"], "Ada")
        assert_equal(husk("desktop", box, "control").text, "Ada is in control\n")
        assert "Ada controls the desktop" in again.put(path, {"name": "Bob", "holder": "b"}, 409).text
        again.delete(path + "?holder=b", 409)
        child = fork(box)[0]
        assert_equal(again.get(f"/v1/sandboxes/{child}/desktop/control").json()["held"], False)
        again.put(path, {"name": "Ada", "holder": "a", "ttl_seconds": 1})
        until(lambda: not again.get(path).json()["held"], "the end of control", 10)
        again.put(path, {"name": "Bob", "holder": "b"})
        husk("desktop", box, "control", "release")
        assert_equal(again.get(path).json()["held"], False)
        for wrong, field in (({}, "name"), ({"name": "a\nb"}, "name"), ({"name": "A", "holder": "a b"}, "holder"),
                             ({"name": "A", "ttl_seconds": 9999}, "ttl_seconds")):
            again.put(path, wrong, 400).error("invalid", field)


@test
def playwright_drives_the_browser():
    with server() as huskd, token("cdp") as secret, token("stranger") as other:
        box = huskd.create(token=secret, template="desktop", memory="2G")["id"]
        husk("exec", "-i", box, "--", "sh", "-c", "cat >/tmp/form.html", stdin=FORM.encode())
        base = f"/v1/sandboxes/{box}/browser"
        huskd.get(base + "/json/version", 409, token=secret)  # none runs yet
        browser = huskd.post(base, {"url": "file:///tmp/form.html"}, token=secret, timeout=120).json()
        until(lambda: play("drive", browser["cdp_url"], "", "")["title"] == "form", "the form", 60, 1)
        assert_equal(play("drive", browser["cdp_url"], "", "by link")["title"], "typed:by link")
        assert_equal(play("drive", browser["url"], secret, "by token")["title"], "typed:by token")

        version = huskd.get(base + "/json/version", token=secret).json()
        assert version["webSocketDebuggerUrl"].startswith(f"ws://localhost:{huskd.port}{base}/devtools/browser/"), version
        pages = huskd.get(base + "/json/list", token=secret).json()
        assert all(each["webSocketDebuggerUrl"].startswith(f"ws://localhost:{huskd.port}{base}/devtools/page/") for each in pages), pages
        target = browser["cdp_url"].partition(str(huskd.port))[2]
        for path in (target.replace("/browser/cdp", "/desktop/vnc"), target.replace("/browser/cdp", "/desktop/control"), base + "/json/version"):
            huskd.get(path, 401, token="")
        huskd.get(base + "/json/version", 404, token=other)

        # The guest's own pages do not get in.
        port = sh(box, "cat /root/.config/husk-browser/DevToolsActivePort").split()
        tried = play("attack", browser["cdp_url"], *port)
        assert_equal(tried, {"protocol": "refused", "version": "refused", "fresh": "refused", "vnc": ["refused"] * 3})

        # While a person is in control, what Playwright sends waits.
        path = f"/v1/sandboxes/{box}/desktop/control"
        with contextlib.closing(socket.socket()) as connection:
            connection.connect(("127.0.0.1", huskd.port))
            protocol = WebSocket(connection, target, host="localhost", seconds=60)
            protocol.send({"id": 1, "method": "Browser.getVersion"})
            assert_equal(protocol.receive()["id"], 1)
            huskd.put(path, {"name": "Ada", "holder": "a"})
            time.sleep(0.4)
            protocol.send({"id": 2, "method": "Browser.getVersion"})
            connection.settimeout(1.5)
            try:
                raise AssertionError(f"answered while a person is in control: {protocol.receive()}")
            except TimeoutError:
                pass
            connection.settimeout(60)
            huskd.delete(path)
            assert_equal(protocol.receive()["id"], 2)


@test
def recordings_are_made_on_the_host():
    with server() as huskd, scratch() as place:
        box = desktop(huskd)
        base = f"/v1/sandboxes/{box}/desktop/recordings"
        made = huskd.post(base, {"max_seconds": 120}, 201).json()
        assert_equal((made["state"], made["width"], made["height"]), ("recording", 1280, 800))
        huskd.delete(f"{base}/{made['id']}", 409)
        form(huskd, box)
        huskd.post(f"/v1/sandboxes/{box}/desktop/actions", {"actions": [{"action": "mouse_move", "coordinate": [9, 9]}]})
        until(lambda: is_green(huskd.get(f"/v1/sandboxes/{box}/desktop/screenshot").body), "the form on the screen", 60)
        time.sleep(1)  # ten pictures
        done = huskd.post(f"{base}/{made['id']}/stop").json()
        assert_equal((done["state"], done["reason"]), ("complete", "stopped"))
        screen = huskd.get(f"{base}/{made['id']}/screen").body
        assert_equal((len(screen), screen[:12]), (done["bytes"], b"FBS 001.001\n"))
        noted = [json.loads(line) for line in huskd.get(f"{base}/{made['id']}/actions").text.splitlines()]
        assert_equal([each["action"] for each in noted], [{"action": "mouse_move", "coordinate": [9, 9]}])
        assert 0 < noted[0]["ms"] < done["duration_seconds"] * 1000, noted
        seen = play("replay", link(huskd, box, recording=made["id"]), place / "replay.png")
        assert_equal(seen["complaints"], [])
        assert_green(place / "replay.png")

        # A limit in bytes ends it, and one in time.
        small = huskd.post(base, {"max_bytes": "70K"}, 201).json()
        short = husk("desktop", box, "record", "1", "--json").json()
        assert_equal((short["state"], short["reason"]), ("complete", "time"))
        # The same over a server, which records.
        there = ("--host", f"unix:{huskd.socket_path}", "desktop", box)
        short = husk(*there, "record", "1", "--json").json()
        assert_equal((short["state"], short["reason"]), ("complete", "time"))
        assert_in(short["id"], husk(*there, "recordings").text)
        until(lambda: huskd.get(f"{base}/{small['id']}").json()["reason"] == "size", "the limit in bytes", 30)
        assert huskd.get(f"{base}/{small['id']}").json()["bytes"] <= 70 * 1024

        # The recorder dies: what it wrote is kept. The sandbox ends: so is that.
        cut = huskd.post(base, {}, 201).json()
        huskd.kill()
        with server() as again:
            states = {each["id"]: each["state"] for each in again.get(base).json()["recordings"]}
            assert_equal((states[made["id"]], states[cut["id"]]), ("complete", "cut"))
            again.delete(f"{base}/{cut['id']}")
            again.get(f"{base}/{cut['id']}", 404)
            again.get(f"{base}/rec-/../../x", 400)
            husk("rm", box)
            assert_equal(len(again.get(f"{base}/{made['id']}/screen").body), done["bytes"])


@test
def a_stopping_server_ends_its_recordings():
    huskd = start_server()
    box = desktop(huskd)
    made = huskd.post(f"/v1/sandboxes/{box}/desktop/recordings", {}, 201).json()
    assert_equal(huskd.stop(), 0)
    listed = husk("desktop", box, "recordings", "--json").json()["recordings"]
    assert_equal([(each["id"], each["state"], each["reason"]) for each in listed], [(made["id"], "complete", "stopped")])


@test
def the_python_sdk():
    sys.path.insert(0, str(TOP / "sdk/python"))
    import husk as sdk

    with server() as huskd:
        box = desktop(huskd)
        with sdk.Client(f"unix:{huskd.socket_path}") as client:
            sandbox = sdk.Sandbox.connect(box, client=client)
            Viewer(huskd, beside(sandbox.desktop.url(), "vnc")).see()
            taken = sandbox.desktop.take_over("Ada", ttl_seconds=60)
            assert_equal((taken.name, sandbox.desktop.control().held), ("Ada", True))
            try:
                sandbox.desktop.click(5, 5)
                raise AssertionError("clicked while a person is in control")
            except sdk.ConflictError as error:
                assert "Ada" in str(error), error
            sandbox.desktop.give_back(taken.holder)
            assert_equal(sandbox.desktop.request_human("look").request["state"], "waiting")
            recording = sandbox.desktop.record(max_seconds=30)
            assert_equal(sandbox.desktop.stop_recording(recording.id).state, "complete")
            assert sandbox.desktop.read_recording(recording.id).startswith(b"FBS ")
            assert_equal(json.loads(sandbox.desktop.export_recording(recording.id, format="json"))["id"], recording.id)
            assert_equal([each.id for each in sandbox.desktop.recordings()], [recording.id])
            sandbox.desktop.remove_recording(recording.id)
            husk("exec", "-i", box, "--", "sh", "-c", "cat >/tmp/form.html", stdin=FORM.encode())
            assert_equal(play("drive", sandbox.browser.cdp_url("file:///tmp/form.html"), "", "from Python")["title"], "typed:from Python")


# Gives a cookie, and says in the title whether it knows the browser.
SITE = """
from http.server import BaseHTTPRequestHandler, HTTPServer
class Site(BaseHTTPRequestHandler):
    def do_GET(self):
        known = "login=ada" in self.headers.get("Cookie", "")
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Set-Cookie", "login=ada; Max-Age=86400")
        self.end_headers()
        self.wfile.write(b"<title>%s</title>" % (b"known" if known else b"stranger"))
HTTPServer(("127.0.0.1", 8123), Site).serve_forever()
"""


@test
def a_profile_goes_to_another_sandbox():
    def visit(box):
        husk("desktop", box, "open", "http://127.0.0.1:8123/", timeout=120)
        titles = [each["title"] for each in husk("desktop", box, "windows", "--json").json()["results"][0]["windows"]]
        return [title for title in titles if title.endswith("- Chromium")]

    one, two = (create("-t", "desktop", "--memory", "2G") for _ in range(2))
    for box in (one, two):
        husk("exec", "-i", box, "--", "sh", "-c", "cat >/tmp/site.py", stdin=SITE.encode())
        husk("exec", "-d", box, "--", "python3", "/tmp/site.py")
    assert "no profile yet" in husk("desktop", one, "profile", "save", "-", code=3).error
    assert_equal(visit(one), ["stranger - Chromium"])
    saved = husk("desktop", one, "profile", "save", "-", timeout=120).out
    husk("desktop", two, "profile", "load", "-", stdin=saved, timeout=120)
    assert_equal(visit(two), ["known - Chromium"])
    # What is no profile changes nothing.
    husk("desktop", two, "profile", "load", "-", stdin=b"no tar" * 1000, code=2, timeout=120)
    husk("desktop", two, "profile", "load", "/dev/null", code=2, timeout=120)
    assert_equal(visit(two), ["known - Chromium"])
    with server() as huskd:
        path = f"/v1/sandboxes/{two}/browser/profile"
        huskd.put(f"/v1/sandboxes/{two}/desktop/control", {"name": "Ada", "holder": "a"})
        huskd.get(path, 409)
        huskd.delete(f"/v1/sandboxes/{two}/desktop/control")
        assert len(huskd.get(path, timeout=120).body) > 10000
    plain = create()
    assert "no desktop" in husk("desktop", plain, "profile", "save", "-", code=None).error


@test
def the_command_prints_a_link():
    box = create("-t", "desktop", "--memory", "2G")
    assert "no server listens" in husk("desktop", box, "view", code=1).error
    with server() as huskd:
        url = husk("desktop", box, "view").text.strip()
        assert "husk_access=view" in url, url
        Viewer(huskd, beside(url, "vnc")).see()
        assert "husk_access=control" in husk("desktop", box, "view", "control").text
        husk("desktop", box, "view", "nothing", code=2)


if __name__ == "__main__":
    main("desktop")
