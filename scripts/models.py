#!/usr/bin/env python3
"""The answers of the API as classes of the Python SDK and interfaces of the TypeScript SDK, made from docs/openapi.json.

    scripts/house.py --write    writes sdk/python/husk/_shapes.py and sdk/typescript/src/shapes.ts
        scripts/house.py schema     checks that they match docs/openapi.json

A field's name, type and comment are only in docs/openapi.json. Additions by hand (properties, results of commands) are in
models.py and models.ts, which build on these shapes.
"""

import json
import os
import re
import textwrap

# Schema of docs/openapi.json: class of the Python SDK, interface of the TypeScript SDK.
ANSWERS = {"Sandbox": ("SandboxInfo", "SandboxInfo"), "Volume": ("VolumeInfo", "VolumeInfo"), "Stats": ("SandboxStats", "Stats"),
           "Egress": ("Egress", "Egress"), "EgressEvent": ("EgressEvent", "EgressEvent"), "Event": ("SandboxEvent", "HuskEvent"),
           "Snapshot": ("SnapshotInfo", "SnapshotInfo"), "Checkpoint": ("Checkpoint", "Checkpoint"),
           "Rewound": ("Rewound", "Rewound"), "Promoted": ("Promoted", "Promoted"), "Effect": ("Effect", "Effect"), "Merged": ("Merged", "Merged"), "Change": ("Change", "Change"), "Difference": ("Difference", "Difference"), "Template": ("TemplateInfo", "TemplateInfo"),
           "Control": ("Control", "Control"), "Recording": ("Recording", "Recording"), "Link": ("Link", "Link"),
           "Browser": ("BrowserInfo", "BrowserInfo"), "Process": ("ProcessInfo", "ProcessInfo"), "Entry": ("FileEntry", "Entry"),
           "Window": ("Window", "Window"), "Element": ("Element", "Element")}
# Parts of those schemas that the TypeScript SDK names. Their keys keep the API's spelling.
PARTS = {"Mount": "Mount", "TreeNode": "TreeNode"}

PYTHON, TYPESCRIPT = "sdk/python/husk/_shapes.py", "sdk/typescript/src/shapes.ts"
WIDTH = 120


def split_null(schema):
    """(the type without null, true if it may be null)"""
    kinds = schema.get("type")
    if not isinstance(kinds, list):
        return kinds, False
    rest = [kind for kind in kinds if kind != "null"]
    return rest[0], "null" in kinds


# ---- Python ----


def python_type(schema):
    kind, nullable = split_null(schema)
    if schema.get("format") == "date-time":
        return "datetime | None"
    if kind == "array":
        name = f"list[{python_type(schema['items'])}]"
    elif kind == "object" or "$ref" in schema:
        values = {python_type(each) for each in schema.get("properties", {}).values()}
        if isinstance(schema.get("additionalProperties"), dict):
            values = {python_type(schema["additionalProperties"])}
        name = f"dict[str, {values.pop() if len(values) == 1 else 'Any'}]"
    else:
        name = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}[kind]
    return f"{name} | None" if nullable else name


def python_default(kind):
    if kind.endswith("None"):
        return "None"
    if kind.startswith(("list", "dict")):
        return f"field(default_factory={kind.partition('[')[0]})"
    return {"str": '""', "int": "0", "float": "0.0", "bool": "False"}[kind]


def python_comment(schema):
    words = [", ".join(schema.get("enum", ())), schema.get("description", "").replace("null:", "None:")]
    return "; ".join(word for word in words if word)


def python_class(name, schema):
    lines = ["", "", "@dataclass(frozen=True)", f"class {name}(Model):"]
    if "description" in schema:
        lines += [f'    """{sentence(schema["description"])}"""', ""]
    for position, (key, value) in enumerate(schema["properties"].items()):
        kind = python_type(value)
        # An id or name is always present; other fields may be missing in the answer of an older server.
        required = position == 0 and kind in ("str", "int")
        line = f"    {key}: {kind}" + ("" if required else f" = {python_default(kind)}")
        comment = python_comment(value)
        lines += [f"{line}  # {comment}"] if comment and len(line) + len(comment) + 4 <= WIDTH else \
            [*textwrap.wrap(comment, WIDTH - 4, initial_indent="    # ", subsequent_indent="    # "), line]
    return lines


def python_text(schemas):
    lines = ['"""What the server answers, field by field. Made from docs/openapi.json by scripts/house.py --write: edit it there."""', "",
             "from __future__ import annotations", "", "from dataclasses import dataclass, field", "from datetime import datetime",
             "from typing import Any", "", "from ._model import Model"]
    for schema, (name, _) in ANSWERS.items():
        lines += python_class(name, schemas[schema])
    return "\n".join(lines) + "\n"


# ---- TypeScript ----


def typescript_type(schema):
    kind, nullable = split_null(schema)
    if "$ref" in schema:
        part = schema["$ref"].rpartition("/")[2]
        name = PARTS[part] if part in PARTS else ANSWERS[part][1]  # of the latter, all keys are single words
    elif "enum" in schema:
        name = " | ".join(f'"{value}"' for value in schema["enum"])
    elif kind == "array":
        name = f"{typescript_type(schema['items'])}[]"
    elif kind == "object" and "properties" in schema:
        fields = (f"{key}{mark(schema, key)}: {typescript_type(value)}" for key, value in schema["properties"].items())
        name = "{ " + "; ".join(fields) + " }"
    elif kind == "object":
        values = schema.get("additionalProperties")
        name = f"Record<string, {typescript_type(values) if isinstance(values, dict) else 'unknown'}>"
    else:
        name = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean"}[kind]
    return f"{name} | null" if nullable else name


def mark(schema, key):
    return "" if key in schema["required"] else "?"


def camel(key):
    return re.sub("_([a-z])", lambda letter: letter.group(1).upper(), key)


def sentence(text):
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def typescript_interface(name, schema, spell):
    lines = [""]
    if "description" in schema:
        lines.append(f"/** {sentence(schema['description'])} */")
    lines.append(f"export interface {name} {{")
    for key, value in schema["properties"].items():
        if "description" in value:
            lines.append(f"  /** {sentence(value['description'])} */")
        lines.append(f"  {spell(key)}{mark(schema, key)}: {typescript_type(value)};")
    return [*lines, "}"]


def typescript_text(schemas):
    lines = ["/** What the server answers, field by field. Made from docs/openapi.json by scripts/house.py --write: edit it there. */"]
    for schema, name in PARTS.items():
        lines += typescript_interface(name, schemas[schema], str)
    for schema, (_, name) in ANSWERS.items():
        lines += typescript_interface(name, schemas[schema], camel)
    return "\n".join(lines) + "\n"


def files(root):
    """{path: expected content}"""
    with open(os.path.join(root, "docs/openapi.json"), encoding="utf-8") as file:
        schemas = json.load(file)["components"]["schemas"]
    return {PYTHON: python_text(schemas), TYPESCRIPT: typescript_text(schemas)}
