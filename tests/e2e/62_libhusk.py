#!/usr/bin/python3
"""What libhusk gives beyond the command line, through build/libhusk.so itself: ranges, listings, moves, watches,
dialling a port of the guest, and refusals that leave nothing changed."""

# timeout: 900
import contextlib
import ctypes
import os
import socket
import threading
import time

from lib.harness import *

INVALID, NOT_FOUND, CONFLICT = 1, 2, 3  # enum husk_code
FILE, DIRECTORY, SYMLINK = 1, 2, 3  # enum husk_file_type


class Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("message", ctypes.c_char * 1024), ("field", ctypes.c_char * 48)]


class File(ctypes.Structure):
    _fields_ = [
        ("path", ctypes.c_char_p),
        ("type", ctypes.c_int),
        ("size", ctypes.c_uint64),
        ("mode", ctypes.c_uint32),
        ("uid", ctypes.c_uint32),
        ("gid", ctypes.c_uint32),
        ("user", ctypes.c_char_p),
        ("group", ctypes.c_char_p),
        ("target", ctypes.c_char_p),
        ("mtime_ms", ctypes.c_int64),
        ("atime_ms", ctypes.c_int64),
        ("ctime_ms", ctypes.c_int64),
        ("attributes", ctypes.POINTER(ctypes.c_char_p)),
    ]


class WatchEvent(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_char_p), ("path", ctypes.c_char_p)]


SINK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
SOURCE = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
WATCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(WatchEvent))


class Refused(Exception):
    def __init__(self, err):
        super().__init__(err.message.decode(errors="replace"))
        self.code = err.code


class Library:
    """libhusk, opened on this instance. Calls raise Refused."""

    def __init__(self):
        os.environ.setdefault("HUSK_BIN", HUSK)
        path = os.path.join(os.path.dirname(HUSK), "libhusk.so")
        if BUILD.name == "build-asan" or not os.path.exists(path):
            raise Skip(f"{path} cannot be loaded into an interpreter without its sanitizer")
        self.library = ctypes.CDLL(path)
        self.handle = ctypes.c_void_p()
        err = Error()
        assert self.library.husk_open(None, ctypes.byref(self.handle), ctypes.byref(err)) == 0, err.message

    def call(self, name, *arguments):
        err = Error()
        words = [word.encode() if isinstance(word, str) else word for word in arguments]
        result = getattr(self.library, name)(self.handle, *words, ctypes.byref(err))
        if result < 0:
            raise Refused(err)
        return result

    def read(self, box, path, offset=0, length=0):
        chunks = []

        def sink(_, data, size):
            chunks.append(ctypes.string_at(data, size))
            return 0

        self.call("husk_file_read", box, path, ctypes.c_uint64(offset), ctypes.c_uint64(length), SINK(sink), None)
        return b"".join(chunks)

    def write(self, box, path, pieces, mode=0, user=None):
        """`pieces`: bytes each, or None to give up in the middle."""
        left = list(pieces)

        def source(_, data, size):
            if not left:
                return 0
            piece = left.pop(0)
            if piece is None:
                return -1
            assert len(piece) <= size
            ctypes.memmove(data, piece, len(piece))
            return len(piece)

        self.call("husk_file_write", box, path, ctypes.c_uint32(mode), user, SOURCE(source), None)

    def stat(self, box, path, follow=False):
        found = File()
        self.call("husk_file_stat", box, path, ctypes.c_bool(follow), ctypes.byref(found))
        return found

    def list(self, box, path, depth=1):
        entries, count = ctypes.POINTER(File)(), ctypes.c_size_t()
        self.call("husk_file_list", box, path, ctypes.c_uint32(depth), ctypes.byref(entries), ctypes.byref(count))
        names = [entries[i].path.decode() for i in range(count.value)]
        self.library.husk_file_list_free(entries, count)
        return names


def refused(code, call, *arguments):
    try:
        call(*arguments)
    except Refused as refusal:
        assert_equal(refusal.code, code, str(refusal))
        return str(refusal)
    raise AssertionError(f"{arguments} was not refused")


@test
def test_ranges():
    lib, box = Library(), create()
    lib.write(box, "/root/deep/down/f", [b"0123456789"])
    assert_equal(lib.read(box, "/root/deep/down/f"), b"0123456789")
    assert_equal(lib.read(box, "/root/deep/down/f", 3, 4), b"3456")
    assert_equal(lib.read(box, "/root/deep/down/f", 8, 100), b"89")
    assert_equal(lib.read(box, "/root/deep/down/f", 100), b"")
    lib.write(box, "/root/empty", [])
    assert_equal(lib.read(box, "/root/empty"), b"")


@test
def test_replace_is_atomic():
    lib, box = Library(), create()
    lib.write(box, "/root/f", [b"old"])
    try:
        lib.write(box, "/root/f", [b"n" * 60000, b"e" * 60000, None])
    except Refused:
        pass
    assert_equal(lib.read(box, "/root/f"), b"old", "a source that gives up changes nothing")
    until(lambda: sh(box, "ls -A /root | grep -v '^\\.[bp]'").split() == ["f"], "and leaves nothing beside it")
    lib.write(box, "/root/f", [b"new"], mode=0o640, user="nobody")
    assert_equal(sh(box, "cat /root/f; stat -c ' %a %U' /root/f"), "new 640 nobody")


@test
def test_stat_and_list():
    lib, box = Library(), create()
    sh(box, "mkdir -p /root/t/a/b; echo hi >/root/t/f; ln -s f /root/t/l; touch /root/t/a/b/deep")
    found = lib.stat(box, "/root/t/f")
    assert_equal((found.type, found.size, found.mode & 0o777, found.user), (FILE, 3, 0o644, b"root"))
    assert abs(found.mtime_ms / 1000 - time.time()) < 60, found.mtime_ms
    assert_equal((lib.stat(box, "/root/t/l").type, lib.stat(box, "/root/t/l").target), (SYMLINK, b"f"))
    assert_equal(lib.stat(box, "/root/t/l", follow=True).type, FILE)
    assert_equal(lib.stat(box, "/root/t").type, DIRECTORY)
    assert_equal(sorted(lib.list(box, "/root/t")), ["/root/t/a", "/root/t/f", "/root/t/l"])
    assert_in("/root/t/a/b/deep", lib.list(box, "/root/t", 10))
    sh(box, "mkdir /root/many; cd /root/many; seq 1 3000 | xargs touch")
    assert_equal(len(lib.list(box, "/root/many")), 3000)


@test
def test_change_things():
    lib, box = Library(), create()
    lib.call("husk_file_mkdir", box, "/root/a/b/c", ctypes.c_uint32(0o700), None)
    lib.call("husk_file_mkdir", box, "/root/a/b/c", ctypes.c_uint32(0o700), None)
    lib.write(box, "/root/a/f", [b"x"])
    lib.call("husk_file_move", box, "/root/a/f", "/root/g")
    assert_equal(lib.read(box, "/root/g"), b"x")
    lib.call("husk_file_chmod", box, "/root/g", ctypes.c_uint32(0o600))
    assert_equal(lib.stat(box, "/root/g").mode & 0o7777, 0o600)
    lib.call("husk_file_remove", box, "/root/a")
    refused(NOT_FOUND, lib.stat, box, "/root/a")
    sh(box, "mkdir /root/keep; touch /root/keep/f; ln -s /root/keep /root/link")
    lib.call("husk_file_remove", box, "/root/link")
    sh(box, "test -e /root/keep/f")


@test
def test_refusals():
    lib, box = Library(), create()
    assert_in("/nowhere", refused(NOT_FOUND, lib.read, box, "/nowhere"))
    refused(NOT_FOUND, lib.read, "sb-nosuchone", "/etc/passwd")
    refused(INVALID, lib.read, box, "relative")
    refused(INVALID, lib.read, box, "")
    with contextlib.suppress(Refused):
        lib.read(box, "/etc")
        raise AssertionError("a directory was read as a file")
    with contextlib.suppress(Refused):
        lib.write(box, "/etc", [b"x"])
        raise AssertionError("a directory was replaced by a file")
    with contextlib.suppress(Refused):
        lib.write(box, "/etc/passwd/x", [b"x"])
        raise AssertionError("a file was taken for a directory")
    with contextlib.suppress(Refused):
        lib.write(box, "/root/f", [b"x"], user="nosuchuser")
        raise AssertionError("an unknown user was accepted")
    for odd in (b"/root/\xff\xfe", b"/root/new\nline", b"/root/a/../b"):
        lib.write(box, odd, [odd])
        assert_equal(lib.read(box, odd), odd)


@test
def test_watch():
    lib, box = Library(), create()
    sh(box, "mkdir -p /root/w/sub")
    seen = []

    def on_event(_, event):
        seen.append((event.contents.kind.decode(), event.contents.path.decode()))
        return 1 if seen[-1][1].endswith("/stop") else 0

    watcher = threading.Thread(
        target=lambda: lib.call("husk_watch", box, "/root/w", ctypes.c_bool(True), WATCH(on_event), None)
    )
    watcher.start()
    until(
        lambda: sh(box, "touch /root/w/probe; echo x >>/root/w/probe; rm -f /root/w/probe") == "" and seen,
        "it is armed",
    )
    sh(
        box,
        "echo 1 >/root/w/f; mkdir /root/w/new; sleep 0.3; echo 2 >/root/w/new/g; mv /root/w/f /root/w/sub/h;"
        "chmod 600 /root/w/sub/h;"
        "rm /root/w/sub/h; touch /root/w/stop",
    )
    watcher.join(30)
    assert not watcher.is_alive(), f"the watch does not end: {seen}"
    for wanted in (
        ("create", "/root/w/f"),
        ("create", "/root/w/new"),
        ("write", "/root/w/new/g"),
        ("remove", "/root/w/sub/h"),
    ):
        assert_in(wanted, seen)
    assert {"rename", "chmod"} <= {kind for kind, _ in seen}, seen
    refused(NOT_FOUND, lambda: lib.call("husk_watch", box, "/nowhere", ctypes.c_bool(False), WATCH(on_event), None))


@test
def test_dial():
    lib, box = Library(), create()
    husk(
        "exec",
        "-d",
        box,
        "--",
        "python3",
        "-c",
        "import socketserver\nclass H(socketserver.StreamRequestHandler):\n def handle(self):\n"
        "  d=self.rfile.read(); self.wfile.write(d[::-1])\n"
        "socketserver.ThreadingTCPServer.allow_reuse_address=True\n"
        "socketserver.ThreadingTCPServer(('127.0.0.1',9000),H).serve_forever()",
    )

    def dial():
        try:
            return socket.socket(fileno=lib.call("husk_dial", box, ctypes.c_uint16(9000)))
        except Refused:
            return None

    data = os.urandom(3_000_000)
    connection = until(dial, "the server listens")
    with connection:
        connection.settimeout(60)
        sender = threading.Thread(target=lambda: (connection.sendall(data), connection.shutdown(socket.SHUT_WR)))
        sender.start()
        back = b""
        while chunk := connection.recv(1 << 16):
            back += chunk
        sender.join()
    assert_equal(back == data[::-1], True, f"{len(back)} bytes came back")
    refusal = None
    try:
        lib.call("husk_dial", box, ctypes.c_uint16(9))
    except Refused as error:
        refusal = str(error)
    assert refusal and "9" in refusal, refusal


if __name__ == "__main__":
    main("base")
