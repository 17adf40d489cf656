#!/usr/bin/python3
"""huskd: files over HTTP: bytes with ranges, entries, directories as tar, watches; large ones, odd ones, broken ones."""

# timeout: 1200
import base64
import hashlib
import http.client
import io
import os
import socket
import tarfile
import urllib.parse

from lib.harness import *
from lib.http import *

_server = []


def huskd():
    """One server for all tests of this file."""
    if not _server:
        _server.append(start_server())
    return _server[0]


def url(box, rest="", **query):
    text = urllib.parse.urlencode(query, quote_via=urllib.parse.quote)
    return f"/v1/sandboxes/{box}/files{rest}" + (f"?{text}" if text else "")


def write(box, path, data, **query):
    return huskd().put(url(box, path=path, **query), data, status=201).json()


def read(box, path, status=200, **options):
    return huskd().get(url(box, path=path), status=status, **options)


def names(box, path, **query):
    return [entry["path"] for entry in huskd().get(url(box, "/list", path=path, **query)).json()["entries"]]


@test
def test_write_and_read():
    box = create()
    entry = write(box, "/root/new/dir/file", b"hello\0world", mode="0640", user="nobody")
    assert entry.pop("modified_at").startswith("20")
    assert entry.pop("uid") > 0 and entry.pop("gid") > 0 and entry.pop("group")
    assert_equal(
        entry,
        {
            "path": "/root/new/dir/file",
            "name": "file",
            "type": "file",
            "size": 11,
            "mode": "0640",
            "user": "nobody",
            "target": None,
        },
    )
    answer = read(box, "/root/new/dir/file")
    assert_equal(answer.body, b"hello\0world")
    assert_equal(
        (answer.headers["Content-Length"], answer.headers["Content-Type"], answer.headers["Accept-Ranges"]),
        ("11", "application/octet-stream", "bytes"),
    )
    write(box, "/root/new/dir/file", b"")
    assert_equal(read(box, "/root/new/dir/file").body, b"")
    assert_in(b"MemTotal", read(box, "/proc/meminfo").body)
    head = huskd().call("HEAD", url(box, path="/etc/passwd"))
    assert_equal((head.body, int(head.headers["Content-Length"]) > 100), (b"", True))
    for odd in ("/root/ä", "/root/a b", "/root/100%", "/root/a+b?c&d=e#f", "/root/x/../y"):
        write(box, odd, odd.encode())
        assert_equal(read(box, odd).text, odd)
    raw = f"/v1/sandboxes/{box}/files?path=/root/odd/%FF%FE"
    assert_equal(base64.b64decode(huskd().put(raw, b"bytes", status=201).json()["path_base64"]), b"/root/odd/\xff\xfe")
    assert_equal(huskd().get(raw).body, b"bytes")


@test
def test_ranges():
    box = create()
    data = bytes(range(256)) * 40
    write(box, "/root/f", data)
    size = len(data)
    for header, first, last in (
        ("bytes=0-0", 0, 0),
        ("bytes=0-99", 0, 99),
        ("bytes=100-", 100, size - 1),
        ("bytes=-1", size - 1, size - 1),
        ("bytes=-999999", 0, size - 1),
        (f"bytes={size - 5}-999999", size - 5, size - 1),
        ("BYTES=5-6", 5, 6),
    ):
        answer = read(box, "/root/f", status=206, headers={"Range": header})
        assert_equal(answer.body, data[first : last + 1], header)
        assert_equal(answer.headers["Content-Range"], f"bytes {first}-{last}/{size}", header)
    for header in (f"bytes={size}-", "bytes=-0", "bytes=99999999999999999999999-"):
        answer = read(box, "/root/f", status=416, headers={"Range": header})
        assert_equal(answer.headers["Content-Range"], f"bytes */{size}", header)
        answer.error("invalid", "Range")
    for header in ("bytes=5-1", "bytes=", "bytes=-", "bytes=a-b", "lines=1-2", "bytes=0-1,5-6", "bytes 0-1", "bytes=0 -1"):
        assert_equal(read(box, "/root/f", headers={"Range": header}).body, data, header)
    assert_equal(read(box, "/root/f", headers={"Range": "bytes=0-1", "If-Range": '"x"'}).body, data)


@test
def test_entries():
    box = create()
    made = huskd().post(url(box, "/mkdir"), {"path": "/root/d/e", "mode": "0700", "user": "nobody"}, status=201).json()
    assert_equal((made["type"], made["mode"], made["user"]), ("directory", "0700", "nobody"))
    write(box, "/root/d/e/f", b"x")
    sh(box, "ln -s /etc/passwd /root/d/link; mkfifo /root/d/fifo")
    link = huskd().get(url(box, "/stat", path="/root/d/link")).json()
    assert_equal((link["type"], link["target"], link["name"]), ("symlink", "/etc/passwd", "link"))
    assert_equal(huskd().get(url(box, "/stat", path="/root/d/link", follow="true")).json()["type"], "file")
    assert_equal(huskd().get(url(box, "/stat", path="/root/d/fifo")).json()["type"], "other")
    assert_equal(huskd().get(url(box, "/stat", path="/")).json()["name"], "/")
    assert_equal(sorted(names(box, "/root/d")), ["/root/d/e", "/root/d/fifo", "/root/d/link"])
    assert_in("/root/d/e/f", names(box, "/root/d", depth=2))
    moved = huskd().post(url(box, "/move"), {"path": "/root/d/e/f", "target": "/root/d/g"}).json()
    assert_equal((moved["path"], moved["size"]), ("/root/d/g", 1))
    changed = huskd().post(url(box, "/chmod"), {"path": "/root/d/g", "mode": "755"}).json()
    assert_equal(changed["mode"], "0755")
    huskd().delete(url(box, path="/root/d"))
    huskd().get(url(box, "/stat", path="/root/d"), status=404).error("not_found")
    sh(box, "mkdir /root/many; cd /root/many; seq 1 3000 | xargs touch")
    assert_equal(len(names(box, "/root/many")), 3000)


@test
def test_tar():
    box = create()
    sh(box, "mkdir -p /root/t/sub; echo one >/root/t/a; echo two >/root/t/sub/b; ln -s a /root/t/l; chmod 750 /root/t/a")
    answer = huskd().get(url(box, "/tar", path="/root/t"))
    assert_equal(answer.headers["Content-Type"], "application/x-tar")
    with tarfile.open(fileobj=io.BytesIO(answer.body)) as archive:
        found = {member.name.rstrip("/").removeprefix("./"): member for member in archive.getmembers()}
        assert any(name.endswith("sub/b") for name in found), found
    huskd().put(url(box, "/tar", path="/root/copy"), answer.body, status=204)
    assert_equal(sh(box, "cd /root/copy && find . -name b -exec cat {} +"), "two")
    huskd().put(url(box, "/tar", path="/root/bad"), b"this is no tar" * 100, status=None).error("invalid")
    evil = io.BytesIO()
    with tarfile.open(fileobj=evil, mode="w") as archive:
        member = tarfile.TarInfo("../../root/escaped")
        member.size = 1
        archive.addfile(member, io.BytesIO(b"x"))
    huskd().put(url(box, "/tar", path="/root/deep/er"), evil.getvalue(), status=None)
    huskd().get(url(box, "/stat", path="/root/escaped"), status=404)
    huskd().get(url(box, "/tar", path="/nowhere"), status=404).error("not_found")


@test
def test_watch():
    box = create()
    sh(box, "mkdir -p /root/w/sub")
    with huskd().stream("GET", url(box, "/watch", path="/root/w", recursive="true")) as events:
        first = next(events)
        assert_equal((first.kind, first.data), ("start", {"path": "/root/w"}))
        write(box, "/root/w/put", b"whole")
        sh(box, "echo x >/root/w/sub/f; mv /root/w/sub/f /root/w/g; chmod 600 /root/w/g; rm /root/w/g; touch /root/w/end")
        seen = []
        for event in events:
            assert_equal(event.kind, "change")
            seen.append((event.data["kind"], event.data["path"]))
            if seen[-1][1] == "/root/w/end":
                break
    for wanted in (("create", "/root/w/sub/f"), ("chmod", "/root/w/g"), ("remove", "/root/w/g")):
        assert_in(wanted, seen)
    assert "rename" in {kind for kind, _ in seen}, seen
    # A file that is written over HTTP appears whole, and what it was before is nobody's business.
    assert_equal([kind for kind, path in seen if path == "/root/w/put"], ["create"])
    assert not [path for _, path in seen if ".husk-" in path], seen
    huskd().get(url(box, "/watch", path="/nowhere"), status=404).error("not_found")
    idle = len(os.listdir(f"/proc/{huskd().pid}/task"))
    for _ in range(5):
        with huskd().stream("GET", url(box, "/watch", path="/root/w")) as events:
            next(events)
    until(lambda: len(os.listdir(f"/proc/{huskd().pid}/task")) <= idle, "watches end with their clients")
    with huskd().stream("GET", url(box, "/watch", path="/root/w")) as events:
        next(events)
        remove(box)
        assert_equal([(event.kind, event.data["error"]["code"]) for event in events], [("error", "gone")])


@test
def test_large():
    """Constant memory both ways, chunked and with a length."""
    box = create("--disk", "2G")
    piece = os.urandom(1 << 20)
    count = 400
    digest = hashlib.sha256()
    for _ in range(count):
        digest.update(piece)
    before = huskd().memory()

    def pieces():
        for _ in range(count):
            yield piece
            highest.append(huskd().memory())

    highest = []
    connection, answer = huskd().open(
        "PUT", url(box, path="/root/big"), pieces(), headers={"Content-Length": str(count << 20)}, timeout=300
    )
    assert_equal((answer.status, json.loads(answer.read())["size"]), (201, count << 20))
    connection.close()
    connection, answer = huskd().open("GET", url(box, path="/root/big"), timeout=300)
    back = hashlib.sha256()
    while data := answer.read(1 << 20):
        back.update(data)
        highest.append(huskd().memory())
    connection.close()
    assert_equal(back.hexdigest(), digest.hexdigest())
    assert max(highest) - before < 16 << 20, f"memory grew from {before} to {max(highest)}"
    connection, answer = huskd().open("PUT", url(box, path="/root/chunked"), iter([piece] * 20), timeout=300)
    assert_equal((answer.status, json.loads(answer.read())["size"]), (201, 20 << 20))
    connection.close()


@test
def test_broken_transfers():
    box = create()
    write(box, "/root/keep", b"as it was")
    sh(box, "head -c 50000000 /dev/zero >/root/zeros")
    idle = len(os.listdir(f"/proc/{huskd().pid}/task"))
    for head in ("Content-Length: 1000000", "Transfer-Encoding: chunked"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(huskd().socket_path)
            request = f"PUT {url(box, path='/root/keep')} HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n"
            body = b"100\r\n" + b"x" * 256 + b"\r\n" if "chunked" in head else b"x" * 1000
            connection.sendall(request.encode() + body)
            until(lambda: len(os.listdir(f"/proc/{huskd().pid}/task")) > idle, "the upload is under way")
    until(lambda: len(os.listdir(f"/proc/{huskd().pid}/task")) <= idle, "the server lets go")
    assert_equal(read(box, "/root/keep").body, b"as it was")
    assert_equal(names(box, "/root").count("/root/keep"), 1)
    assert not [name for name in names(box, "/root") if "keep" in name and name != "/root/keep"], "no remains"
    for _ in range(3):  # clients that read a little and go
        connection, answer = huskd().open("GET", url(box, path="/root/zeros"))
        answer.read(1000)
        connection.close()
    until(lambda: len(os.listdir(f"/proc/{huskd().pid}/task")) <= idle, "the server lets go of readers")
    # One that does not read holds up nobody else.
    slow, answer = huskd().open("GET", url(box, path="/root/zeros"))
    assert_equal(read(box, "/root/keep").body, b"as it was")
    assert_equal(len(answer.read()), 50000000)
    slow.close()
    # A sandbox that ends in the middle: a cut, never half a file taken for a whole one.
    connection, answer = huskd().open("GET", url(box, path="/root/zeros"))
    answer.read(1000)
    remove(box)
    try:
        size = len(answer.read())
        raise AssertionError(f"half a file ({size} bytes) was given as a whole")
    except http.client.IncompleteRead:
        pass
    connection.close()


@test
def test_bad_input():
    box = create()
    write(box, "/root/f", b"x")
    for method, where, body, field in (
        ("GET", url(box), None, "path"),
        ("GET", url(box, path=""), None, "path"),
        ("GET", url(box, path="relative"), None, "path"),
        ("GET", url(box, path="/" + "x" * 5000), None, "path"),
        ("GET", url(box, path="/root"), None, "path"),
        ("GET", url(box, paht="/root/f"), None, "paht"),
        ("PUT", url(box, path="/root/g", mode="999"), b"x", "mode"),
        ("PUT", url(box, path="/root/g", mode="77777"), b"x", "mode"),
        ("PUT", url(box, path="/root/g", mode="rw"), b"x", "mode"),
        ("GET", url(box, "/list", path="/root", depth="0"), None, "depth"),
        ("GET", url(box, "/list", path="/root", depth="x"), None, "depth"),
        ("GET", url(box, "/stat", path="/root", follow="maybe"), None, "follow"),
        ("POST", url(box, "/mkdir"), {}, "path"),
        ("POST", url(box, "/mkdir"), {"path": 1}, "path"),
        ("POST", url(box, "/mkdir"), {"path": "/x", "mode": 755}, "mode"),
        ("POST", url(box, "/mkdir"), {"path": "/x", "mod": "755"}, "mod"),
        ("POST", url(box, "/move"), {"path": "/root/f"}, "target"),
        ("POST", url(box, "/chmod"), {"path": "/root/f"}, "mode"),
        ("GET", url(box, "/watch"), None, "path"),
    ):
        huskd().call(method, where, body, status=400).error("invalid", field)
    assert_equal(sorted(name for name in names(box, "/root") if "/." not in name), ["/root/f"], "nothing changed")
    read(box, "/root/none", status=404).error("not_found")
    huskd().delete(url(box, path="/root/none"), status=404).error("not_found")
    huskd().get(url(box, path="/root/f%00g").replace("%25", "%"), status=400).error("invalid")
    huskd().put(url(box, path="/etc/passwd/x"), b"x", status=None).error("invalid")
    huskd().get(url("sb-nosuch", path="/etc/passwd"), status=404).error("not_found")
    huskd().put(url("sb-nosuch", path="/etc/passwd"), b"x" * 3000000, status=404).error("not_found")
    huskd().call("PATCH", url(box, path="/root/f"), status=405).error("method_not_allowed")
    assert_equal(read(box, "/root/f").body, b"x")


@test
def test_last_nothing_is_left():
    end_server(huskd())
    _server.clear()
    assert_no_leaks()


try:
    main("base")
finally:
    for left in _server:
        end_server(left)
