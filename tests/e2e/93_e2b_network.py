#!/usr/bin/env python3
"""E2B's network options where their effect is seen: headers that rules set on the way out, from stored secrets, and ranges
that are denied. The unmodified packages run tests/compat/e2b/network.mjs in a test internet; what arrived is looked at here."""
# timeout: 600

import os
import subprocess
import sys

from lib import internet, npm

PLACE, NODE = npm.installed("e2b"), npm.node()
internet.enter()

from lib.harness import HOME, assert_equal, assert_no_leaks, environment, husk, main, test  # noqa: E402
from lib.http import server  # noqa: E402

VALUE = "s3cr3t-E2B-Value-40417"


def run_version(label, package):
    with server() as huskd:
        url = f"http://127.0.0.1:{huskd.port}"
        key = husk("token", "create", "compat", "--e2b", "--json").json()["token"]
        env = {"E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_API_KEY": key, "E2B_DOMAIN": None, "E2B_DEBUG": None}
        env.update(HUSK_COMPAT_PACKAGE=package, HUSK_COMPAT_LABEL=label, HUSK_COMPAT_VALUE=VALUE, SSL_CERT_FILE=None)
        try:
            done = subprocess.run(
                [NODE, "network.mjs"], cwd=PLACE, env=environment(env), capture_output=True, text=True, timeout=300, check=False
            )
        finally:
            husk("token", "rm", "compat", code=None)
        print(done.stdout, end="")
        assert done.returncode == 0, done.stderr[-1000:]
        assert VALUE not in huskd.log()
    seen = {}
    for request in internet.requests():
        if str(request.get("path", "")).startswith(f"/{label}-"):
            seen[request["path"].removeprefix(f"/{label}-")] = request["headers"]
    assert_equal((seen["one"]["authorization"], seen["one"]["x-key"]), (f"Bearer {VALUE}", "ours"))
    assert_equal((seen["fork"]["authorization"], seen["fork"]["x-key"]), (f"Bearer {VALUE}", "ours"))
    assert_equal(seen["two"]["authorization"], f"Bearer {VALUE}-two")
    assert_equal((seen["wild"].get("x-wild"), seen["wild"]["x-key"]), ("wild", "mine"))
    assert_equal((seen["closer"].get("x-closer"), seen["closer"].get("x-wild")), ("closer", None))
    for words in (("ls", "--json"), ("events",)):
        assert VALUE not in husk(*words).text, words


@test
def the_oldest_client():
    run_version("oldest", "e2b-oldest")


@test
def the_newest_client():
    run_version("newest", "e2b")


@test
def a_value_is_in_the_catalog_alone():
    assert_no_leaks()
    found = subprocess.run(["grep", "-rl", VALUE, HOME], capture_output=True, text=True, check=False).stdout.split()
    assert all(os.path.basename(name).startswith("catalog.db") for name in found), found


if __name__ == "__main__":
    sys.exit(main("e2b-base"))
