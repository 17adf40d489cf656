#!/usr/bin/env python3
"""E2B's code interpreter with its own clients from PyPI, unmodified at pinned versions, blocking and with asyncio: runs
tests/compat/e2b/code.py, which prints a line for each thing it tries. Clients before 2.9 reach the interpreter at a host name of its
own, by https alone, so theirs is a server with a certificate. The newest ones also run with the certificate that the command in
docs/compat.md makes."""
# timeout: 1500

import contextlib
import re
import socket
import subprocess

from lib.harness import TOP, Skip, assert_no_leaks, environment, husk, main, scratch, test
from lib.http import server
from lib.pypi import environment as packages

NEWEST = ("e2b-code-interpreter==2.11.5",)
OLDEST = ("e2b-code-interpreter==2.8.1", "e2b==2.31.0")  # with the newest e2b it does not work anywhere
NAME = "husk.localhost"  # names below .localhost are this machine: nss-myhostname, which scripts/setup installs


def run_client(wanted, *arguments, tls=None):
    try:
        place = packages(wanted, "e2b")
    except AssertionError as problem:
        raise Skip(f"PyPI is not reached: {problem}") from None
    with contextlib.ExitStack() as stack:
        options, given = [], {"E2B_DOMAIN": None, "E2B_DEBUG": None}
        if tls:
            host, certificate, key, trusted = tls(stack.enter_context(scratch()))
            options, given["SSL_CERT_FILE"] = ["--cert", certificate, "--key", key], str(trusted)
        huskd = stack.enter_context(server(*map(str, options)))
        url = f"https://{host}:{huskd.port}" if tls else f"http://127.0.0.1:{huskd.port}"
        token = husk("token", "create", "compat", "--e2b", "--json").json()["token"]
        stack.callback(husk, "token", "rm", "compat", code=None)
        given.update(E2B_API_URL=url, E2B_SANDBOX_URL=url, E2B_API_KEY=token)
        done = subprocess.run(
            [place / "bin/python", TOP / "tests/compat/e2b/code.py", *arguments],
            env=environment(given), capture_output=True, text=True, timeout=600, check=False,
        )
    print("".join(f"# {wanted[0]} {line}\n" for line in done.stdout.splitlines()), end="")
    wrong = [line for line in done.stdout.splitlines() if line.startswith("not ok")]
    assert done.returncode == 0 and not wrong, f"{wrong} {done.stderr[-1500:]}"


def certificates(place):
    """An authority of the test's own, and a certificate for the name and all below it."""
    try:
        socket.getaddrinfo(f"below.{NAME}", 443)
    except OSError:
        raise Skip(f"below.{NAME} does not resolve: apt install libnss-myhostname") from None
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30"]
    signed = ["-CA", "ca.crt", "-CAkey", "ca.key", "-addext", f"subjectAltName=DNS:{NAME},DNS:*.{NAME}", "-addext", "basicConstraints=critical,CA:FALSE"]
    for words in (["-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=test authority"], ["-keyout", "web.key", "-out", "web.crt", "-subj", f"/CN={NAME}", *signed]):
        subprocess.run([*new, *words], cwd=place, capture_output=True, timeout=60, check=True)
    return NAME, place / "web.crt", place / "web.key", place / "ca.crt"


def documented_certificate(place):
    """The one that the document's command makes, which its clients trust as it is."""
    text = (TOP / "docs/compat.md").read_text(encoding="utf-8")
    command = re.search(r"^\$ (openssl req(?:[^\n]*\\\n)*[^\n]*)$", text, re.MULTILINE).group(1)
    subprocess.run(["sh", "-c", command], cwd=place, capture_output=True, timeout=60, check=True)
    return "127.0.0.1", place / "cert.pem", place / "key.pem", place / "cert.pem"


@test
def the_newest_blocking_client():
    run_client(NEWEST)


@test
def the_newest_client_with_asyncio():
    run_client(NEWEST, "async")


@test
def the_newest_client_with_the_documented_certificate():
    run_client(NEWEST, tls=documented_certificate)


@test
def the_oldest_blocking_client():
    run_client(OLDEST, tls=certificates)


@test
def the_oldest_client_with_asyncio():
    run_client(OLDEST, "async", tls=certificates)


@test
def nothing_is_left_behind():
    assert_no_leaks()


if __name__ == "__main__":
    main("code-interpreter")
