"""The tables of docs/compat.md: how each version of another service's client behaved, method by method."""

import os
import re

from .harness import TOP

DOCUMENT = TOP / "docs/compat.md"


def table(results, columns):
    """`results`: {column: [{"method", "result"}]}; `columns`: [(column, heading)], in the order of the table."""
    rows = {}
    for column, _ in columns:
        for each in results[column]:
            rows.setdefault(each["method"], {})[column] = each["result"]
    lines = ["| method | " + " | ".join(heading for _, heading in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {method} | " + " | ".join(found.get(column, "") for column, _ in columns) + " |" for method, found in rows.items()]
    return "\n".join(lines)


def compare(tables, script):
    """Each table, {(first line, last line): text}, is in the document between its two lines; HUSK_COMPAT_WRITE=1 writes it."""
    text = fresh = DOCUMENT.read_text(encoding="utf-8")
    for (begin, end), rows in tables.items():
        assert begin in text, f"docs/compat.md has no place for the table '{begin}'"
        pattern = re.compile(re.escape(begin) + r"\n.*?" + re.escape(end), re.DOTALL)
        fresh = pattern.sub(lambda _, all=f"{begin}\n{rows}\n{end}": all, fresh)
    if os.environ.get("HUSK_COMPAT_WRITE"):
        DOCUMENT.write_text(fresh, encoding="utf-8")
    else:
        assert fresh == text, f"docs/compat.md is out of date; HUSK_COMPAT_WRITE=1 tests/e2e/{script} writes it"
