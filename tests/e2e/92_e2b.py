#!/usr/bin/env python3
"""E2B's own clients, unmodified from npm at pinned versions, against a real server: tests/compat/e2b prints a line per
method and version. When all versions have run, the table in docs/compat.md is written from what they found
(HUSK_COMPAT_WRITE=1), or compared with it: the document never says what the tests did not see."""
# timeout: 1500

import json
import os
import subprocess

from lib import compat
from lib.harness import BUILD, BUILD_SECONDS, HOME, Skip, assert_equal, assert_no_leaks, environment, husk, main, scratch, test, until
from lib.http import server
from lib.npm import installed, node
from lib.roots import Image, copy_program, small_root

PLACE = BUILD / "compat/e2b"
BEGIN, END = "<!-- table: written by tests/e2e/92_e2b.py -->", "<!-- end of table -->"
# (column, package, program)
VERSIONS = [
    ("oldest", "e2b-oldest", "suite.mjs"),
    ("newest", "e2b", "suite.mjs"),
    ("code", "@e2b/code-interpreter", "code.mjs"),
]
_results = {}
IMAGE = "registry.example.com/tools/compat:1.2"


def put_image():
    """An image into the folder where the server looks for them, as docker would save it."""
    with scratch() as place:
        root = small_root(place)
        for name in ("bash", "grep", "sed", "mkdir", "chown", "cp", "id", "rm"):
            copy_program(root, f"/bin/{name}")
        (root / "etc/image").write_text("an image")
        image = Image(environment=["FROM_IMAGE=a variable"])
        image.add_tree(root)
        image.docker(os.path.join(HOME, "images/compat.tar"), IMAGE)


def version_of(package):
    return json.loads((PLACE / "node_modules" / package / "package.json").read_text(encoding="utf-8"))["version"]


def key(name, *options):
    return husk("token", "create", name, "--e2b", *options, "--json").json()["token"]


def run_program(huskd, program, env=None, timeout=600):
    url = f"http://127.0.0.1:{huskd.port}"
    given = {"E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_VOLUME_API_URL": url, "E2B_API_KEY": key("compat"), "E2B_DOMAIN": None, "E2B_DEBUG": None}
    given["HUSK_COMPAT_LIMITED_KEY"] = key("compat-limited", "--max-sandboxes", "1")
    try:
        return subprocess.run(
            [node(), program], cwd=PLACE, env=environment({**given, **(env or {})}), capture_output=True, text=True, timeout=timeout, check=False
        )
    finally:
        husk("token", "rm", "compat", "compat-limited", code=None)


def run_version(column, package, program):
    installed("e2b")
    results = os.path.join(HOME, f"compat-{column}.json")
    put_image()
    env = {"HUSK_COMPAT_IMAGE": "tools/compat:1.2", "HUSK_COMPAT_PACKAGE": package, "HUSK_COMPAT_LABEL": column, "HUSK_COMPAT_RESULTS": results}
    with server() as huskd:
        done = run_program(huskd, program, env)
        print(done.stdout, end="")
        log = huskd.log()
    assert os.path.exists(results), f"it did not get to its end: {done.stderr[-2000:]} {done.stdout[-500:]}"
    with open(results, encoding="utf-8") as file:
        _results[column] = (package, version_of(package), json.load(file))
    os.unlink(results)
    assert done.returncode == 0, done.stderr[-1000:]
    for word in ("e2b_", "X-Access-Token"):
        assert word not in log, f"the log has {word!r}"


@test
def the_oldest_client():
    run_version(*VERSIONS[0])


@test
def the_newest_client():
    run_version(*VERSIONS[1])


@test
def the_code_interpreter():
    husk("template", "build", "code-interpreter", timeout=BUILD_SECONDS)
    run_version(*VERSIONS[2])


@test
def a_program_of_their_documentation_runs_by_its_environment_alone():
    installed("e2b")
    with server() as huskd:
        done = run_program(huskd, "quickstart.mjs")
    assert done.returncode == 0, f"{done.stdout} {done.stderr}"
    for piece in ("hello world", "dataset.csv", "chart: Sales"):
        assert piece in done.stdout, f"{piece!r} is not in {done.stdout}"


@test
def the_command_line_client():
    """`e2b` of @e2b/cli: what it calls, and that what it prints is there."""
    installed("e2b")
    with server() as huskd:
        url, secret = f"http://127.0.0.1:{huskd.port}", key("compat")
        env = environment({"E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_API_KEY": secret, "E2B_DOMAIN": None, "E2B_DEBUG": None, "NO_COLOR": "1"})

        def cli(*words):
            command = [node(), PLACE / "node_modules/@e2b/cli/dist/index.js", *words]
            done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == 0, f"e2b {' '.join(words)}: {done.stdout[-500:]} {done.stderr[-1000:]}"
            return done.stdout

        try:
            headers = {"X-API-KEY": secret}
            made = huskd.post("/sandboxes", {"templateID": "base"}, status=201, token="", headers=headers).json()["sandboxID"]
            listed = [each["templateID"] for each in json.loads(cli("template", "list", "--format", "json"))]
            assert_equal(listed.count("base"), 1, listed)
            assert made in cli("sandbox", "list")
            assert "base" in cli("sandbox", "info", made)
            assert "said inside" in cli("sandbox", "exec", made, "echo said inside")
            assert "created" in cli("sandbox", "logs", made)
            assert "cpuCount" in cli("sandbox", "metrics", "--format", "json", made)
            cli("sandbox", "pause", made)
            cli("sandbox", "resume", made)
            assert made in cli("sandbox", "kill", made)
            missing = huskd.get("/no/such/path", 404, token="", headers=headers).json()
            assert set(missing) == {"code", "message"}, missing
        finally:
            husk("token", "rm", "compat", code=None)


@test
def the_table_in_the_documentation_is_what_was_seen():
    if len(_results) != len(VERSIONS):
        raise Skip("not every version was run")
    headings = [(column, f"{_results[column][0].removesuffix('-oldest')} {_results[column][1]}") for column, _, _ in VERSIONS]
    seen = {column: results for column, (_, _, results) in _results.items()}
    compat.compare({(BEGIN, END): compat.table(seen, headings)}, "92_e2b.py")


@test
def errors_have_the_shape_and_status_of_theirs():
    with server() as huskd:
        secret = key("compat")
        try:
            headers = {"X-API-KEY": secret}
            made = huskd.post("/sandboxes", {"templateID": "base"}, status=201, token="", headers=headers).json()
            inside = {"E2b-Sandbox-Id": made["sandboxID"], "X-Access-Token": made["envdAccessToken"]}
            other = {**inside, "X-Access-Token": made["trafficAccessToken"]}
            for method, path, body, status, sent in (
                ("GET", "/sandboxes/sb-aaaaaaaaaa", None, 404, headers),
                ("GET", f"/sandboxes/{made['sandboxID']}", None, 401, {}),
                ("GET", f"/sandboxes/{made['sandboxID']}", None, 401, {"X-API-KEY": "e2b_00"}),
                ("POST", "/sandboxes", {"templateID": 7}, 400, headers),
                ("POST", "/sandboxes", {"templateID": "base", "timeout": -1}, 400, headers),
                ("POST", "/sandboxes", {"templateID": "base", "surprise": 1}, 501, headers),
                ("POST", "/sandboxes", b"{", 400, headers),
                ("GET", "/v2/sandboxes?limit=0", None, 400, headers),
                ("GET", "/v2/sandboxes?nextToken=x", None, 400, headers),
                ("GET", "/files?path=/etc/hostname", None, 401, {}),
                ("GET", "/files?path=/etc/hostname", None, 401, other),
                ("GET", "/files?path=/etc/hostname&signature=v1_x", None, 401, {}),
                ("GET", "/files", None, 400, inside),
                ("GET", "/files?path=/nothing", None, 404, inside),
                ("POST", "/files?path=/x", b"no form", 400, inside),
                ("GET", "/contexts", None, 401, {"E2b-Sandbox-Id": made["sandboxID"]}),
            ):
                answer = huskd.call(method, path, body, status, token="", headers=sent).json()
                assert set(answer) == {"code", "message"} and answer["code"] == status, f"{method} {path}: {answer}"
            for path, body, status, code in (
                ("/process.Process/SendSignal", {"process": {"pid": 99999}, "signal": "SIGNAL_SIGKILL"}, 404, "not_found"),
                ("/process.Process/SendInput", {"process": {"pid": 1}}, 400, "invalid_argument"),
                ("/filesystem.Filesystem/Stat", {"path": "/nothing"}, 404, "not_found"),
                ("/filesystem.Filesystem/MakeDir", {"path": "/etc"}, 409, "already_exists"),
                ("/filesystem.Filesystem/CreateWatcher", {"path": "/nothing"}, 404, "not_found"),
                ("/filesystem.Filesystem/CreateWatcher", {"path": "/etc/passwd"}, 400, "invalid_argument"),
                ("/filesystem.Filesystem/GetWatcherEvents", {"watcherId": "w0"}, 404, "not_found"),
                ("/filesystem.Filesystem/RemoveWatcher", {}, 404, "not_found"),
            ):
                answer = huskd.post(path, body, status, token="", headers=inside).json()
                assert answer["code"] == code, f"{path}: {answer}"
            huskd.delete(f"/sandboxes/{made['sandboxID']}", token="", headers=headers)
            gone = huskd.get("/health", 502, token="", headers=inside).json()
            assert gone["code"] == 502, gone
        finally:
            husk("token", "rm", "compat", code=None)


@test
def both_forms_of_an_id_name_the_sandbox():
    """E2B's ids have no '-'. The id of its clients is Husk's without it, and works in each place where an id does."""
    with server() as huskd:
        headers = {"X-API-KEY": key("compat")}
        try:
            made = huskd.post("/sandboxes", {"templateID": "base"}, status=201, token="", headers=headers).json()
            short = made["sandboxID"]
            whole = husk("inspect", short, "--json").json()["id"]
            assert_equal(whole, f"sb-{short[2:]}")
            for each in (short, whole):
                assert_equal(huskd.get(f"/sandboxes/{each}", 200, token="", headers=headers).json()["sandboxID"], short)
                inside = {"E2b-Sandbox-Id": each, "X-Access-Token": made["envdAccessToken"]}
                huskd.get("/health", 204, token="", headers=inside)
                host = {"Host": f"8000-{each}.box.example.com"}
                assert_equal(huskd.get("/", 502, token="", headers=host).json()["sandboxId"], short)
                huskd.get(f"/v1/sandboxes/{each}", 200)
            huskd.post("/v1/sandboxes", {"template": "e2b-base", "name": short}, 409)  # so no name hides an id
            husk("rm", short)
            huskd.get(f"/sandboxes/{whole}", 404, token="", headers=headers)
        finally:
            husk("token", "rm", "compat", code=None)


@test
def traffic_wakes_within_the_quota():
    with server() as huskd:
        headers = {"X-API-KEY": key("compat-memory", "--max-memory", "1500M")}
        try:
            sleeper = {"templateID": "base", "autoPause": True, "autoResume": {"enabled": True}}
            made = huskd.post("/sandboxes", sleeper, status=201, token="", headers=headers).json()
            inside = {"E2b-Sandbox-Id": made["sandboxID"], "X-Access-Token": made["envdAccessToken"]}
            huskd.post(f"/sandboxes/{made['sandboxID']}/pause", {}, 204, token="", headers=headers)
            other = huskd.post("/sandboxes", {"templateID": "base"}, status=201, token="", headers=headers).json()
            refused = huskd.get("/health", 429, token="", headers=inside).json()
            assert "max_memory_bytes" in refused["message"], refused
            huskd.delete(f"/sandboxes/{other['sandboxID']}", token="", headers=headers)
            huskd.get("/health", 204, token="", headers=inside)
            huskd.delete(f"/sandboxes/{made['sandboxID']}", token="", headers=headers)
        finally:
            husk("token", "rm", "compat-memory", code=None)


@test
def a_build_from_a_template_that_nobody_has_used_is_answered_at_once():
    """The template is built by the build, in minutes: clients wait for this answer one minute."""
    husk("rm", "--all", code=None)
    husk("gc", "--all")  # kept steps of builds need the version that they began with
    husk("template", "rm", "e2b-base", code=None)
    with server() as huskd:
        headers = {"X-API-KEY": key("compat")}
        try:
            made = huskd.post("/v3/templates", {"name": "first-use"}, status=202, token="", headers=headers).json()
            place = f"/builds/{made['buildID']}"
            huskd.post(f"/v2/templates/first-use{place}", {"fromTemplate": "base", "steps": []}, status=202, token="", headers=headers)
            built = [each["name"] for each in husk("template", "ls", "--json").json() if each["built"]]
            assert "e2b-base" not in built, "the answer waited for the template"

            def status():
                return huskd.get(f"/templates/first-use{place}/status", token="", headers=headers).json()

            assert_equal(status()["status"], "building")
            until(lambda: status()["status"] != "building", "the build ends", seconds=BUILD_SECONDS, pause=1)
            done = status()
            assert_equal(done["status"], "ready", done)
            assert any("its first use builds it" in line["message"] for line in done["logEntries"]), done
            huskd.delete("/templates/first-use", token="", headers=headers)
        finally:
            husk("token", "rm", "compat", code=None)


@test
def metadata_is_replaced_and_changed():
    """By routes of E2B's that its clients do not use yet."""
    with server() as huskd:
        headers = {"X-API-KEY": key("compat")}
        try:
            made = huskd.post("/sandboxes", {"templateID": "base", "metadata": {"a": "1", "b": "2"}, "autoPause": True}, status=201, token="", headers=headers)
            path = f"/sandboxes/{made.json()['sandboxID']}"

            def change(method, body, wanted, status=204):
                huskd.call(method, f"{path}/metadata", body, status, token="", headers=headers)
                found = huskd.get(path, token="", headers=headers).json()
                assert found["metadata"] == wanted and found["lifecycle"]["onTimeout"] == "pause", f"{method} {body}: {found}"

            change("PATCH", {"c": "3"}, {"a": "1", "b": "2", "c": "3"})
            change("PATCH", {"a": "one", "b": "", "c": None, "d": None}, {"a": "one"})
            change("PATCH", {"a": 1}, {"a": "one"}, 400)
            change("PATCH", {"husk.e2b": "x"}, {"a": "one"}, 400)
            change("PUT", {"x": "y"}, {"x": "y"})
            change("PUT", [], {"x": "y"}, 400)
            change("PUT", {}, {})
            huskd.delete(path, token="", headers=headers)
            huskd.call("PUT", f"{path}/metadata", {}, 404, token="", headers=headers)
        finally:
            husk("token", "rm", "compat", code=None)


@test
def watchers_that_are_polled():
    """What the clients without streams use (Python's, when it does not run on asyncio)."""
    with server() as huskd:
        headers = {"X-API-KEY": key("compat")}
        try:
            boxes = []
            for _ in range(2):
                made = huskd.post("/sandboxes", {"templateID": "base"}, status=201, token="", headers=headers).json()
                boxes.append({"E2b-Sandbox-Id": made["sandboxID"], "X-Access-Token": made["envdAccessToken"]})

            def call(method, body, status=200, box=0):
                return huskd.post(f"/filesystem.Filesystem/{method}", body, status, token="", headers=boxes[box]).json()

            def write(path):
                more = {**boxes[0], "Content-Type": "application/octet-stream"}
                huskd.call("POST", f"/files?path={path}", b"x", 200, token="", headers=more)

            call("MakeDir", {"path": "/tmp/watched"})
            watcher = call("CreateWatcher", {"path": "/tmp/watched", "recursive": True, "includeEntry": True})
            assert call("GetWatcherEvents", watcher) == {"events": []}, "nothing has happened"
            write("/tmp/watched/below/one.txt")
            events = []

            def seen():
                events.extend(call("GetWatcherEvents", watcher)["events"])
                return any(each["name"] == "below/one.txt" and each["type"] == "EVENT_TYPE_CREATE" for each in events)

            until(seen, "the file is told")
            assert any(each.get("entry", {}).get("path") == "/tmp/watched/below/one.txt" for each in events), events
            call("GetWatcherEvents", watcher, 404, box=1)
            call("RemoveWatcher", watcher, 404, box=1)
            assert call("RemoveWatcher", watcher) == {}
            call("GetWatcherEvents", watcher, 404)
            for _ in range(64):
                call("CreateWatcher", {"path": "/tmp"})
            assert call("CreateWatcher", {"path": "/tmp"}, 429)["code"] == "resource_exhausted"
            for each in boxes:
                huskd.delete(f"/sandboxes/{each['E2b-Sandbox-Id']}", token="", headers=headers)
        finally:
            husk("token", "rm", "compat", code=None)


@test
def nothing_is_left_behind():
    assert_no_leaks()


if __name__ == "__main__":
    main("e2b-base")
