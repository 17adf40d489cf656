#!/usr/bin/env python3
"""Upgrades: sandboxes of the previous release (lib/previous.py) go on under the programs of this one, and the other way round.

Each sandbox runs a counter that would start again at 1 if its machine were lost.
"""
# timeout: 1500

import contextlib
import os
import subprocess

from lib import previous
from lib.harness import (
    SLOW, Skip, adopt, adopt_snapshot, assert_equal, assert_in, assert_no_leaks, create, environment, husk, main, scratch, sh,
    supervisor_pid, test, until,
)
from lib.http import server
from lib import http

COUNTER = "i=0; while :; do i=$((i+1)); echo $i >/root/new; mv /root/new /root/count; sleep 0.05; done"
_programs = []


def programs():
    """The previous release's, or a Skip with what to do."""
    if not _programs:
        try:
            _programs.append(previous.programs())
        except previous.Missing as missing:
            raise Skip(str(missing)) from None
    return _programs[0]


def old(*words, code=0, timeout=60, env=None):
    """The previous release's husk, in the same instance."""
    done = subprocess.run([programs() / "bin/husk", *words], env=environment(env), stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=timeout * SLOW, check=False)
    if code is not None:
        assert done.returncode == code, f"husk of before, {words}: {done.returncode} {done.stdout[-500:]} {done.stderr[-500:]}"
    return done.stdout.strip() if code == 0 else done


def new(*words, **options):
    return husk(*words, **options).text.strip()


def counting(make, *options):
    """A sandbox with a counter."""
    sandbox = adopt(make("create", "--persistent", *options))
    make("exec", "-d", sandbox, "--", "sh", "-c", COUNTER)
    until(lambda: count(make, sandbox) > 1, 20)
    return sandbox


def count(ask, sandbox):
    text = ask("exec", sandbox, "--", "sh", "-c", "cat /root/count 2>/dev/null || echo 0")
    return int(text)


def goes_on(ask, sandbox, since):
    """It is the same machine: the counter has not started again, and still counts. Returns its value."""
    first = count(ask, sandbox)
    assert first >= since, f"{sandbox} counted to {since} and is at {first}: another machine"
    until(lambda: count(ask, sandbox) > first, 20)
    return count(ask, sandbox)


@test
def test_a_template_of_before():
    """It is used as it is, with its agent: nobody waits for a build after an upgrade."""
    old("template", "build", "base", timeout=600)


@test
def test_there_and_back():
    """The release's own promise: create under the previous, use under this one, go back."""
    live, asleep = counting(old), counting(old)
    at, slept = count(old, live), count(old, asleep)
    old("hibernate", asleep)
    snapshot = adopt_snapshot(old("snapshot", "create", live))
    supervisor = supervisor_pid(live)

    at, slept = goes_on(new, live, at), goes_on(new, asleep, slept)
    assert_equal(supervisor_pid(live), supervisor, "its supervisor goes on with the program of before")
    assert_in(os.fspath(programs()), os.readlink(f"/proc/{supervisor}/exe"))
    copy = adopt(new("create", "--from", snapshot))
    child = adopt(new("fork", live))
    for each in (copy, child):
        goes_on(new, each, 2)
    new("hibernate", live)
    at = goes_on(new, live, at)
    assert os.fspath(programs()) not in os.readlink(f"/proc/{supervisor_pid(live)}/exe"), "woken by this program"
    fresh = counting(new)
    mark = count(new, fresh)
    later = adopt_snapshot(new("snapshot", "create", fresh))
    new("hibernate", asleep)

    for sandbox, since in ((live, at), (asleep, slept), (copy, 2), (child, 2), (fresh, mark)):
        goes_on(old, sandbox, since)
    goes_on(old, adopt(old("create", "--from", later)), 2)
    old("hibernate", fresh)
    goes_on(new, fresh, mark)


@contextlib.contextmanager
def old_server():
    """The previous release's huskd."""
    kept, http.HUSKD = http.HUSKD, os.fspath(programs() / "bin/huskd")
    try:
        with server() as huskd:
            yield huskd
    finally:
        http.HUSKD = kept


def over(ask, huskd):
    """`ask` as a user of the server."""
    return lambda *words: ask(*words, env={"HUSK_HOST": f"unix:{huskd.socket_path}"})


@test
def test_servers_of_both():
    before, after = counting(old), counting(new)
    marks = {sandbox: count(new, sandbox) for sandbox in (before, after)}
    for serve, clients in ((server, (old, new)), (old_server, (old, new))):
        with serve() as huskd:
            for client in clients:
                ask = over(client, huskd)
                for sandbox, mark in marks.items():
                    marks[sandbox] = goes_on(ask, sandbox, mark)
                assert_in(before, ask("ls"))
                made = adopt(ask("create", "--ttl", "10m"))
                assert_equal(ask("exec", made, "--", "echo", "hello"), "hello")
                ask("rm", made)


@test
def test_what_an_old_machine_lacks_is_said():
    """A running supervisor, and the agent in a machine's memory, are of the version that made them."""
    new("pool", "drain")  # else the previous husk takes a prepared machine of this one
    sandbox = counting(old, "--egress", "open")
    assert_in(os.fspath(programs()), os.readlink(f"/proc/{supervisor_pid(sandbox)}/exe"))
    refused = husk("diff", sandbox, code=None)
    assert refused.code != 0 and "older husk" in refused.error and "husk template build" in refused.error, refused
    with scratch() as place:
        authority = place / "ca.pem"
        make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "/dev/null",
                "-out", authority, "-subj", "/CN=upgrade"]
        subprocess.run(make, check=True, capture_output=True, timeout=30)
        refused = husk("egress", sandbox, "--trust", authority, code=None)
        assert refused.code != 0 and f"husk hibernate {sandbox}" in refused.error, refused
        mark = count(new, sandbox)
        new("hibernate", sandbox)
        assert_in("CN = upgrade", husk("egress", sandbox, "--trust", authority).text)
        mark = goes_on(new, sandbox, mark)
        # An agent of before takes them as well.
        bundle = "/etc/ssl/certs/ca-certificates.crt"
        assert authority.read_text() in sh(sandbox, f"cat {bundle}") + "\n"
        # The previous release does not know that policy: it refuses to wake the sandbox, and loses nothing.
        new("hibernate", sandbox)
        new("pool", "drain")
        refused = old("exec", sandbox, "--", "true", code=None)
        assert refused.returncode != 0 and "trust" in refused.stderr, refused.stderr
        goes_on(new, sandbox, mark)


@test
def test_pool_of_before():
    """Prepared machines of the previous release are not used: they could not fulfil what this one asks for."""
    old("run", "--egress", "open", "--", "true")
    with scratch() as place:
        authority = place / "ca.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout",
                        "/dev/null", "-out", authority, "-subj", "/CN=pool"], check=True, capture_output=True, timeout=30)
        for _ in range(3):
            sandbox = create("--egress", "open", "--trust", str(authority))
            assert_in("husk.crt", sh(sandbox, "ls /usr/local/share/ca-certificates"))
            assert os.fspath(programs()) not in os.readlink(f"/proc/{supervisor_pid(sandbox)}/exe"), "a machine of before"


@test
def test_crash_across_versions():
    """What dies under one version is cleared up by the other."""
    sandbox = counting(old)
    os.kill(supervisor_pid(sandbox), 9)
    until(lambda: "ended" in new("inspect", sandbox, "--json") or husk("exec", sandbox, "--", "true", code=None).code != 0, 30)
    until(lambda: husk("doctor", "--leaks", code=None).code == 0, 60)
    other = counting(new)
    os.kill(supervisor_pid(other), 9)
    until(lambda: old("exec", other, "--", "true", code=None).returncode != 0, 30)
    until(lambda: old("doctor", "--leaks", code=None).returncode == 0, 60)


@test
def test_zz_nothing_is_left():
    husk("rm", "--all", code=None)
    assert_no_leaks()


if __name__ == "__main__":
    main()
