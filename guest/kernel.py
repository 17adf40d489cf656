"""The process behind `run_code`: python3 /.husk/guest/kernel.py LANGUAGE (python, javascript, typescript, bash, r, java).

The guest agent starts it with stdin kept open. Each request is one JSON line on stdin, {"id", "code", "env"}; each event
is one JSON line on stdout. This file implements that protocol and captures descriptors 1 and 2, which the user's code and
all its child processes write to. kernel_python.py (IPython) and kernel_relay.py (all other languages) run the code.

"env" is set for this one request. The sandbox's own variables may change while a kernel runs, because the kernel may have
started in the template, before the sandbox was created. The agent keeps them in a file, and each request first applies
the changes.

It must run on any Python from 3.9 on with the standard library alone, and the user's output must never reach the
descriptor of the events.
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
VARIABLES = "/run/husk/environment"  # of the sandbox: NUL-terminated KEY=VALUE, written by the agent


class Variables:
    """The sandbox's variables, and their changes since the last look."""

    def __init__(self):
        self.stamp = None
        self.known = {}
        self.changes()  # this process was started with the current values

    def changes(self):
        """Name to value, None for a removed variable; {} if the file has not changed."""
        try:
            status = os.stat(VARIABLES)
            stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
            if stamp == self.stamp:
                return {}
            with open(VARIABLES, "rb") as file:
                pairs = os.fsdecode(file.read()).split("\0")
        except OSError:
            return {}
        self.stamp = stamp
        old, self.known = self.known, dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        changed = {name: value for name, value in self.known.items() if old.get(name) != value}
        changed.update((name, None) for name in old if name not in self.known)
        return changed


class Request:
    """One piece of code to run, the variables for this request only, and the variables that changed permanently."""

    def __init__(self, document, changes):
        self.code = document["code"]
        self.env = document.get("env") or {}
        self.changes = changes
        if not isinstance(self.code, str):
            raise TypeError("code is not a string")
        if not isinstance(self.env, dict) or not all(isinstance(value, str) for value in self.env.values()):
            raise TypeError("env is not an object of strings")


class Kernel:
    """Sends events, reads requests, and forwards the user's output."""

    def __init__(self):
        self.lock = threading.RLock()
        self.current = None  # id of the request being run
        self.busy = False  # the main thread runs the user's code: an interrupt may be raised there
        self.guarded = 0  # > 0: the main thread is in the middle of an event; an interrupt must wait
        self.interrupted = False
        self.variables = Variables()
        self.requests = os.fdopen(self._move(0), "rb", 1 << 20)
        self.events = self._move(1)
        self.streams = {}
        self._capture(1, "stdout")
        self._capture(2, "stderr")
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        # Not in the environment: children of the user's code must not find these descriptors.
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

    def _on_interrupt(self, _number, frame):
        if not self.busy:
            return
        if self.guarded:
            self.interrupted = True
            return
        self.interrupt(frame)

    def interrupt(self, _frame):
        """Stops the user's code, which runs at this frame; kernel_python.py replaces this method."""
        raise KeyboardInterrupt

    def __enter__(self):
        """A section that the main thread must complete: an interrupt waits until its end."""
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
        """Sends one event of the running request, after all earlier output."""
        with self:
            self.drain()
            event.setdefault("id", self.current)
            self._write(event)

    def error(self, name, value, traceback):
        self.emit({"type": "error", "name": name, "value": value, "traceback": traceback})

    # ---- the user's output

    def _forward(self, fd):
        """Reads once; returns true if there may be more."""
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
        """Forwards what is in the pipes now; a background process that writes without end does not block this."""
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

    def begin(self, line):
        """The request in this line; None if it is malformed, which is then reported."""
        self.current = None
        try:
            document = json.loads(line)
            request = Request(document, self.variables.changes())
            self.current = document.get("id")
            return request
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            self._write({"id": None, "type": "error", "name": "ProtocolError", "value": str(problem), "traceback": ""})
            self._write({"id": None, "type": "end"})
            return None

    def finish(self, count):
        """The end of the request; `count` is its number, from 1 on."""
        self.busy = self.interrupted = False
        self.emit({"type": "end", "count": count})
        with self.lock:
            self.current = None

    def ready(self, language):
        self._write({"type": "ready", "language": language})

    def serve(self, language, run):
        """Answers requests until stdin ends; `run(request)` executes one."""
        runs = 0
        self.ready(language)
        for line in self.requests:
            request = self.begin(line)
            if request is None:
                continue
            run(request)
            runs += 1
            self.finish(runs)


def main():
    language = sys.argv[1] if len(sys.argv) > 1 else "python"
    sys.path[0] = os.path.dirname(os.path.abspath(__file__))
    if language == "python":
        try:
            import IPython  # noqa: F401
        except ImportError:
            sys.exit("IPython is not installed; `apt-get install python3-ipython` adds it")
        import kernel_python as implementation
    else:
        import kernel_relay as implementation

        implementation.check(language)
    kernel = Kernel()
    implementation.main(kernel, language)


if __name__ == "__main__":
    main()
