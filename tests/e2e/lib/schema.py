"""Checks a JSON value against a schema of docs/openapi.json. Supports only the part of JSON Schema that the document uses;
another keyword is an error, so that nothing in the document stays unchecked."""

import datetime

TYPES = {
    "string": lambda v: isinstance(v, str),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
    "boolean": lambda v: isinstance(v, bool),
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "null": lambda v: v is None,
}
KEYWORDS = {
    "type", "properties", "required", "additionalProperties", "items", "enum", "oneOf", "$ref", "description", "format",
}  # fmt: skip


def problems(document, schema, value, where="answer"):
    """A list of errors; empty if the value is valid."""
    unknown = set(schema) - KEYWORDS
    assert not unknown, f"the test does not know the schema keywords {unknown}"
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/components/schemas/")
        return problems(document, document["components"]["schemas"][name], value, where)
    if "oneOf" in schema:
        found = [problems(document, choice, value, where) for choice in schema["oneOf"]]
        fitting = sum(not each for each in found)
        return [] if fitting == 1 else [f"{where}: {value!r:.80} fits {fitting} of the choices: {found}"]
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(TYPES[kind](value) for kind in kinds):
        return [f"{where}: {value!r:.80} is not {' or '.join(kinds)}"]
    wrong = []
    if "enum" in schema and value not in schema["enum"]:
        wrong.append(f"{where}: {value!r} is not one of {schema['enum']}")
    if schema.get("format") == "date-time" and isinstance(value, str):
        wrong += _time(value, where)
    if isinstance(value, dict):
        wrong += _object(document, schema, value, where)
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            wrong += problems(document, schema["items"], item, f"{where}[{index}]")
    return wrong


def _time(value, where):
    try:
        datetime.datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError:
        return [f"{where}: {value!r} is not a time"]
    return []


def _object(document, schema, value, where):
    known = schema.get("properties", {})
    wrong = [f"{where}: '{name}' is missing" for name in schema.get("required", []) if name not in value]
    for name, item in value.items():
        more = schema.get("additionalProperties", True)
        if name in known:
            wrong += problems(document, known[name], item, f"{where}.{name}")
        elif more is False:
            wrong.append(f"{where}: '{name}' is not in the document")
        elif more is not True:
            wrong += problems(document, more, item, f"{where}.{name}")
    return wrong
