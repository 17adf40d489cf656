"""The unmodified `e2b-code-interpreter` package from PyPI against a Husk server, blocking or with asyncio ("async" as the first
argument): prints `ok NAME` or `not ok NAME: why` for each thing it tries, and exits non-zero when one failed."""

import asyncio
import inspect
import sys
import threading
import time
import traceback

import e2b_code_interpreter as e2b

ASYNC = sys.argv[1:2] == ["async"]
LABEL = "async" if ASYNC else "sync"
PLOT = "import matplotlib.pyplot as plt\n"
failed = 0


async def call(value):
    """What a method of either client returned."""
    return await value if inspect.isawaitable(value) else value


async def check(name, run):
    global failed
    try:
        await asyncio.wait_for(run(), 120)
        print(f"ok {LABEL} {name}", flush=True)
    except Exception as problem:
        failed += 1
        where = traceback.extract_tb(problem.__traceback__)[-1]
        print(f"not ok {LABEL} {name}: line {where.lineno}: {type(problem).__name__}: {str(problem)[:600]!r}", flush=True)


async def main():
    kind = e2b.AsyncSandbox if ASYNC else e2b.Sandbox
    box = await call(kind.create(timeout=900, envs={"GIVEN": "at create"}))

    async def run(code, **options):
        return await call(box.run_code(code, **options))

    async def test_state():
        assert (await run("x = 1")).execution_count == 1
        done = await run("x += 1; x")
        assert (done.text, done.execution_count, done.error) == ("2", 2, None), done
        assert (await run("'a string'")).text == "a string"

    async def test_ipython():
        assert (await run("    y = 2\n    y * 2")).text == "4"
        assert "".join((await run("!echo $GIVEN")).logs.stdout) == "at create\n"
        assert "".join((await call(box.commands.run("sudo id -un"))).stdout) == "root\n"
        assert (await run("lines = !printf 'a\\nb'\nlines[1]")).text == "b"
        assert (await run("import asyncio\nawait asyncio.sleep(0, 'waited')")).text == "waited"
        assert (await run("input()")).error.name == "StdinNotImplementedError"

    async def test_callbacks():
        out, results, errors = [], [], []
        done = await run("print('one')\ndisplay('two')\n1/0", on_stdout=out.append, on_result=results.append, on_error=errors.append)
        assert [message.line for message in out] == ["one\n"], out
        assert abs(out[0].timestamp / 1e9 - time.time()) < 300, out[0].timestamp
        assert [result.text for result in results] == ["two"], results
        assert done.error.name == errors[0].name == "ZeroDivisionError", done.error

    async def test_envs():
        assert (await run("import os; os.environ['A']", envs={"A": "b"})).text == "b"
        assert (await run("os.environ.get('A', 'gone'), os.environ['GIVEN']")).text == "('gone', 'at create')"
        given = 'System.getProperty("GIVEN")'
        assert (await run(given, language="java", envs={"GIVEN": "for a run"})).text == "for a run"
        assert (await run(given, language="java")).text == "at create"

    async def test_charts():
        (result,) = (await run(PLOT + "plt.bar(['Anna', 'Ben'], [3, 5], label='sold')\nplt.show()")).results
        assert (result.chart.type.value, result.chart.title, result.png[:5]) == ("bar", None, "iVBOR"), result.chart.to_dict()
        assert [(bar.label, bar.value, bar.group) for bar in result.chart.elements] == [("Anna", 3, "sold"), ("Ben", 5, "sold")]
        (result,) = (await run(PLOT + "plt.imshow([[1, 2], [3, 4]])\nplt.show()")).results
        assert (result.chart.type.value, result.chart.elements) == ("unknown", []), result.chart.to_dict()
        (result,) = (await run("import pandas as pd; pd.DataFrame({'a': [1, 2]})")).results
        assert result.data == {"a": [1, 2]} and "<table" in result.html, result
        done = await run("pd.DataFrame([[1, 2]], columns=['x', 'x'])")
        assert (done.results[0].data, done.logs.stderr) == (None, []) and "<table" in done.results[0].html, done

    async def test_contexts():
        context = await call(box.create_code_context(cwd="/tmp"))
        assert (context.language, context.cwd) == ("python", "/tmp"), context
        assert (await run("import os; os.getcwd()", context=context)).text == "/tmp"
        contexts = {each.id: each for each in await call(box.list_code_contexts())}
        listed = {name: each.cwd for name, each in contexts.items()}
        assert listed[context.id] == "/tmp" and "/home/user" in listed.values(), listed
        assert list(listed)[-1] == context.id and {"python:default", "javascript:default"} <= set(listed), listed
        assert (await run("6 * 7", context=contexts["javascript:default"])).text == "42"
        there = await call(box.create_code_context(cwd="/home/user/not/yet"))
        assert (await run("import os; os.getcwd()", context=there)).text == "/home/user/not/yet"
        await call(box.restart_code_context(context))
        await call(box.remove_code_context(context))
        try:
            await run("1", context=context)
        except e2b.NotFoundException:
            return
        raise AssertionError("a removed context ran code")

    async def test_languages():
        for language, code, text in (("js", "[1, 2].length", "2"), ("ts", "const n: number = 5\nn", "5"), ("r", "mean(c(1, 3))", "[1] 2")):
            done = await run(code, language=language)
            assert done.text == text, (language, done)
        assert "".join((await run("echo $((1 + 2))", language="bash")).logs.stdout) == "3\n"

    async def test_timeout():
        try:
            await run("import time; time.sleep(60)", timeout=1)
        except e2b.TimeoutException:
            assert (await run("6 * 7")).text == "42"
            return
        raise AssertionError("it did not time out")

    async def test_killed():
        killer = threading.Timer(2, e2b.Sandbox.kill, [box.sandbox_id])
        killer.start()
        try:
            await run("import time; time.sleep(60)")
        except e2b.TimeoutException as problem:
            assert "killed" in str(problem), problem
            return
        finally:
            killer.join()
        raise AssertionError("a killed sandbox ran to the end")

    for name, test in list(locals().items()):
        if name.startswith("test_"):
            await check(name[5:], test)


asyncio.run(main())
sys.exit(1 if failed else 0)
