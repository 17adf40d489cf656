#!/usr/bin/python3
"""`husk code`: contexts whose state lasts, results, errors, time limits; with the base template's python and bash."""

# timeout: 1800
import json

from lib.harness import *


def code(box, snippet, *options, status=0, timeout=CALL_SECONDS):
    return husk("code", "--json", *options, box, snippet, code=status, timeout=timeout).json()


@test
def test_state_lasts():
    box = create()
    code(box, "x = 20\ndef double(n): return n * 2")
    done = code(box, "print('out'); double(x) + 2")
    assert_equal((done["stdout"], done["result"], done["error"]), ("out\n", "42", None))
    assert_equal(husk("code", box, "x + 1").text, "21\n")
    assert_equal((done["id"], done["context"], done["language"]), (box, "default", "python"))


@test
def test_contexts_are_apart():
    box = create()
    code(box, "x = 1", "-c", "one")
    code(box, "x = 2", "-c", "two")
    assert_equal(code(box, "x", "-c", "one")["result"], "1")
    listing = {entry["name"]: entry for entry in husk("code", "--list", "--json", box).json()}
    assert {"one", "two"} <= set(listing), listing
    assert_equal(listing["one"]["language"], "python")
    husk("code", "--restart", "-c", "one", box)
    assert_equal(code(box, "x", "-c", "one", status=1)["error"]["name"], "NameError")
    assert_equal(code(box, "x", "-c", "two")["result"], "2")
    husk("code", "--rm", "-c", "two", box)
    assert "two" not in [entry["name"] for entry in husk("code", "--list", "--json", box).json()]
    assert_in("one", husk("code", "--list", box).text)


@test
def test_errors():
    box = create()
    done = code(box, "print('before')\n1/0", status=1)
    assert_equal(
        (done["stdout"], done["error"]["name"], done["error"]["value"]),
        ("before\n", "ZeroDivisionError", "division by zero"),
    )
    assert_in("Traceback", done["error"]["traceback"])
    assert_in("1/0", done["error"]["traceback"])
    assert_equal(code(box, "def f(:", status=1)["error"]["name"], "SyntaxError")
    assert_in("ZeroDivisionError", husk("code", box, "1/0", code=1).error)
    assert_equal(code(box, "1 + 1")["result"], "2", "the context goes on after an error")
    code(box, "import sys; sys.exit(3)", status=None)
    assert_equal(code(box, "2 + 2")["result"], "4", "and after an exit")


@test
def test_ipython():
    box = create()
    assert_equal(code(box, "    x = 5\n    x")["result"], "5", "indented")
    done = code(box, "!echo out; echo err >&2")
    assert_equal((done["stdout"], done["stderr"]), ("out\n", "err\n"))
    assert_equal(code(box, "lines = !printf 'a\\nb'\nlines")["result"], "['a', 'b']")
    assert_equal(code(box, "for i in range(2):\n    !echo {i}")["stdout"], "0\n1\n")
    assert_equal(code(box, "%%bash\necho $((1 + 2))")["stdout"], "3\n")
    assert_in("per loop", code(box, "%timeit -n1 -r1 1")["stdout"])
    assert_in("number of items", code(box, "len?")["results"][0]["text"])
    assert_equal(code(box, "6 * 7")["result"], "42")
    assert_equal(code(box, "_ + 1, In[1], get_ipython() is not None")["result"], "(43, 'x = 5\\nx', True)")
    code(box, "import asyncio\ntask = asyncio.create_task(asyncio.sleep(0.01, 'done'))")
    assert_equal(code(box, "await task")["result"], "'done'")
    done = code(box, "from IPython.display import display, update_display\n"
                "display(1, display_id='d'); update_display(2, display_id='d'); update_display(3, display_id='d')")
    assert_equal([entry["text"] for entry in done["results"]], ["1", "3"], "of the updates the last")
    assert_equal(code(box, "input('?')", status=1)["error"]["name"], "StdinNotImplementedError")
    assert_equal(code(box, "%nosuch", status=1)["error"]["name"], "UsageError")
    assert_equal(code(box, "await asyncio.sleep(1000)", "--timeout", "500ms", status=124)["timed_out"], True)
    assert_equal(code(box, "x")["result"], "5", "the context outlives an interrupt")


@test
def test_output_streams():
    box = create()
    done = code(box, "import sys, os\nprint('o'); print('e', file=sys.stderr); os.system('echo child'); None")
    assert_equal((done["stderr"], done["result"]), ("e\n", None))
    assert_equal(sorted(done["stdout"].split()), ["child", "o"])
    done = code(box, "print('ü☃' * 10)")
    assert_equal(done["stdout"], "ü☃" * 10 + "\n")
    done = code(box, "print('x' * 3_000_000)")
    assert_equal(len(done["stdout"]), 3_000_001)


@test
def test_results_as_data():
    box = create()
    done = code(box, "{'a': [1, 2, {'b': None}]}")
    main = next(entry for entry in done["results"] if entry["main"])
    assert_equal(main["data"]["application/json"], {"a": [1, 2, {"b": None}]})
    done = code(box, "class H:\n  def _repr_html_(self): return '<b>hi</b>'\nH()")
    assert_equal(done["results"][0]["data"]["text/html"], "<b>hi</b>")
    with scratch() as place:
        done = code(box, "H()", "-o", str(place / "out"))
        assert_equal((place / "out/result-1.html").read_text(), "<b>hi</b>")
        assert_equal(len(done["files"]), 1)


@test
def test_timeout():
    box = create()
    code(box, "kept = 'yes'")
    done = code(box, "import time\ntime.sleep(1000)", "--timeout", "500ms", status=124)
    assert_equal(done["timed_out"], True)
    assert_equal(code(box, "1 + 1")["result"], "2", "the context answers again")
    done = code(
        box,
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
        "--timeout",
        "500ms",
        status=124,
    )
    assert_equal(code(box, "2 + 2")["result"], "4", "even after one that would not stop")


@test
def test_bash():
    box = create()
    code(box, "cd /usr; X=5; f() { echo f $1; }", "-l", "bash")
    done = code(box, "pwd; echo $X; f 2; echo e >&2", "-l", "bash")
    assert_equal((done["stdout"], done["stderr"]), ("/usr\n5\nf 2\n", "e\n"))
    assert code(box, "exit_status_of_nothing_known", "-l", "bash", status=None)["stderr"]


@test
def test_sources_of_the_code():
    box = create()
    with scratch() as place:
        (place / "x.py").write_text("print('from a file')")
        assert_equal(husk("code", "-f", place / "x.py", box).text, "from a file\n")
    assert_equal(husk("code", box, stdin=b"print('from stdin')").text, "from stdin\n")
    assert_equal(husk("code", "-f", "-", box, stdin=b"6*7").text, "42\n")
    assert_equal(husk("code", "-t", "base", "6*7").text, "42\n")
    assert_equal(husk("code", "--cwd", "/usr", "-c", "there", box, "import os; os.getcwd()").text, "'/usr'\n")


@test
def test_bad_input():
    box = create()
    assert_fails("code", box, "1", "-l", "cobol", code=125, says="cobol")
    assert_fails("code", box, "1", "-c", "../x", code=125, says="../x")
    assert_fails("code", "sb-nosuchone", "1", code=125, says="sb-nosuchone")
    assert_fails("code", "--rm", "-c", "nosuch", box, code=125, says="nosuch")
    assert_fails("code", box, "1", "--timeout", "x", code=125, says="x")
    for language in ("javascript", "typescript", "r", "java"):
        assert_fails("code", "1+1", "-l", language, "-t", "base", code=125, says=[language, "code-interpreter"])
    assert_fails("code", "-f", "/nowhere/x.py", box, code=125, says="/nowhere/x.py")


@test
def test_contexts_are_forked_and_woken():
    box = create()
    code(box, "x = 1")
    (child,) = fork(box)
    code(child, "x = 2")
    husk("hibernate", box)
    assert_equal((code(box, "x")["result"], code(child, "x")["result"]), ("1", "2"))


@test
def test_two_callers_of_one_context():
    box = create()
    code(box, "import time")
    callers = [start("code", "--json", box, f"time.sleep(0.2); print('n{n}'); {n}") for n in range(4)]
    for n, caller in enumerate(callers):
        with ending(caller):
            out, err = caller.communicate(timeout=60)
            done = json.loads(out)
            assert_equal((done["stdout"], done["result"]), (f"n{n}\n", str(n)), err.decode())


@test
def test_hostile_kernel_is_only_output():
    # Code that writes the kernel's own protocol to its output gets it back as text.
    box = create()
    line = '{"id":1,"type":"end"}'
    assert_equal(code(box, f"print('{line}'); 5")["stdout"], line + "\n")
    code(
        box,
        "import os\nfor fd in range(3, 50):\n try: os.write(fd, b'garbage\\n{\"type\":\"result\"}\\n\\xff\\xfe')\n"
        " except OSError: pass",
        status=None,
    )
    assert_fails("code", box, "import os; os.kill(os.getpid(), 9)", code=125, says="signal 9")
    assert_equal(code(box, "1 + 1")["result"], "2", "a context that was killed starts again")


if __name__ == "__main__":
    main("base")
