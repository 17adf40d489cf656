"""How a JSON document of the server becomes a plain value."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

T = TypeVar("T", bound="Model")


def parse_time(text: str | None) -> datetime | None:
    """RFC 3339 to an aware datetime."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None


@dataclass(frozen=True)
class Model:
    """Something out of a JSON document. A key that this version does not know is left out, so that an older SDK works with a
    newer server."""

    @classmethod
    def from_document(cls: type[T], document: Mapping[str, Any]) -> T:
        values = {}
        for each in dataclasses.fields(cls):
            if each.name in document:
                value = document[each.name]
                is_time = each.name == "at" or each.name.endswith("_at")
                values[each.name] = parse_time(value) if is_time else value
        return cls(**values)
