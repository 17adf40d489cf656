#!/usr/bin/env python3
"""Certificates that a sandbox trusts besides its own (--trust, network.trust): as behind a company's TLS interception.

The hosts of the test internet (lib/internet.py) have certificates of private authorities: those of allowed.test and others
are signed by ca.crt, that of impostor.test is bad.crt itself.
"""
# timeout: 600

import os
import subprocess

from lib import internet, npm, pypi

REQUESTS = ("requests==2.32.5",)
problem = None
os.environ.setdefault("HUSK_CACHE", "/var/cache/husk-test")
try:
    WHEELS, NODE = pypi.wheels(REQUESTS, "requests"), npm.node()
except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
    problem = str(error)[-200:]
internet.enter()

from lib.harness import (  # noqa: E402
    SLOW, Skip, adopt_snapshot, assert_equal, assert_fails, assert_in, assert_no_leaks, create, fork, husk, main, scratch, sh,
    test,
)
from lib.http import server  # noqa: E402

CA, BAD = internet.SCRATCH / "ca.crt", internet.SCRATCH / "bad.crt"
CURL = f"curl -sS -m {10 * SLOW:.0f}"
ALLOW = ("--allow", "allowed.test", "--allow", "impostor.test")

# Each program fetches its argument and prints the host that answered. None is told about certificates.
PROGRAMS = {
    "curl": CURL,
    "urllib": """python3 -c 'import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())'""",
    "requests": """PYTHONPATH=/opt/requests python3 -c 'import sys, requests; print(requests.get(sys.argv[1]).text)'""",
    "node": """/opt/node -e 'fetch(process.argv[1]).then(r => r.text()).then(t => console.log(t))'""",
}


def reaches(sandbox, url, programs=("curl",)):
    """{program: whether it got its answer}."""
    outcome = {}
    for name in programs:
        done = husk("exec", sandbox, "--", "sh", "-c", f"{PROGRAMS[name]} {url}", timeout=90, code=None)
        outcome[name] = done.code == 0 and '"host"' in done.text
        if not outcome[name]:
            assert "certificate" in done.error.lower() or "fetch failed" in done.error, done.error[-600:]
    return outcome


def works(sandbox, host="allowed.test"):
    return reaches(sandbox, f"https://{host}/")["curl"]


@test
def test_programs_of_the_guest():
    if problem:
        raise Skip(f"requests and Node.js cannot be fetched: {problem}")
    sandbox = create(*ALLOW)
    sh(sandbox, "mkdir -p /opt/wheels /opt/requests")
    for wheel in WHEELS.glob("*.whl"):
        husk("cp", str(wheel), f"{sandbox}:/opt/wheels/")
    sh(sandbox, "cd /opt/requests && for wheel in /opt/wheels/*.whl; do python3 -m zipfile -e $wheel .; done")
    husk("cp", str(NODE), f"{sandbox}:/opt/node", timeout=120)
    assert_equal(reaches(sandbox, "https://allowed.test/", PROGRAMS), dict.fromkeys(PROGRAMS, False))
    shown = husk("egress", sandbox, "--trust", str(CA)).text
    assert_in("trust   CN = test authority, until ", shown)
    assert_in("allow   allowed.test", shown)
    assert_equal(reaches(sandbox, "https://allowed.test/", PROGRAMS), dict.fromkeys(PROGRAMS, True))
    # Programs that read the directory, not the bundle.
    sh(sandbox, "cd /tmp && env -u SSL_CERT_FILE python3 -c \"import urllib.request as u; u.urlopen('https://allowed.test/')\"")
    husk("egress", sandbox, "--trust", "none")
    assert_equal(reaches(sandbox, "https://allowed.test/", PROGRAMS), dict.fromkeys(PROGRAMS, False))
    assert_equal(sh(sandbox, "ls /usr/local/share/ca-certificates; find /etc/ssl/certs -lname '*husk*'"), "")


@test
def test_several_in_one_file():
    with scratch() as place:
        both = place / "both.pem"
        both.write_bytes("# Müller's proxy\n".encode("latin-1") + BAD.read_bytes() + b"\n" + CA.read_bytes() + BAD.read_bytes())
        sandbox = create(*ALLOW, "--trust", str(both))
    for host in ("allowed.test", "impostor.test"):
        assert works(sandbox, host), host
        sh(sandbox, f"env -u SSL_CERT_FILE python3 -c \"import urllib.request as u; u.urlopen('https://{host}/')\"")
    stored = husk("egress", sandbox, "--json").json()["trust"]
    assert_equal(stored.count("BEGIN CERTIFICATE"), 2, "each once")
    assert "ller" not in stored, "comments are left out"
    assert_equal(husk("diff", sandbox, "--path", "/etc/ssl").text + husk("diff", sandbox, "--path", "/usr/local").text, "")
    # A smaller set replaces the larger one.
    husk("egress", sandbox, "--trust", str(CA))
    assert_equal((works(sandbox), works(sandbox, "impostor.test")), (True, False))
    assert_equal([line for line in husk("diff", sandbox, "--path", "/etc/ssl").text.splitlines() if ".0" in line], [], "links of this machine alone")


@test
def test_stays_with_the_sandbox():
    sandbox = create(*ALLOW, "--trust", str(CA))
    [child] = fork(sandbox)
    assert works(child), "fork"
    husk("hibernate", child)
    assert works(child), "woken"
    snapshot = adopt_snapshot(husk("snapshot", "create", sandbox, "--json").json()["id"])
    assert works(create("--from", snapshot)), "from a snapshot"
    husk("egress", sandbox, "--allow", "evil.test")
    assert works(sandbox), "after another change"
    # Alone it changes nothing else of the inherited policy.
    other = husk("fork", sandbox, "--trust", str(BAD), "--json").json()
    [other] = [each["id"] for each in (other if isinstance(other, list) else [other])]
    assert_equal(husk("egress", other, "--json").json()["allow"], ["allowed.test", "impostor.test", "evil.test"])
    assert_equal((works(other), works(other, "impostor.test")), (False, True))
    husk("rm", other)


@test
def test_setting_of_the_machine():
    with scratch() as place:
        setting = {"HUSK_TRUST": str(CA)}
        run = ("run", "--allow", "allowed.test")
        fetch = ("--", "sh", "-c", f"{CURL} https://allowed.test/")
        assert_in('"host"', husk(*run, *fetch, env=setting).text)
        assert "certificate" in husk(*run, "--trust", "none", *fetch, env=setting, code=None).error
        assert "certificate" in husk(*run, *fetch, code=None).error
        assert_in(f"network.trust {CA} environment", " ".join(husk("config", "show", env=setting).text.split()))
        lost = {"HUSK_TRUST": str(place / "lost.pem")}
        assert_fails(*run, "--", "true", env=lost, code=None, says=["network.trust", "HUSK_TRUST", "lost.pem"])


@test
def test_leash_trusts_them_for_secrets():
    """The leash itself connects to the host of a secret, and accepts what the policy trusts."""
    fetch = f"{CURL} -f -H \"X: $TOKEN\" https://impostor.test/leash || true"
    seen = lambda: [r["headers"]["x"] for r in internet.requests() if r.get("path") == "/leash"]
    sandbox = create("--secret", "TOKEN=swapped@impostor.test")
    sh(sandbox, fetch)
    assert_equal(seen(), [])
    husk("egress", sandbox, "--trust", str(BAD))
    sh(sandbox, fetch)
    assert_equal(seen(), ["swapped"])
    husk("egress", sandbox, "--trust", str(CA))
    sh(sandbox, fetch)
    assert_equal(seen(), ["swapped"], "no longer trusted")


@test
def test_never_written_through_links():
    sandbox = create(*ALLOW)
    sh(sandbox, "mkdir -p /usr/local/share/ca-certificates; echo keep >/root/target; cd /etc/ssl/certs;"
                "ln -sf /root/target ca-certificates.crt; ln -s /root/target /usr/local/share/ca-certificates/husk.crt")
    husk("egress", sandbox, "--trust", str(CA))
    assert_equal(sh(sandbox, "cat /root/target; test -L /etc/ssl/certs/ca-certificates.crt || echo replaced"), "keep\nreplaced")
    assert works(sandbox)
    # A pipe in its place blocks nobody.
    sh(sandbox, "rm /usr/local/share/ca-certificates/husk.crt; mkfifo /usr/local/share/ca-certificates/husk.crt")
    husk("egress", sandbox, "--trust", str(BAD))
    assert works(sandbox, "impostor.test")


@test
def test_over_the_api():
    with server() as huskd:
        box = huskd.create(egress={"allow": ["allowed.test"], "trust": CA.read_text()})["id"]
        where = f"/v1/sandboxes/{box}/egress"
        assert works(box)
        assert_in("BEGIN CERTIFICATE", huskd.get(where).json()["trust"])
        huskd.put(where, {"allow": ["allowed.test"], "trust": ""})
        assert not works(box)
        for trust, says in (("nothing", "no certificate"), (7, "string"), ("x" * 70000, "at most 65536")):
            assert_in(says, huskd.put(where, {"allow": ["allowed.test"], "trust": trust}, status=400).text)
        # The same through the command line of a remote user.
        remote = {"HUSK_HOST": f"unix:{huskd.socket_path}"}
        assert_in("test authority", husk("egress", box, "--trust", str(CA), env=remote).text)
        assert works(box)


@test
def test_bad_files_are_refused():
    with scratch() as place:
        files = {
            "key": ((internet.SCRATCH / "ca.key").read_bytes(), ["private key", "certificate alone"]),
            "der": (subprocess.run(["openssl", "x509", "-in", CA, "-outform", "DER"], check=True, capture_output=True, timeout=30).stdout, ["openssl x509 -inform DER"]),
            "empty": (b"", ["no certificate"]),
            "cut": (CA.read_bytes()[:200] + b"\n-----END CERTIFICATE-----\n", ["certificate 1"]),
            "request": (CA.read_bytes().replace(b" CERTIFICATE-", b" CERTIFICATE REQUEST-"), ["CERTIFICATE REQUEST"]),
            "large": (CA.read_bytes() * 200, ["65536"]),
        }
        for name, (content, says) in files.items():
            (place / name).write_bytes(content)
            assert_fails("create", "--trust", str(place / name), code=None, says=says)
        assert_fails("create", "--trust", str(place / "missing"), code=None, says=["--trust", "missing"])
    assert_equal(husk("ls", "-q").text, "")


@test
def test_zz_nothing_is_left():
    assert_no_leaks()


if __name__ == "__main__":
    main("base")
