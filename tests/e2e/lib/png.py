"""Reads PNG files as Chromium and matplotlib write them, so that a test can check a picture."""

import itertools
import struct
import zlib


def pixels(data):
    """(width, height, bytes per pixel, rows) of an 8-bit RGB or RGBA PNG."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n"), data[:20]
    width, height, depth, color = struct.unpack(">IIBB", data[16:26])
    assert depth == 8 and color in (2, 6), (depth, color)
    size, at, packed = (3 if color == 2 else 4), 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        packed += data[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += length + 12
    raw, stride, rows = zlib.decompress(packed), width * size, []
    above, before = bytearray(stride), b""
    for y in range(height):
        line = raw[y * (stride + 1) : (y + 1) * (stride + 1)]
        # Most lines of a screen are as the one before. Only the filters 0 and 1 do not look at it.
        rows.append(rows[-1] if line == before and line[0] < 2 else unfilter(line[0], bytearray(line[1:]), above, size))
        above, before = rows[-1], line
    return width, height, size, rows


def unfilter(kind, line, above, size):
    """A picture of a screen has three million bytes, so the frequent filters have no loop of their own over them."""
    if kind == 0:
        return line
    if kind == 1:
        for channel in range(size):
            line[channel::size] = bytes(value & 255 for value in itertools.accumulate(line[channel::size]))
        return line
    if kind == 2:
        return added(line, above)
    return average(line, above, size) if kind == 3 else paeth(line, above, size)


def added(line, above):
    """The sum of each two bytes: both lines as one long number, without carrying from one byte into the next."""
    high = int.from_bytes(b"\x80" * len(line), "big")
    one, two = int.from_bytes(line, "big"), int.from_bytes(above, "big")
    return bytearray((((one & ~high) + (two & ~high)) ^ ((one ^ two) & high)).to_bytes(len(line), "big"))


def average(line, above, size):
    for i, value in enumerate(line):
        line[i] = (value + ((line[i - size] if i >= size else 0) + above[i]) // 2) & 255
    return line


def paeth(line, above, size):
    left = corner = [0] * size
    for start in range(0, len(line), size):
        up = above[start : start + size]
        for channel in range(size):
            a, b, c = left[channel], up[channel], corner[channel]
            da, db, dc = abs(b - c), abs(a - c), abs(a + b - c - c)
            guess = a if da <= db and da <= dc else b if db <= dc else c
            line[start + channel] = (line[start + channel] + guess) & 255
        left, corner = line[start : start + size], up
    return line
