"""WebSocket (RFC 6455) as bytes, from the client's side. No input or output happens here. Used by pty.py."""

from __future__ import annotations

import base64
import hashlib
import os
import struct
from dataclasses import dataclass

from ._http import broken

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
MESSAGE_MAX = 16 << 20
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def new_key() -> str:
    return base64.b64encode(os.urandom(16)).decode()


def accept_of(key: str) -> str:
    """What the server must answer to the key. SHA-1 is what the protocol says; nothing rests on its strength."""
    return base64.b64encode(hashlib.sha1(key.encode() + _MAGIC).digest()).decode()


def _masked(data: bytes, mask: bytes) -> bytes:
    key = (mask * (len(data) // 4 + 1))[: len(data)]
    return (int.from_bytes(data, "little") ^ int.from_bytes(key, "little")).to_bytes(len(data), "little")


def encode(kind: int, data: bytes) -> bytes:
    """One frame that is a whole message; a client masks what it sends."""
    size = len(data)
    if size < 126:
        head = struct.pack("!BB", 0x80 | kind, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", 0x80 | kind, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", 0x80 | kind, 0x80 | 127, size)
    mask = os.urandom(4)
    return head + mask + _masked(data, mask)


@dataclass
class Message:
    kind: int
    data: bytes


class Decoder:
    """Messages out of the bytes a server sends, put together from their fragments."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._kind = 0
        self._parts = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        self._buffer += data
        messages: list[Message] = []
        while True:
            frame = self._frame()
            if frame is None:
                return messages
            message = self._join(*frame)
            if message:
                messages.append(message)

    def _frame(self) -> tuple[int, bool, bytes] | None:
        if len(self._buffer) < 2:
            return None
        first, size = self._buffer[0], self._buffer[1]
        if first & 0x70 or size & 0x80:
            raise broken("a WebSocket frame with bits that nobody agreed on")
        at = 2
        if size >= 126:
            at += 2 if size == 126 else 8
            if len(self._buffer) < at:
                return None
            size = int.from_bytes(self._buffer[2:at], "big")
        if size > MESSAGE_MAX:
            raise broken("a WebSocket frame that is too long")
        if len(self._buffer) < at + size:
            return None
        payload = bytes(self._buffer[at : at + size])
        del self._buffer[: at + size]
        return first & 0x0F, bool(first & 0x80), payload

    def _join(self, kind: int, final: bool, payload: bytes) -> Message | None:
        if kind >= CLOSE:
            return Message(kind, payload)
        if kind:
            self._kind = kind
            self._parts = bytearray()
        self._parts += payload
        if len(self._parts) > MESSAGE_MAX:
            raise broken("a WebSocket message that is too long")
        return Message(self._kind, bytes(self._parts)) if final else None
