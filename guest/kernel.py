"""The process behind `run_code`: python3 /.husk/guest/kernel.py LANGUAGE (python, javascript or bash).

The guest agent starts it with stdin kept open. Each request is one JSON line on stdin, {"id", "code"}; each event one
JSON line on stdout. This file owns that protocol and the capture of descriptors 1 and 2, which the user's code and all
its child processes write to; what running code means is in kernel_python.py and kernel_relay.py.

It must run on any Python from 3.9 on with the standard library alone, and must never let the user's output reach the
descriptor the events go out on.
"""

import codecs
import fcntl
import json
import os
import select
import signal
import struct
import sys
import termios
import threading

CHUNK = 1 << 16


class Kernel:
    """Events out, requests in, and the user's output in between."""

    def __init__(self):
        self.lock = threading.RLock()
        self.current = None  # id of the request being run
        self.runs = 0  # requests that were run
        self.busy = False  # the main thread runs the user's code: an interrupt may be raised there
        self.guarded = 0  # > 0: the main thread is half-way through an event; an interrupt has to wait
        self.interrupted = False
        self.requests = os.fdopen(self._move(0), "rb", 1 << 20)
        self.events = self._move(1)
        self.streams = {}
        self._capture(1, "stdout")
        self._capture(2, "stderr")
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        # Left in the environment of nobody: children of the user's code must not find our descriptors.
        signal.signal(signal.SIGINT, self._on_interrupt)
        threading.Thread(target=self._pump, name="husk-output", daemon=True).start()

    @staticmethod
    def _move(fd):
        """The same file on a high descriptor that no child inherits."""
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64)

    def _capture(self, fd, name):
        reader, writer = os.pipe()
        os.dup2(writer, fd)
        os.close(writer)
        high = self._move(reader)
        os.close(reader)
        os.set_blocking(high, False)
        self.streams[high] = (name, codecs.getincrementaldecoder("utf-8")("replace"))

    # ---- interrupts

    def _on_interrupt(self, _number, _frame):
        if not self.busy:
            return
        if self.guarded:
            self.interrupted = True
            return
        raise KeyboardInterrupt

    def __enter__(self):
        """A stretch the main thread must not leave half-way: an interrupt is held back until its end."""
        if threading.current_thread() is threading.main_thread():
            self.guarded += 1
        self.lock.acquire()
        return self

    def __exit__(self, *_exception):
        self.lock.release()
        if threading.current_thread() is threading.main_thread():
            self.guarded -= 1
            if self.guarded == 0 and self.interrupted:
                self.interrupted = False
                if self.busy:
                    raise KeyboardInterrupt

    # ---- events

    def _write(self, event):
        data = memoryview((json.dumps(event, ensure_ascii=True, default=str) + "\n").encode("ascii"))
        while data:
            data = data[os.write(self.events, data):]

    def emit(self, event):
        """Sends one event of the running request, after all output that came before it."""
        with self:
            self.drain()
            event.setdefault("id", self.current)
            self._write(event)

    def error(self, name, value, traceback):
        self.emit({"type": "error", "name": name, "value": value, "traceback": traceback})

    # ---- the user's output

    def _forward(self, fd):
        """Reads once; whether there may be more."""
        name, decoder = self.streams[fd]
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return False
        text = decoder.decode(data)
        if text:
            self._write({"id": self.current, "type": name, "text": text})
        return len(data) == CHUNK

    def drain(self):
        """Passes on what is in the pipes now; a background writer that never stops does not keep us here."""
        with self:
            for fd in self.streams:
                waiting = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))[0]
                for _ in range(waiting // CHUNK + 1 if waiting else 0):
                    self._forward(fd)

    def _pump(self):
        poll = select.poll()
        for fd in self.streams:
            poll.register(fd, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                with self.lock:
                    self._forward(fd)

    # ---- the loop

    def serve(self, language, run):
        """Answers requests until stdin ends; `run(code)` executes one."""
        self._write({"type": "ready", "language": language})
        for line in self.requests:
            try:
                request = json.loads(line)
                code, self.current = request["code"], request.get("id")
                if not isinstance(code, str):
                    raise TypeError("code is not a string")
            except (ValueError, KeyError, TypeError) as problem:
                self._write({"id": None, "type": "error", "name": "ProtocolError", "value": str(problem),
                             "traceback": ""})
                self._write({"id": None, "type": "end"})
                continue
            run(code)
            self.busy = self.interrupted = False
            self.runs += 1
            self.emit({"type": "end", "count": self.runs})
            with self.lock:
                self.current = None


def main():
    language = sys.argv[1] if len(sys.argv) > 1 else "python"
    sys.path[0] = os.path.dirname(os.path.abspath(__file__))
    if language == "python":
        import kernel_python as implementation
    elif language in ("javascript", "bash"):
        import kernel_relay as implementation
    else:
        sys.exit("kernel: unknown language '%s' (python, javascript, bash)" % language)
    kernel = Kernel()
    implementation.main(kernel, language)


if __name__ == "__main__":
    main()
