#!/usr/bin/python3
"""Settings of a machine: husk.toml and conf.d, the environment over them, options over both; `husk config show`; SIGHUP."""

import contextlib
import os
import signal

from lib.harness import *
from lib.http import server


@contextlib.contextmanager
def settings(text, **more):
    """A husk.toml, and files of conf.d beside it by name; the environment that makes husk read them."""
    with scratch() as place:
        (place / "husk.toml").write_text(text)
        (place / "conf.d").mkdir()
        for name, content in more.items():
            (place / "conf.d" / f"{name}.toml").write_text(content)
        yield {"HUSK_CONFIG": str(place / "husk.toml")}


def shown(env):
    return {each["key"]: each for each in husk("config", "show", "--json", env=env).json()}


@test
def test_where_a_value_comes_from():
    with settings("# ours\npool = 3\nlog = 'warn'\n\n[server]\nlisten = \"127.0.0.1:7999\" # TCP\n", b="pool = 5\n", a="pool = 4\n") as env:
        found = shown({**env, "HUSK_LOG": "debug"})
        assert_equal((found["pool"]["value"], found["pool"]["source"].rsplit("/", 1)[1]), ("5", "b.toml:1"))
        assert_equal((found["log"]["value"], found["log"]["source"]), ("debug", "environment"))
        assert_equal((found["server.listen"]["value"], found["server.listen"]["source"][-7:]), ("127.0.0.1:7999", ".toml:6"))
        assert_equal((found["server.group"]["value"], found["server.group"]["source"]), (None, "default"))
        lines = husk("config", "show", env=env).text.splitlines()
        assert_equal(lines[0].split(), ["SETTING", "VALUE", "FROM"])
        assert_equal(len(lines), len(found) + 1)


@test
def test_no_file_is_no_setting():
    env = {"HUSK_CONFIG": "/nowhere/husk.toml"}
    assert all(each["source"] in ("default", "environment") for each in shown(env).values())
    husk("ls", env=env)


@test
def test_wrong_files_say_where():
    for text, says in (
        ("pol = 3", ("husk.toml:1:1", "unknown setting 'pol'", "did you mean 'pool'?")),
        ("\n[server]\nlisen = 'x'", ("husk.toml:3:1", "did you mean 'server.listen'?")),
        ("nonsense = 3", ("unknown setting 'nonsense'",)),
        ("pool = 'many'", ("husk.toml:1:1", "pool 'many'; give 0 to 64")),
        ("pool = -1", ("give 0 to 64",)),
        ("log = 'loud'", ("husk.toml:1:1", "log 'loud'")),
        ("[server]\nuser_memory = 'lots'", ("husk.toml:2:1", 'a size like "512M"')),
        ("home = \"/a", ("husk.toml:1:11", "no end")),
        ("home = /a", ("husk.toml:1:8", "in quotes")),
        ("home = '/a' b", ("husk.toml:1:13",)),
        ("pool 3", ("husk.toml:1:6", "'=' is missing")),
        ("[server", ("husk.toml:1:8", "']' is missing")),
        ("[[server]]", ("lists of tables",)),
        ("= 3", ("a name is missing",)),
        ("home = ''''a'''", ("several lines",)),
        ("home = \"\\q\"", ("after a backslash",)),
        ("pool = [1]", ("whole number",)),
        ("home = '" + "x" * 5000 + "'", ("too long",)),
    ):  # fmt: skip
        with settings(text) as env:
            assert_fails("ls", code=2, says=says, env=env)
            assert_fails("config", "show", code=2, says=says, env=env)
            husk("version", env=env)  # what needs no instance works, to find out why


@test
def test_what_it_sets_holds():
    with settings("pool = 0\n[network]\ndns = 'not an address'\n") as env:
        result = husk("create", "--allow", "example.com", env=env, code=None)
        assert result.code != 0 and "HUSK_DNS" in result.error, result


@test
def test_home():
    with scratch() as place, settings(f"home = '{place}/state'\n") as env:
        os.mkdir(place / "state")
        assert_equal(husk("ls", "--json", env={**env, "HUSK_HOME": None}).json(), [])
        assert os.path.exists(place / "state/catalog.db")
        # A context that is in use counts more than where the local instance is.
        chosen = {**env, "HUSK_HOME": None, "XDG_CONFIG_HOME": str(place)}
        husk("context", "add", "far", "unix:/nowhere/huskd.sock", env=chosen)
        husk("context", "use", "far", env=chosen)
        assert_in("/nowhere/huskd.sock", husk("ls", env=chosen, code=1).error)


@test
def test_server_and_sighup():
    with settings("[server]\nlisten = '127.0.0.1:1'\nstop_seconds = 3\n", quota="server.user_sandboxes = 3\n") as env:
        # The option wins: port 1 is not the test's.
        with server(env=env) as huskd:
            quota = os.path.dirname(env["HUSK_CONFIG"]) + "/conf.d/quota.toml"
            for text, says in (("server.user_sandboxes = 4\n", "settings read again"), ("server.user_sandbox = 4\n", "nothing is changed")):
                with open(quota, "w", encoding="ascii") as file:
                    file.write(text)
                huskd.process.send_signal(signal.SIGHUP)
                until(lambda says=says: says in huskd.log(), says)
            huskd.get("/healthz")
            assert_in("did you mean 'server.user_sandboxes'?", huskd.log())


if __name__ == "__main__":
    main()
