#!/usr/bin/python3
"""Containers inside a sandbox, with the template `podman`: what docs/cli.md says about them."""

# timeout: 1500
import os

from lib.harness import *

TEMPLATE = "podman"
IMAGE = (
    "mkdir -p /tmp/image/bin && cp /bin/busybox /tmp/image/bin/ && "
    "for name in sh echo cat id ls sleep; do ln -s busybox /tmp/image/bin/$name; done && "
    "tar -C /tmp/image -c . | podman import -q - tiny"
)
_box = []


def box():
    if not _box:
        _box.append(husk("create", "-t", TEMPLATE, "--memory", "2G", "--ttl", "30m").text.strip())  # for all tests
        sh(_box[0], IMAGE, timeout=120)
    return _box[0]


def inside(script):
    return sh(box(), script, timeout=120)


@test
def test_run():
    assert_equal(inside("podman run --rm tiny sh -c 'echo hello; id -u' 2>/dev/null"), "hello\n0")
    assert_equal(inside("docker run --rm tiny echo docker 2>/dev/null"), "docker")
    assert_equal(inside("podman run --rm tiny sh -c 'exit 7' 2>/dev/null; echo $?"), "7")


@test
def test_build():
    inside("mkdir -p /root/app && cd /root/app && printf 'FROM tiny\\nRUN echo built >/made\\nCMD [\"cat\", \"/made\"]\\n' >Dockerfile")
    inside("cd /root/app && podman build -q -t made .")
    assert_equal(inside("podman run --rm made 2>/dev/null"), "built")


@test
def test_directories_of_the_sandbox():
    inside("mkdir -p /root/work && echo one >/root/work/in")
    inside("podman run --rm -v /root/work:/work tiny sh -c 'cat /work/in; echo two >/work/out' 2>/dev/null")
    assert_equal(inside("cat /root/work/out"), "two")


@test
def test_in_the_background():
    inside("podman run -d --name back tiny sh -c 'echo up; sleep 600' 2>/dev/null")
    until(lambda: inside("podman logs back 2>/dev/null") == "up", "it is up")
    assert_equal(inside("podman ps --format '{{.Names}}'"), "back")
    if os.environ.get("HUSK_RUNSC"):  # Debian's gVisor has no setns
        assert_equal(inside("podman exec back echo inside 2>/dev/null"), "inside")
    inside("podman rm -f -t 0 back")
    assert_equal(inside("podman ps -a --format '{{.Names}}'"), "")


@test
def test_goes_along_with_a_fork():
    child = husk("fork", "--json", box()).json()[0]["id"]
    assert_equal(sh(child, "podman run --rm tiny echo child 2>/dev/null", timeout=120), "child")
    husk("rm", child)


@test
def test_ends_with_its_sandbox():
    inside("podman run -d --name last tiny sleep 600 2>/dev/null")
    husk("rm", _box.pop())
    assert_no_leaks()


if __name__ == "__main__":
    main(TEMPLATE)
