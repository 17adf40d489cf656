#!/usr/bin/python3
"""`-it` under a real terminal: a shell that believes in it, window size and resize, keys, detaching."""

# timeout: 600
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

from lib.harness import *


class Terminal:
    """husk with a pseudo-terminal as its controlling one."""

    def __init__(self, *arguments, rows=24, columns=80):
        self.master, worker = pty.openpty()
        self.resize(rows, columns)
        self.seen = b""

        def take_terminal():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [HUSK, *arguments],
            stdin=worker,
            stdout=worker,
            stderr=worker,
            preexec_fn=take_terminal,
            env=environment({"TERM": "xterm"}),
        )
        os.close(worker)

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def send(self, text):
        os.write(self.master, text.encode())

    def expect(self, pattern, seconds=30):
        """Reads until the pattern shows; what matched, and everything up to it is used up."""
        deadline = time.monotonic() + seconds
        while True:
            match = re.search(pattern.encode(), self.seen)
            if match:
                self.seen = self.seen[match.end() :]
                return match.group(0).decode(errors="replace")
            left = deadline - time.monotonic()
            assert (
                left > 0 and select.select([self.master], [], [], max(left, 0))[0]
            ), f"no {pattern!r} in {self.seen[-500:]!r}"
            try:
                chunk = os.read(self.master, 65536)
            except OSError:
                chunk = b""
            assert chunk, f"the terminal closed before {pattern!r}: {self.seen[-500:]!r}"
            self.seen += chunk

    def end(self, seconds=30):
        """The exit status; output goes on being read, or the program could block on it."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"husk did not end: {self.seen[-500:]!r}"
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.master, 65536)
                except OSError:
                    break
        return self.process.wait(10)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        os.close(self.master)


@test
def test_shell_size_and_resize():
    box = create()
    with Terminal("exec", "-it", box, "--", "bash", "--norc", rows=40, columns=100) as terminal:
        terminal.expect(r"[#$] ")
        terminal.send("tty; stty size; echo sta''rted\n")
        terminal.expect(r"/dev/pts/\d+")
        terminal.expect(r"40 100")
        terminal.expect("started")
        terminal.expect(r"[#$] ")  # before it, bash puts back the size it has read
        terminal.resize(33, 77)
        terminal.process.send_signal(signal.SIGWINCH)
        time.sleep(0.5)
        terminal.send("stty size\n")
        terminal.expect(r"33 77")
        terminal.send("exit 6\n")
        assert_equal(terminal.end(), 6)


@test
def test_control_c_goes_to_the_program():
    box = create()
    with Terminal("exec", "-it", box, "--", "bash", "--norc") as terminal:
        terminal.expect(r"[#$] ")
        terminal.send("sleep 1000\n")
        time.sleep(0.5)
        terminal.send("\x03")
        terminal.expect(r"[#$] ")
        terminal.send("echo code $?\n")
        terminal.expect(r"code 130[^#$]*[#$] ")  # the prompt too: an end of input before it belongs to nobody
        terminal.send("\x04")
        terminal.end()


@test
def test_run_it_starts_a_shell_and_removes_everything():
    before = set(listed())
    with Terminal("run", "-it") as terminal:
        terminal.expect(r"[#$] ")
        terminal.send("echo a''b; exit 4\n")
        terminal.expect("ab")
        assert_equal(terminal.end(), 4)
    until(lambda: set(listed()) <= before, "run removes its sandbox")


@test
def test_detach_and_attach():
    box = create()
    with Terminal("exec", "-it", box, "--", "bash", "--norc") as terminal:
        terminal.expect(r"[#$] ")
        terminal.send("X=kept\n")
        terminal.expect(r"[#$] ")
        terminal.send("\x10\x11")
        assert_equal(terminal.end(), 0)
    pid = next(entry["pid"] for entry in husk("ps", "--json", box).json() if entry["terminal"])
    with Terminal("attach", "-i", box, str(pid)) as terminal:
        terminal.send("echo it is $X\n")
        terminal.expect("it is kept")
        terminal.send("exit\n")
        assert_equal(terminal.end(), 0)


@test
def test_terminal_is_given_back():
    box = create()
    master, worker = pty.openpty()
    before = termios.tcgetattr(worker)
    done = subprocess.run(
        [HUSK, "exec", "-it", box, "--", "true"], stdin=worker, stdout=worker, stderr=worker, timeout=60 * SLOW, check=False
    )
    assert_equal(done.returncode, 0)
    assert_equal(termios.tcgetattr(worker), before, "the terminal's modes")
    os.close(master)
    os.close(worker)


@test
def test_editor_like_output():
    box = create()
    with Terminal("exec", "-it", box, "--", "python3", "-q", rows=30, columns=90) as terminal:
        terminal.expect(">>> ")
        terminal.send("import os; os.get_terminal_size()\n")
        terminal.expect(r"columns=90, lines=30")
        terminal.send("exit()\n")
        assert_equal(terminal.end(), 0)


if __name__ == "__main__":
    main("base")
