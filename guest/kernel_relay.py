"""Runs bash and JavaScript for kernel.py, in an interpreter of their own that lives from call to call.

The interpreter's descriptors 1 and 2 are the ones kernel.py captures; it is spoken to on descriptors of its own. An
interrupt goes to the whole process group, so it reaches the interpreter by itself: here it is only waited out. When the
code ends the interpreter, the call reports that as an error and a new one is started, with fresh state.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def ending(status):
    """How a process ended, in words."""
    if status >= 0:
        return "exit status %d" % status
    try:
        return "killed by " + signal.Signals(-status).name
    except ValueError:
        return "killed by signal %d" % -status


class Interpreter:
    """A child with its requests on one pipe and its answers on another."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.child = None
        self.requests = self.answers = None

    def start(self, arguments, environment, request_fd, answer_fd, **streams):
        """Starts it with a pipe to its request_fd and one from its answer_fd."""
        request_read, request_write = os.pipe()
        answer_read, answer_write = os.pipe()
        ends = {request_fd: request_read, answer_fd: answer_write}

        def place():
            # One may sit where another belongs: all go out of the way first. What stays above is closed on exec.
            for fd, high in [(fd, fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 64)) for fd, end in ends.items()]:
                os.dup2(high, fd)
            signal.signal(signal.SIGINT, signal.SIG_DFL)

        self.child = subprocess.Popen(arguments, env=environment, preexec_fn=place, close_fds=False, **streams)
        os.close(request_read)
        os.close(answer_write)
        self.requests = os.fdopen(request_write, "wb", 0)
        self.answers = os.fdopen(answer_read, "rb", 1 << 20)

    def send(self, data):
        try:
            self.requests.write(data)
        except BrokenPipeError:
            pass  # it ended; the answer that never comes says so

    def ended(self, what):
        """Reports the end of the interpreter, and clears it away."""
        words = ending(self.child.wait())
        self.requests.close()
        self.answers.close()
        self.child = None
        self.kernel.error("Exit", words, "%s ended (%s); the next call starts a new one\n" % (what, words))


class Bash(Interpreter):
    """An interactive bash on a pipe: that way an interrupt or a syntax error abandons the code and not the shell."""

    def ensure(self):
        if self.child is not None:
            return
        # It complains about having no terminal before the first command runs: until then stderr is not the user's.
        shell = ["bash", "--noprofile", "--norc", "--noediting", "-i"]
        self.start(shell, dict(os.environ, PS1="", PS2=""), 0, 3, stderr=subprocess.DEVNULL)
        self.send(b"set +m +o history; unset PROMPT_COMMAND; exec 2>/proc/%d/fd/2; printf '0\\n' >&3\n" % os.getpid())
        self.answers.readline()

    def run(self, code):
        self.ensure()
        with tempfile.NamedTemporaryFile("w", prefix="cell-", suffix=".sh", encoding="utf-8",
                                         errors="surrogateescape") as file:
            file.write(code)
            file.flush()
            # Two lines: an interrupt throws away the rest of the line it came in.
            self.send(("\n. %s </dev/null 3>&-\nprintf '%%s\\n' \"$?\" >&3\n" % file.name).encode())
            answer = self.answers.readline()
        if not answer:
            self.ended("the shell")
        elif answer.strip() != b"0":
            status = answer.decode("ascii", "replace").strip()
            self.kernel.error("KeyboardInterrupt" if status == "130" else "ExitStatus", status, "")


class Node(Interpreter):
    """node running kernel.js: requests and events are the kernel's own, a line of JSON each."""

    def ensure(self):
        if self.child is None:
            self.start(["node", os.path.join(HERE, "kernel.js")], dict(os.environ), 3, 4,
                       stdin=subprocess.DEVNULL)
            self.answers.readline()

    def run(self, code):
        self.ensure()
        self.send((json.dumps({"code": code}) + "\n").encode())
        while True:
            answer = self.answers.readline()
            if not answer:
                self.ended("node")
                return
            event = json.loads(answer)
            if event.get("type") == "end":
                return
            self.kernel.emit(event)


def main(kernel, language):
    interpreter = Bash(kernel) if language == "bash" else Node(kernel)
    try:
        interpreter.ensure()
    except FileNotFoundError as problem:
        sys.exit("kernel: %s is not installed in this sandbox" % problem.filename)
    kernel.serve(language, interpreter.run)
