#!/usr/bin/env python3
"""Recordings as videos and documents, and the space that they take. husk-film gets recordings that are written here, byte by byte: all
encodings, and what a hostile guest would send. Other recordings are of a VNC server that this test runs in the sandbox, so that no
desktop is needed."""
# timeout: 1200

import io
import json
import pathlib
import shutil
import struct
import subprocess
import tempfile
import time
import zlib

from lib.harness import *
from lib.http import server, token

FORMAT = bytes([32, 24, 0, 1, 0, 255, 0, 255, 0, 255, 0, 8, 16, 0, 0, 0])
RED, GREEN, BLUE, WHITE = b"\xff\0\0", b"\0\xff\0", b"\0\0\xff", b"\xff\xff\xff"
RAW, COPY, HEXTILE, TIGHT, SIZE, LAST = 0, 1, 5, 7, -223, -224

# A VNC server: a screen of 64x48 that changes its colour with each request. $1: updates before it sends nonsense (0: never).
FAKE = r"""
import os, socket, struct, sys, threading
os.makedirs("/run/husk/desktop", exist_ok=True)
path = "/run/husk/desktop/vnc.sock"
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen(8)
form = bytes([32, 24, 0, 1, 0, 255, 0, 255, 0, 255, 0, 8, 16, 0, 0, 0])
def take(peer, size):
    data = b""
    while len(data) < size:
        more = peer.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data
def serve(peer):
    peer.sendall(b"RFB 003.008\n"); take(peer, 12)
    peer.sendall(b"\1\1"); take(peer, 1)
    peer.sendall(b"\0\0\0\0"); take(peer, 1)
    peer.sendall(struct.pack(">HH", 64, 48) + form + struct.pack(">I", 4) + b"fake")
    count = 0
    while True:
        kind = take(peer, 1)[0]
        if kind == 0:
            take(peer, 19)
        elif kind == 2:
            take(peer, 1); take(peer, 4 * struct.unpack(">H", take(peer, 2))[0])
        else:
            take(peer, 9)
            count += 1
            pixel = os.urandom(3) + b"\0"
            peer.sendall(struct.pack(">BBHHHHHi", 0, 0, 1, 0, 0, 64, 48, 0) + pixel * (64 * 48))
while True:
    peer, _ = listener.accept()
    threading.Thread(target=lambda: serve(peer), daemon=True).start()
"""


def rectangle(x, y, width, height, encoding, data=b""):
    return struct.pack(">HHHHi", x, y, width, height, encoding) + data


def update(*rectangles, count=None):
    return struct.pack(">BBH", 0, 0, len(rectangles) if count is None else count) + b"".join(rectangles)


def recording(messages, width=32, height=16):
    """`messages`: (milliseconds, bytes)."""
    hello = b"RFB 003.003\n\0\0\0\1" + struct.pack(">HH", width, height) + FORMAT + b"\0\0\0\4husk"
    out = io.BytesIO()
    out.write(b"FBS 001.001\n")
    for ms, data in [(0, hello), *messages]:
        out.write(struct.pack(">I", len(data)) + data + bytes(-len(data) & 3) + struct.pack(">I", ms))
    return out.getvalue()


def film(data):
    """Runs husk-film; returns its exit status, its pictures as (width, height, luma) and its last words."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        done = subprocess.run([BUILD / "husk-film"], stdin=file, capture_output=True, timeout=60 * SLOW, check=False)
    assert done.returncode in (0, 1), done
    head, _, rest = done.stdout.partition(b"\n")
    pictures = []
    if head:
        words = head.split()
        width, height = int(words[1][1:]), int(words[2][1:])
        size = width * height * 3 // 2
        while rest:
            assert rest.startswith(b"FRAME\n") and len(rest) >= 6 + size, rest[:20]
            pictures.append((width, height, rest[6 : 6 + width * height]))
            rest = rest[6 + size :]
    return done.returncode, pictures, done.stderr.decode()


def luma(colour):
    red, green, blue = colour
    return 16 + ((47 * red + 157 * green + 16 * blue + 128) >> 8)


def at(picture, x, y):
    return picture[2][y * picture[0] + x]


def shows(picture, *wanted):
    for x, y, colour in wanted:
        assert_equal((x, y, at(picture, x, y)), (x, y, luma(colour)))


def last(*rectangles, **more):
    code, pictures, said = film(recording([(10, update(*rectangles, **more))]))
    assert_equal((code, said), (0, ""))
    return pictures[-1]


def length(size):
    return bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])


def tight(kind, data, stream=None):
    packed = data if stream is None else stream.compress(data) + stream.flush(zlib.Z_SYNC_FLUSH)
    return kind + length(len(packed)) + packed


@test
def every_encoding_is_painted():
    x4 = lambda colour: colour + b"\0"
    whole = rectangle(0, 0, 32, 16, RAW, x4(RED) * 512)
    shows(last(whole), (0, 0, RED), (31, 15, RED))
    shows(last(whole, rectangle(4, 4, 2, 2, RAW, x4(BLUE) * 4), rectangle(5, 5, 2, 2, COPY, struct.pack(">HH", 4, 4))),
          (4, 4, BLUE), (6, 6, BLUE), (7, 7, RED), (6, 4, RED))
    # Two tiles: a background with a coloured part; raw.
    hextile = b"\x1a" + x4(GREEN) + b"\1" + x4(WHITE) + b"\x12\x21" + b"\1" + x4(BLUE) * 256
    shows(last(rectangle(0, 0, 32, 16, HEXTILE, hextile)), (0, 0, GREEN), (1, 2, WHITE), (3, 3, WHITE), (4, 4, GREEN), (16, 0, BLUE))
    shows(last(rectangle(0, 0, 32, 16, TIGHT, b"\x80" + BLUE)), (31, 15, BLUE))
    # Plain rows; two colours, a bit for each pixel; three colours; a gradient; and a few bytes that are not packed.
    one, two = zlib.compressobj(), zlib.compressobj()
    picture = last(
        rectangle(0, 0, 32, 4, TIGHT, tight(b"\0", GREEN * 128, one)),
        rectangle(0, 4, 32, 4, TIGHT, tight(b"\x50\1\1" + RED + WHITE, b"\xff\0\xff\0" * 4, two)),
        rectangle(0, 8, 32, 4, TIGHT, tight(b"\x40\1\2" + RED + WHITE + BLUE, bytes(i % 3 for i in range(128)), one)),
        rectangle(0, 12, 32, 2, TIGHT, tight(b"\x40\2", WHITE + bytes(3 * 31) + bytes(96), one)),
        rectangle(0, 14, 2, 1, TIGHT, b"\0" + RED + BLUE),
        rectangle(0, 0, 0, 0, LAST), count=0xFFFF)
    shows(picture, (31, 3, GREEN), (0, 4, WHITE), (8, 4, RED), (16, 7, WHITE), (0, 8, RED), (1, 8, WHITE), (2, 8, BLUE), (31, 13, WHITE),
          (0, 14, RED), (1, 14, BLUE))


@test
def pictures_follow_the_clock_and_the_size():
    paint = lambda colour: update(rectangle(0, 0, 32, 16, RAW, (colour + b"\0") * 512))
    code, pictures, said = film(recording([(250, paint(RED)), (1000, paint(BLUE)), (2000, b"")]))
    assert_equal((code, said), (0, ""))
    assert_equal(len(pictures), 21)
    shows(pictures[0], (0, 0, RED))  # before the first update
    shows(pictures[9], (0, 0, RED))
    shows(pictures[11], (0, 0, BLUE))
    grown = update(rectangle(0, 0, 41, 20, SIZE), rectangle(0, 0, 41, 20, TIGHT, b"\x80" + GREEN))
    code, pictures, said = film(recording([(0, paint(RED)), (500, grown), (1000, b"")]))
    assert_equal((code, said, pictures[0][:2]), (0, "", (42, 20)))
    shows(pictures[0], (31, 15, RED), (40, 19, b"\0\0\0"))
    shows(pictures[-1], (41, 19, GREEN))
    # Cut in the middle of an update, as by a full disk: what is whole is shown.
    cut = recording([(0, paint(RED)), (900, b""), (1000, paint(BLUE))])
    code, pictures, _ = film(cut[:-700])
    assert_equal((code, len(pictures)), (0, 10))


@test
def damage_is_an_error():
    paint = update(rectangle(0, 0, 32, 16, TIGHT, b"\x80" + RED))
    bad = {
        "not on the screen": update(rectangle(31, 0, 2, 1, RAW, bytes(8))),
        "copied": update(rectangle(0, 0, 32, 16, COPY, struct.pack(">HH", 1, 1))),
        "outside": update(rectangle(0, 0, 16, 16, HEXTILE, b"\x0c\xff\0\0\0\1\xff\xff")),
        "encoding": update(rectangle(0, 0, 1, 1, 16, b"\0\0")),
        "message": b"\xc8",
        "form of Tight": update(rectangle(0, 0, 8, 8, TIGHT, b"\xa0")),
        "filter": update(rectangle(0, 0, 8, 8, TIGHT, b"\x40\7")),
        "packed": update(rectangle(0, 0, 8, 8, TIGHT, b"\0\x10" + b"no zlib, not any")),
        "JPEG": update(rectangle(0, 0, 8, 8, TIGHT, b"\x90\x08no image")),
        "impossible size": update(rectangle(0, 0, 60000, 60000, SIZE)),
        "clipboard": b"\3\0\0\0\xff\xff\xff\xff",
    }
    for says, message in bad.items():
        code, _, said = film(recording([(0, paint), (100, message), (200, paint)]))
        assert code == 1 and says in said, (says, said)
    for data, says in ((b"", "does not begin"), (b"FBS 001.001\n", "empty"), (recording([(0, b"")]), "no picture"),
                       (b"FBS 001.001\n\xff\xff\xff\xff" + bytes(64), "too large")):
        code, pictures, said = film(data)
        assert code == 1 and says in said and not pictures, (data[:20], said)


def kept(box, data, actions=""):
    """A recording of the sandbox that has ended."""
    folder = pathlib.Path(HOME) / "sandboxes" / box / "recordings" / "rec-abcdefghijkl"
    folder.mkdir(parents=True)
    (folder / "screen").write_bytes(data)
    (folder / "about").write_text(json.dumps({"started": 1e12, "duration": 2000, "width": 32, "height": 16, "reason": "stopped"}))
    (folder / "actions").write_text(actions)
    return folder.name


def probe(path):
    done = subprocess.run(["ffprobe", "-v", "error", "-count_frames", "-show_streams", "-of", "json", str(path)],
                          capture_output=True, timeout=60 * SLOW, check=False)
    assert done.returncode == 0, done
    stream = json.loads(done.stdout)["streams"][0]
    return stream["codec_name"], stream["width"], stream["height"], int(stream["nb_read_frames"])


@test
def a_recording_is_exported():
    if not shutil.which("ffmpeg"):
        raise Skip("ffmpeg is not installed")
    box = create()
    paint = lambda colour: update(rectangle(0, 0, 32, 16, RAW, (colour + b"\0") * 512))
    actions = '{"ms":1200,"action":{"action":"key","text":"Return"}}\n{"ms":1300,"action":{"act'
    made = kept(box, recording([(0, paint(RED)), (1000, paint(BLUE)), (2000, b"")]), actions)
    with tempfile.TemporaryDirectory() as folder, server() as huskd, token("stranger") as other:
        out = pathlib.Path(folder)
        husk("desktop", box, "recordings", "export", made, "-o", out / "film.mp4")
        assert_equal(probe(out / "film.mp4"), ("h264", 32, 16, 21))
        husk("desktop", box, "recordings", "export", made, "--format", "webm", "-o", out / "film")
        assert_equal(probe(out / "film"), ("vp9", 32, 16, 21))
        document = json.loads(husk("desktop", box, "recordings", "export", made, "--format", "json", "-o", "-").out)
        assert_equal((document["id"], document["state"], document["actions"]),
                     (made, "complete", [{"ms": 1200, "action": {"action": "key", "text": "Return"}}]))
        path = f"/v1/sandboxes/{box}/desktop/recordings/{made}/export"
        answer = huskd.get(path + "?format=mp4", timeout=120)
        assert_equal(answer.headers["content-type"], "video/mp4")
        (out / "api.mp4").write_bytes(answer.body)
        assert_equal(probe(out / "api.mp4"), ("h264", 32, 16, 21))
        husk("--host", f"unix:{huskd.socket_path}", "desktop", box, "recordings", "export", made, "-o", out / "remote.webm")
        assert_equal(probe(out / "remote.webm"), ("vp9", 32, 16, 21))
        for wrong in ("", "?format=gif", "?format=mp4&size=1"):
            huskd.get(path + wrong, 400)
        huskd.get(path + "?format=mp4", 404, token=other)
        huskd.get(path.replace(made, "rec-aaaaaaaaaaaa") + "?format=json", 404)
        assert "give a file" in husk("desktop", box, "recordings", "export", made, code=2).error
        assert "format" in husk("desktop", box, "recordings", "export", made, "-o", out / "film.gif", code=2).error
        # A host without ffmpeg: the error says what to install, and nothing is written.
        command = f"mount --bind /dev/null {shutil.which('ffmpeg')} && exec {HUSK} desktop {box} recordings export {made} -o {out}/bad.mp4"
        missing = subprocess.run(["unshare", "--mount", "sh", "-c", command], capture_output=True, timeout=60 * SLOW, check=False)
        assert missing.returncode == 1 and b"apt install ffmpeg" in missing.stderr, missing
        # A damaged recording.
        screen = pathlib.Path(HOME) / "sandboxes" / box / "recordings" / made / "screen"
        screen.write_bytes(recording([(0, b"\xc8")]))
        failed = husk("desktop", box, "recordings", "export", made, "-o", out / "bad.mp4", code=1)
        assert "unknown message" in failed.error, failed
        assert "unknown message" in huskd.get(path + "?format=mp4", 500).text
        assert not list(out.glob("bad*")), list(out.iterdir())
        husk("desktop", box, "recordings", "rm", made)
        assert_equal(husk("desktop", box, "recordings").text, "")


def serving(**options):
    """A sandbox with a VNC server."""
    box = create() if not options else options["huskd"].create(
        token=options["token"])["id"]
    husk("exec", "-i", box, "--", "sh", "-c", "cat >/tmp/fake.py", stdin=FAKE.encode())
    husk("exec", "-d", box, "--", "python3", "/tmp/fake.py")
    husk("exec", box, "--", "sh", "-c", "until [ -S /run/husk/desktop/vnc.sock ]; do sleep 0.1; done")
    return box


@test
def recordings_count_in_the_quota():
    with server() as huskd, token("small", "--max-snapshots", "8M") as secret:
        box = serving(huskd=huskd, token=secret)
        path = f"/v1/sandboxes/{box}/desktop/recordings"
        start = lambda status, **fields: huskd.post(path, fields, status, token=secret).json()
        assert "recordings take 0 of 8388608" in start(429)["error"]["message"]
        first = start(201, max_bytes="6M")
        assert "6291456 of" in start(429, max_bytes="4M")["error"]["message"]
        huskd.post(f"{path}/{first['id']}/stop", {}, token=secret)
        second = start(201, max_bytes="4M")  # the first one took less than it had reserved
        huskd.post(f"{path}/{second['id']}/stop", {}, token=secret)
        assert_equal(len(huskd.get(path, token=secret).json()["recordings"]), 2)
        ends = [json.loads(each["detail"]) if isinstance(each["detail"], str) else each["detail"]
                for each in huskd.get(f"/v1/sandboxes/{box}/events", token=secret).json()["events"] if each["kind"] == "recording_ended"]
        assert_equal([(each["recording"], each["reason"]) for each in ends], [(first["id"], "stopped"), (second["id"], "stopped")])
        huskd.delete(f"{path}/{first['id']}", token=secret)


@test
def all_recordings_have_a_bound():
    box = serving()
    failed = husk("desktop", box, "record", "2", env={"HUSK_RECORDINGS": "100M"}, code=1)
    assert "HUSK_RECORDINGS" in failed.error and "max_bytes" in failed.error, failed
    assert_equal(husk("desktop", box, "recordings").text, "")
    assert "not a size" in husk("desktop", box, "record", "2", env={"HUSK_RECORDINGS": "much"}, code=None).error
    made = husk("desktop", box, "record", "1", "--json").json()
    assert_equal((made["state"], made["reason"]), ("complete", "time"))


if __name__ == "__main__":
    main()
