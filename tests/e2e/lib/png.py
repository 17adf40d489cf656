"""Reads PNG files as Chromium and matplotlib write them, so that a test can check a picture."""

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
    above = bytearray(stride)
    for y in range(height):
        start = y * (stride + 1)
        rows.append(unfilter(raw[start], bytearray(raw[start + 1 : start + 1 + stride]), above, size))
        above = rows[-1]
    return width, height, size, rows


def unfilter(kind, line, above, size):
    for i, value in enumerate(line):
        left = line[i - size] if i >= size else 0
        corner = above[i - size] if i >= size else 0
        line[i] = (value + predictor(kind, left, above[i], corner)) & 255
    return line


def predictor(kind, left, up, corner):
    if kind == 4:
        guess = left + up - corner
        return min((abs(guess - left), 0, left), (abs(guess - up), 1, up), (abs(guess - corner), 2, corner))[2]
    return (0, left, up, (left + up) // 2)[kind]
