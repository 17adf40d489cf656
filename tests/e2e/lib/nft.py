"""nftables through the library that husk uses; the program nft need not be installed."""

import subprocess
import sys

_PROGRAM = """
import ctypes, sys
library = ctypes.CDLL("libnftables.so.1")
library.nft_ctx_new.restype = ctypes.c_void_p
sys.exit(1 if library.nft_run_cmd_from_buffer(ctypes.c_void_p(library.nft_ctx_new(0)), sys.argv[1].encode()) else 0)
"""


def nft(space, commands):
    """Runs commands in a named network namespace; returns their output."""
    words = ["nsenter", f"--net=/run/netns/{space}", sys.executable, "-c", _PROGRAM, commands]
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=30).stdout.strip()
