"""What the Python suites of E2B's packages share. One source runs with the blocking classes and with the asyncio ones:
`now(x)` waits for x where it has to be waited for. Prints `ok NAME` or `not ok NAME: why`, and writes the
same as JSON into the file that $HUSK_COMPAT_RESULTS names, from which docs/compat.md is written."""

import asyncio
import inspect
import json
import os
import sys
import time
import traceback

LIMIT_SECONDS = 120
ASYNC = os.environ.get("HUSK_COMPAT_MODE") == "async"
LABEL = os.environ.get("HUSK_COMPAT_LABEL", "python")
ONLY = sys.argv[1] if len(sys.argv) > 1 else None
_checks, _results = [], []


class Absent(Exception):
    """This version does not have the method, so there is nothing to test of it: the table has a dash."""


def check(method, result="yes"):
    """One method, or one thing about it. `result` other than "yes" says what the table has instead: "501", …"""

    def register(function):
        _checks.append((method, function, result))
        return function

    return register


async def now(value):
    return await value if inspect.isawaitable(value) else value


async def every(pages):
    found = []
    while pages.has_next:
        found += await now(pages.next_items())
    return found


async def fails(kind, function, *arguments, says="", **named):
    """That the call fails with this class, and says this."""
    try:
        await now(function(*arguments, **named))
    except kind as error:
        assert says in str(error), f"{says!r} is not in: {error}"
        return error
    except Exception as error:
        raise AssertionError(f"expected {kind.__name__}, got {type(error).__name__}: {error}") from error
    raise AssertionError(f"expected {kind.__name__}, but it succeeded")


async def until(condition, what, seconds=30):
    deadline = time.monotonic() + seconds
    while True:
        value = await now(condition())
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {seconds} s in vain: {what}"
        await asyncio.sleep(0.1)


def equal(found, wanted):
    assert found == wanted, f"{found!r} instead of {wanted!r}"


async def run_all():
    failed = False
    for method, function, result in _checks:
        if ONLY and ONLY not in method:
            continue
        begun = time.monotonic()
        try:
            await asyncio.wait_for(function(), LIMIT_SECONDS)
            print(f"ok {LABEL} {method}", *([f"{time.monotonic() - begun:.1f}"] if os.environ.get("HUSK_COMPAT_TIMES") else []), flush=True)
        except Absent as reason:
            print(f"# {LABEL} {method}: {reason}", flush=True)
            result = "—"
        except Exception as error:  # pylint: disable=broad-except
            failed, result = True, "no"
            where = traceback.extract_tb(error.__traceback__)
            line = next((each for each in reversed(where) if each.filename.endswith("suite.py")), where[-1])
            print(f"not ok {LABEL} {method}: line {line.lineno}: {type(error).__name__}: {str(error)[:600]!r}", flush=True)
        _results.append({"method": method, "result": result})
    if os.environ.get("HUSK_COMPAT_RESULTS"):
        with open(os.environ["HUSK_COMPAT_RESULTS"], "w", encoding="utf-8") as file:
            json.dump(_results, file)
    return failed
