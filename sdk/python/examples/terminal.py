"""A terminal in a sandbox, on yours: `python3 terminal.py SANDBOX`. Leaving it with ~. keeps the shell running."""

import os
import select
import shutil
import signal
import sys
import termios
import threading
import tty

from husk import Sandbox


def main() -> None:
    sandbox = Sandbox.connect(sys.argv[1])
    size = shutil.get_terminal_size()
    before = termios.tcgetattr(0)
    with sandbox.pty(rows=size.lines, columns=size.columns) as terminal:

        def fit(*_: object) -> None:
            now = shutil.get_terminal_size()
            terminal.resize(now.lines, now.columns)

        def type_in() -> None:
            last = b""
            while select.select([0], [], [])[0]:
                data = os.read(0, 4096)
                if (last + data).endswith(b"~."):
                    terminal.close()
                    return
                last = data[-1:]
                terminal.write(data)

        signal.signal(signal.SIGWINCH, fit)
        threading.Thread(target=type_in, daemon=True).start()
        try:
            tty.setraw(0)
            for data in terminal:
                os.write(1, data)
        finally:
            termios.tcsetattr(0, termios.TCSADRAIN, before)


main()
