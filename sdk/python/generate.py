#!/usr/bin/env python3
"""Makes the blocking SDK (husk/_sync) out of the asyncio one (husk/_async), which is the one that is written by hand.

    python3 generate.py            writes husk/_sync
    python3 generate.py --check    says whether husk/_sync is what it would write (used by the tests)

Only words are replaced: `await x` becomes `x`, AsyncSandbox becomes Sandbox. What cannot be said that way is in _io.py,
which both sides have of their own.
"""

import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
SOURCE, TARGET = HERE / "husk/_async", HERE / "husk/_sync"
BY_HAND = {"__init__.py", "_io.py"}

NOTE = "# Made from husk/_async/{name} by generate.py: edit it there.\n"
WORDS = [
    (r"`async with`", "`with`"),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\baclose\b", "close"),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r", Awaitable\b", ""),
    (r"\bAwaitable, ", ""),
    (r"\bAsync(?=[A-Z])", ""),
    (r"One task may", "One thread may"),
]


def translate(path):
    text = path.read_text(encoding="utf-8")
    for pattern, replacement in WORDS:
        text = re.sub(pattern, replacement, text)
    return NOTE.format(name=path.name) + text


def main():
    wanted = {path.name: translate(path) for path in sorted(SOURCE.glob("*.py")) if path.name not in BY_HAND}
    present = {path.name: path.read_text(encoding="utf-8") for path in TARGET.glob("*.py") if path.name not in BY_HAND}
    if "--check" in sys.argv[1:]:
        stale = sorted(name for name in {*wanted, *present} if wanted.get(name) != present.get(name))
        if stale:
            sys.exit(f"husk/_sync is not up to date: {', '.join(stale)}; run sdk/python/generate.py")
        return
    for name in present.keys() - wanted.keys():
        (TARGET / name).unlink()
    for name, text in wanted.items():
        (TARGET / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
