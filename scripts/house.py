#!/usr/bin/env python3
"""The quick checks of `make lint`, also run as tests/unit/house.

    layers     each #include is allowed by the table in docs/architecture.md (column "may use")
    headers    a function is declared in the header of the file that defines it: file.h for file.c and file_part.c, or a
               header shared by its folder, under a heading that names the file ("---- file.c ----")
        names      no two .c files of one side (host, agent, guest) have the same name, except main.c and those of engines
    links      files that comments and documents mention exist; so do the sections that documents link to
        modes      the tests of tests/e2e are executable; no symbolic link of a template was turned into a plain file by a copy
    guards     each header has an include guard that no other header has
        wire       docs/wire.md matches src/wire/methods.def (`scripts/house.py --write` makes it), and each method is answered
        schema     both SDKs' shapes match docs/openapi.json (--write makes them), and huskd reads the fields named there
    spelling   codespell finds nothing in code, documents and SDKs (.codespellrc)
    format     clang-format would change no C file

Each check prints one line per finding, then "ok NAME", "not ok NAME: ..." or, if a tool is missing, "skip NAME: ..."
(scripts/setup test installs the tools). Arguments choose checks.
"""
import collections
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys

import models

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILT = (".git", "node_modules", "__pycache__", "dist")


def tracked(*patterns):
    """The project's files, below a folder or with a name that matches a star. Without git: all files that were not built."""
    if shutil.which("git") and os.path.exists(os.path.join(ROOT, ".git")):
        command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-co", "--exclude-standard", "--", *patterns]
        out = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True).stdout.split("\n")
    else:
        out = [path for path in files_below(ROOT) if any(matches(path, pattern) for pattern in patterns)]
    return sorted({path for path in out if path and os.path.isfile(os.path.join(ROOT, path))})


def files_below(root):
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in BUILT and not (folder == root and name.startswith("build"))]
        for name in names:
            yield os.path.relpath(os.path.join(folder, name), root)


def matches(path, pattern):
    """As in git: a folder matches all files below it, and a star any part of the path."""
    return path == pattern or path.startswith(pattern.rstrip("/") + "/") or fnmatch.fnmatch(path, pattern)


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def sources(extension):
    return [path for path in tracked("src", "include") if path.endswith(extension)]


# ---- layers ----


def table():
    """{room: {file or "*": rooms and headers it may use}} from the first table of docs/architecture.md."""
    rooms = {}
    for line in read("docs/architecture.md").split("\n"):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        found = re.match(r"`src/([\w/]+)/`", cells[0]) if len(cells) == 3 else None
        if not found:
            continue
        for part in cells[2].split(";"):
            file = re.match(r"\s*`(\w+\.c)`:", part)
            names = re.findall(r"`?([\w/.]+)`?", part[file.end():] if file else part)
            rooms.setdefault(found.group(1), {})[file.group(1) if file else "*"] = set(names)
    return rooms


def room_of(path, rooms):
    """The most specific room: server/dialects/e2b/x.c belongs to server/dialects."""
    folder = os.path.dirname(path)
    while folder and folder not in rooms:
        folder = os.path.dirname(folder)
    return folder


def check_layers():
    rooms = table()
    for path in sources((".c", ".h")):
        if path.startswith("include/"):
            continue
        name = path[len("src/"):]
        room = room_of(name, rooms)
        if not room:
            yield f"{path}: src/{os.path.dirname(name)}/ is not in the table of docs/architecture.md"
            continue
        allowed = rooms[room]["*"] | rooms[room].get(os.path.basename(name), set()) | {room}
        for header in re.findall(r'^#include "([^"]+)"', read(path), re.M):
            if "/" in header and room_of(header, rooms) not in allowed and header not in allowed:
                yield f"{path}: may not include {header} (docs/architecture.md, who may use whom)"


# ---- headers ----


BLANKED = re.compile(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|^#(?:\\\n|[^\n])*', re.S | re.M)


def without_comments(text):
    """The text with comments, strings and directives blanked; positions do not change."""
    return BLANKED.sub(lambda found: re.sub(r"[^\n]", " ", found.group(0)), text)


DEFINITION = re.compile(r"^(?!static|typedef|extern|CHILD)[A-Za-z_][\w\s*]*?\b(\w+)\([^;{}]*\)\s*\n\{", re.M)
DECLARATION = re.compile(r"^(?!static|typedef|extern|return)[A-Za-z_][\w\s*]*?\b(\w+)\([^;{}]*\)[^;{}()]*(?:__attribute__[^;]*)?;",
                         re.M)


def check_headers():
    defined = collections.defaultdict(list)
    for path in sources(".c"):
        for found in DEFINITION.finditer(without_comments(read(path))):
            defined[found.group(1)].append(path)
    declared = collections.defaultdict(list)
    for path in sources(".h"):
        text = read(path)
        for found in DECLARATION.finditer(without_comments(text)):
            declared[found.group(1)].append(path)
            name = found.group(1)
            near = [file for file in defined[name] if os.path.dirname(file) == os.path.dirname(path)]
            if path.startswith("include/"):
                continue
            if not near:
                yield f"{path}: declares {name}, which no file of its folder defines ({', '.join(defined[name]) or 'nobody does'})"
            elif not belongs(path, near[0]) and not under_heading(text, found.start(), near[0]):
                yield f"{path}: {name} is not under a heading that names {os.path.basename(near[0])}"
    for name, files in sorted(defined.items()):
        if name != "main" and not declared[name]:
            yield f"{files[0]}: {name} is in no header; make it static or declare it"


def belongs(header, file):
    """leash.h declares functions of leash.c and of leash_main.c."""
    header, file = os.path.splitext(header)[0], os.path.splitext(file)[0]
    return file == header or file.startswith(header + "_")


def under_heading(text, position, file):
    headings = re.findall(r"/\* -{4} (.*?) -+", text[:position], re.S)
    return bool(headings) and os.path.basename(file) in headings[-1]


# ---- names ----


def check_names():
    sides = collections.defaultdict(list)
    for path in sources(".c"):
        room = path.split("/")[1]
        if room in ("vmm", "agent") or os.path.basename(path) == "main.c" or path.startswith("src/engine/"):
            continue
        sides[os.path.basename(path)].append(path)
    for paths in sides.values():
        if len(paths) > 1:
            yield f"{' and '.join(paths)} have the same name"


# ---- modes ----


def check_modes():
    for path in tracked("tests/e2e"):
        if re.match(r"tests/e2e/\d\d_\w+\.py$", path) and not os.access(os.path.join(ROOT, path), os.X_OK):
            yield f"{path} is not executable"
    for path in tracked("templates"):
        full = os.path.join(ROOT, path)
        if "/files/" in path and not os.path.islink(full) and os.path.getsize(full) < 256:
            with open(full, "rb") as file:
                if re.fullmatch(rb"[./][\w./-]+", file.read()):  # one path without a line end
                    yield f"{path} holds a path; was it a symbolic link?"


# ---- links ----


KNOWN_ELSEWHERE = re.compile(r"^(?:/|~|<|\$|e2b_\*|api_\*|cmd_\*|tool_\*)")
MENTION = re.compile(r"(?<![\w/.<*{%-])((?:[\w.-]+/)*[\w-]+\.(?:c|h|py|md|def))(?![\w/*(-])")


def check_links():
    files = tracked("src", "docs", "tests", "include", "scripts", "guest", "templates", "sdk", "bench", "examples", "*.md",
                    "Makefile", "contrib", "debian", ".ci")
    suffixes = collections.defaultdict(set)
    for path in files:
        parts = path.split("/")
        for i in range(len(parts)):
            suffixes["/".join(parts[i:])].add(path)
    for path in files:
        if path.endswith((".c", ".h")) and path.startswith(("src/", "include/")):
            text = "\n".join(found for found in re.findall(r"/\*.*?\*/", read(path), re.S))
        elif path.endswith(".md") and path.startswith("docs/"):
            text = read(path)
            yield from broken_links(path, text)
            text = " ".join(re.findall(r"`([^`\n]+)`", text))
            text = " ".join(word for word in text.split() if word.startswith(("src/", "tests/", "scripts/", "docs/", "include/",
                                                                              "bench/", "guest/")))
        else:
            continue
        for mention in sorted(set(MENTION.findall(text))):
            if mention not in suffixes and not outside(mention):
                yield f"{path}: mentions {mention}, which does not exist"


# Files of other projects that comments mention.
FOREIGN = {"e2b.json", "SKILL.md", "main.py", "vm_sockets.h", "fuse.h", "virtio_mmio.h", "kvm.h", "filters.c", "hello.py", "a.py"}


def outside(mention):
    return mention in FOREIGN or mention.startswith(("linux/", "asm/", "sys/", "netinet/"))


def anchors(text):
    names = set()
    for line in re.findall(r"^#+ +(.*)$", text, re.M):
        names.add(re.sub(r"[^\w\- ]", "", line.strip().lower().replace("`", "")).replace(" ", "-"))
    return names


def broken_links(path, text):
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        full = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
        if not os.path.exists(os.path.join(ROOT, full)):
            yield f"{path}: links to {target}, which does not exist"
        elif anchor and full.endswith(".md") and anchor not in anchors(read(full)):
            yield f"{path}: links to {target}, which has no such section"


# ---- guards ----


def check_guards():
    seen = {}
    for path in sources(".h"):
        found = re.search(r"^#ifndef (\w+)\n#define (\w+)$", read(path), re.M)
        if not found or found.group(1) != found.group(2):
            yield f"{path}: has no include guard"
        elif found.group(1) in seen:
            yield f"{path}: has the include guard of {seen[found.group(1)]}"
        else:
            seen[found.group(1)] = path


# ---- wire ----


METHOD = re.compile(r"^METHOD\((\w+), (\d+), (\w+),\s(.*?)\)\n", re.M | re.S)
FIELD = re.compile(r'^(ARGUMENT|MESSAGE)\((\w+), (\w+), (\w+), (\w+), ([^,]+), ([^,]+),\s+"(.*?)"\)$', re.M)
NEEDS = {"ONE": "", "OPTIONAL": "?", "MANY": "*"}
KINDS = {"AGENT": "Answered by the agent, for any client", "PRIVATE": "Answered by the agent, for the supervisor only",
         "SUPERVISOR": "Answered by the supervisor"}


def field_text(tag, need, kind, lowest, highest, meaning):
    """A field as docs/wire.md shows it: `PORT` (1 to 65535; TCP, inside the guest)."""
    form = {"PATH": "path", "VARIABLE": "KEY=VALUE", "HEX": "hex", "BYTES": "bytes", "MODE": "octal"}.get(kind, "")
    if kind in ("NUMBER", "MODE"):
        span = f"{lowest} or more" if "INT64_MAX" in highest else f"{lowest} to {highest}"
    else:
        unbounded = highest == "WIRE_PAYLOAD_MAX"
        span = "" if unbounded else f"{lowest} bytes" if lowest == highest else f"{lowest} to {highest} bytes"
    notes = "; ".join(note for note in (form, span, meaning.replace('\\"', '"')) if note)
    return f"`{tag}`{NEEDS[need]}" + (f" ({notes})" if notes else "")


def methods():
    """(name, number, kind, arguments, answer) of each method."""
    text = read("src/wire/methods.def").split("#endif", 3)[-1]
    fields = FIELD.findall(text)
    if len(fields) != len(re.findall(r"^(?:ARGUMENT|MESSAGE)\(", text, re.M)):
        raise SystemExit("src/wire/methods.def: a line does not read ARGUMENT(METHOD, TAG, need, type, lowest, highest, \"meaning\")")
    for name, number, kind, rest in METHOD.findall(text):
        columns = re.sub(r'"\s*\n\s*"', "", rest)
        texts = [text.replace('\\"', '"') for text in re.findall(r'"((?:\\.|[^"\\])*)"', columns)]
        opened = [field_text(*of[2:]) for of in fields if of[0] == "ARGUMENT" and of[1] == name]
        later = [field_text(*of[2:]) for of in fields if of[0] == "MESSAGE" and of[1] == name]
        arguments = ", ".join(opened) + (". Later, in a MSG: " + ", ".join(later) if later else "")
        yield name, int(number), kind, arguments, texts[1]


def wire_document():
    lines = ["# The wire: methods between host and guest", "",
             "Generated from `src/wire/methods.def` by `scripts/house.py --write`: edit that file. Frames, fields and tags are in",
             "`src/wire/wire.h`. `A`? is optional, `A`* is optional and may be repeated. The side that answers a method checks these",
             "arguments on receipt (`src/wire/arguments.c`); an error names the field."]
    for kind, title in KINDS.items():
        lines += ["", f"## {title}", "", "| method | number | arguments | answer |", "|---|---|---|---|"]
        lines += [f"| `{name}` | {number} | {arguments or '–'} | {answer} |"
                  for name, number, of, arguments, answer in methods() if of == kind]
    return "\n".join(lines) + "\n"


def check_wire():
    known = list(methods())
    if read("docs/wire.md") != wire_document():
        yield "docs/wire.md is not what src/wire/methods.def says; scripts/house.py --write makes it"
    answered = {"AGENT": "src/agent/methods.c", "PRIVATE": "src/agent/methods.c", "SUPERVISOR": "src/supervisor/session.c"}
    for name, number, kind, _, _ in known:
        if not re.search(rf"\bMETHOD_{name}\b", read(answered[kind])):
            yield f"src/wire/methods.def: nobody answers {name} in {answered[kind]}"
        if [other for other in known if other[1] == number and other[0] != name]:
            yield f"src/wire/methods.def: number {number} is used twice"


# ---- schema ----

# Schemas of request bodies, and the file of huskd that reads each.
BODIES = {"CreateSandbox": "api_sandboxes.c", "PatchSandbox": "api_sandboxes.c", "Fork": "api_sandboxes.c",
          "Ttl": "api_sandboxes.c", "Exec": "api_exec.c", "Code": "api_code.c", "EgressRequest": "api_egress.c"}


def check_schema():
    for path, text in models.files(ROOT).items():
        if read(path) != text:
            yield f"{path} is not what docs/openapi.json says; scripts/house.py --write makes it"
    schemas = json.loads(read("docs/openapi.json"))["components"]["schemas"]
    core = read("src/server/fields.c")
    for schema, file in BODIES.items():
        text = read(f"src/server/{file}") + core
        for field in schemas[schema]["properties"]:
            if f'"{field}"' not in text and f'"{field}"' not in read("src/server/api_egress.c"):
                yield f"src/server/{file}: does not read '{field}' of {schema} in docs/openapi.json"


# ---- tools ----


class Missing(Exception):
    pass


def run(*command):
    if not shutil.which(command[0]):
        raise Missing(f"{command[0]} is not installed")
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    return done.returncode, done.stdout + done.stderr


def check_spelling():
    files = [path for path in tracked("src", "include", "docs", "scripts", "sdk", "guest", "templates", "bench", "examples",
                                      "contrib", "debian", "*.md", "Makefile")
             if not path.endswith((".lock", "package-lock.json", ".png"))]
    status, text = run("codespell", *files)
    if status:
        yield from text.strip().split("\n")


def check_format():
    files = [path for path in tracked("src", "include", "guest", "tests", "examples", "scripts", "bench")
             if path.endswith((".c", ".h"))]
    status, text = run("clang-format", "--dry-run", "-Werror", *files)
    if status:
        yield from sorted({line.split(": ")[0] for line in text.split("\n") if "error:" in line})


CHECKS = {"layers": check_layers, "headers": check_headers, "names": check_names, "modes": check_modes, "links": check_links,
         
          "guards": check_guards, "wire": check_wire, "schema": check_schema,
          "spelling": check_spelling, "format": check_format}


def main():
    if sys.argv[1:] == ["--write"]:
        for path, text in {"docs/wire.md": wire_document(), **models.files(ROOT)}.items():
            with open(os.path.join(ROOT, path), "w", encoding="utf-8") as file:
                file.write(text)
        return 0
    unknown = [name for name in sys.argv[1:] if name not in CHECKS]
    if unknown:
        print(f"house.py: no check '{unknown[0]}'; the checks are {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    failed = False
    for name in sys.argv[1:] or CHECKS:
        try:
            findings = list(CHECKS[name]())
        except Missing as missing:
            print(f"skip {name}: {missing}")
            continue
        for finding in findings:
            print(f"  {finding}")
        print(f"not ok {name}: {len(findings)} findings" if findings else f"ok {name}")
        failed |= bool(findings)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
