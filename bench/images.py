"""Images and portable machines: a pull against skopeo and tar, the first run of an image against one of a template, export and import
against `zstd -1` of the same bytes, and what a second push of a changed machine sends. bench/run's part `images`. The registry is Debian's, on
loopback."""

import json
import os
import pathlib
import random
import subprocess
import sys
import tarfile
import time

TOP = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP / "tests/e2e"))
from lib.registry import registry  # noqa: E402
from lib.roots import Image, small_root  # noqa: E402

ROUNDS = 5  # at most: each moves hundreds of megabytes
LAYERS, LAYER_BYTES = 8, 62 << 20
TOUCHED = 256_000_000
TOUCH = f"""
import os, time
memory = bytearray(os.urandom({TOUCHED // 2}) + b'husk' * {TOUCHED // 8})
open('/tmp/touched', 'w').close()
while not os.path.exists('/tmp/change'):
    time.sleep(0.05)
memory[1000:1000 + {TOUCHED // 100}] = os.urandom({TOUCHED // 100})
open('/tmp/changed', 'w').close()
time.sleep(1e6)
"""


def timed(function, *arguments):
    began = time.monotonic()
    function(*arguments)
    return (time.monotonic() - began) * 1000


def run(*words):
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=600)


# ---- pull ----


def make_image(place):
    """500 MB in 8 layers, of which half can be compressed, above a small root."""
    image = Image(["PATH=/usr/bin:/bin"], Entrypoint=["/bin/cat"], Cmd=["/etc/who"])
    image.add_tree(small_root(place))
    for number in range(LAYERS - 1):
        text = (random.Random(number).randbytes(LAYER_BYTES // 2)).decode("latin-1") + "husk" * (LAYER_BYTES // 8)
        image.add((f"data/{number}", text), (f"data/d{number}", tarfile.DIRTYPE))
    image.oci(place / "layout", "x")


def skopeo(name, place):
    """Downloads it into a layout and unpacks its layers, one over the other."""
    run("rm", "-rf", str(place / "peer"))
    run("skopeo", "copy", "--quiet", "--insecure-policy", "--src-tls-verify=false", f"docker://{name}", f"oci:{place}/peer/layout:x")
    index = json.loads((place / "peer/layout/index.json").read_text())
    blob = lambda digest: place / "peer/layout/blobs/sha256" / digest.removeprefix("sha256:")  # noqa: E731
    (place / "peer/root").mkdir()
    for layer in json.loads(blob(index["manifests"][0]["digest"]).read_text())["layers"]:
        run("tar", "-xf", str(blob(layer["digest"])), "-C", str(place / "peer/root"))


def pulls(row, ours, hub, place, count, progress):
    make_image(place)
    hub.push(place / "layout", "x", "large:1")
    name = f"{hub.host}/large:1"
    mine, theirs, first, plain = [], [], [], []
    for turn in range(count):
        progress(f"images: pull {turn + 1} of {count}")
        mine.append(timed(ours.husk, "pull", name))
        first.append(timed(ours.husk, "run", "-t", name))
        plain.append(timed(ours.husk, "run", "-t", "base", "--", "true"))
        ours.husk("image", "prune")
        theirs.append(timed(skopeo, name, place))
    yield row("pull of 500 MB, ready to run / skopeo, tar", "ms", mine, theirs, 0.8)
    yield row("first run of an image / of a template", "ms", first, plain, 3)


# ---- portable machines ----


def touched(ours):
    box = json.loads(ours.husk("create", "--json", "--memory", "1G"))["id"]
    ours.husk("exec", "-d", box, "--", "python3", "-c", TOUCH)
    ours.husk("exec", box, "--", "sh", "-c", "while [ ! -e /tmp/touched ]; do sleep 0.1; done")
    return box


def zstd(files, place):
    with open(place / "all", "wb") as out:
        for each in files:
            out.write(pathlib.Path(each).read_bytes())
    packed = timed(run, "zstd", "-1", "-q", "-f", str(place / "all"), "-o", str(place / "all.zst"))
    return packed + timed(run, "zstd", "-d", "-q", "-f", str(place / "all.zst"), "-o", str(place / "all.out"))


def machines(row, ours, hub, place, count, progress):
    box = touched(ours)
    snapshot = ours.husk("snapshot", "create", box, "first").strip()
    folder = pathlib.Path(ours.home) / "snapshots" / snapshot
    files = [ours.rootfs(), *sorted(map(str, folder.iterdir()))]
    there = {**ours.environment, "HUSK_HOME": f"{place}/there", "HUSK_POOL": "0", "HUSK_LIBDIR": ""}
    program = ours.environment["HUSK_BIN"]

    def other(*words):
        subprocess.run([program, *words], env=there, check=True, stdout=subprocess.DEVNULL, timeout=600)

    other("key", "trust", ours.husk("key", "show").strip())
    mine, peer = [], []
    for turn in range(count):
        progress(f"images: export and import {turn + 1} of {count}")
        took = timed(ours.husk, "snapshot", "export", "first", f"{place}/machine.tar")
        mine.append(took + timed(other, "snapshot", "import", f"{place}/machine.tar"))
        other("snapshot", "rm", "first")
        other("gc")
        peer.append(zstd(files, place))
    yield row("export + import, 256 MB touched / zstd -1, zstd -d", "ms", mine, peer, 1 / 0.7)
    name = f"{hub.host}/machines/box:1"
    ours.husk("snapshot", "push", "first", name)
    ours.husk("exec", box, "--", "sh", "-c", "touch /tmp/change; while [ ! -e /tmp/changed ]; do sleep 0.1; done")
    ours.husk("snapshot", "create", box, "second")
    sent = json.loads(ours.husk("snapshot", "push", "--json", "second", name))
    yield row("bytes of a second push, 1 % changed / all", "MB", [sent["sent_bytes"] / 1e6], [sent["bytes"] / 1e6], 0.05)
    ours.husk("rm", "-f", box)


def rows(row, ours, place, count, progress):
    os.makedirs(ours.home, mode=0o700)
    ours.environment["HUSK_DISK"] = "memory"
    ours.environment["HUSK_POOL"] = "0"
    work = place / "images"
    work.mkdir()
    count = min(count, ROUNDS)
    try:
        ours.begin()
        with registry() as hub:
            yield from machines(row, ours, hub, work, count, progress)
            yield from pulls(row, ours, hub, work, count, progress)
    finally:
        ours.end()
