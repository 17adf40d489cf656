"""Runs every language except Python for kernel.py, in a separate interpreter that keeps its state between calls: bash, node
(for JavaScript and TypeScript), R, and Java's jshell.

kernel.py captures the interpreter's descriptors 1 and 2; requests and answers use other descriptors. An interrupt is sent to
the whole process group, so the interpreter receives it itself, and this file only waits. If the code ends the interpreter,
the call reports an error, and a new interpreter is started, without the old state.
"""

import base64
import fcntl
import json
import os
import re
import shlex
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
    """A child process that reads requests from one pipe and writes answers to another."""

    name = None  # its name in messages

    def __init__(self, kernel):
        self.kernel = kernel
        self.child = None
        self.requests = self.answers = None

    def start(self, arguments, environment, request_fd, answer_fd, **streams):
        """Starts the interpreter with a pipe to its request_fd and one from its answer_fd."""
        request_read, request_write = os.pipe()
        answer_read, answer_write = os.pipe()
        ends = {request_fd: request_read, answer_fd: answer_write}

        def place():
            # A descriptor may have the number of another: all are moved away first. The moved ones are closed on exec.
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
            pass  # the interpreter has ended; the missing answer reports it

    def ended(self):
        """Reports the end of the interpreter, and cleans up."""
        words = ending(self.child.wait())
        self.requests.close()
        self.answers.close()
        self.child = None
        self.kernel.error("Exit", words, "%s ended (%s); the next call starts a new one\n" % (self.name, words))

    def run(self, request):
        # Permanent changes are also part of a new interpreter's environment.
        for name, value in request.changes.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self.ensure()
        self.execute(request)


class Bash(Interpreter):
    """An interactive bash on a pipe: an interrupt or a syntax error then ends the code, but not the shell."""

    name = "the shell"
    NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

    def ensure(self):
        if self.child is not None:
            return
        # Before the first command, bash complains about the missing terminal: until then stderr is discarded.
        shell = ["bash", "--noprofile", "--norc", "--noediting", "-i"]
        self.start(shell, dict(os.environ, PS1="", PS2=""), 0, 3, stderr=subprocess.DEVNULL)
        self.send(b"set +m +o history; unset PROMPT_COMMAND; exec 2>/proc/%d/fd/2; printf '0\\n' >&3\n" % os.getpid())
        self.answers.readline()

    def before(self, request):
        """Commands that set the variables; for those of this call, the old values are saved."""
        for name, value in request.changes.items():
            if self.NAME.match(name):
                yield "unset %s" % name if value is None else "export %s=%s" % (name, shlex.quote(value))
        for name, value in request.env.items():
            if self.NAME.match(name):
                yield '[ -z "${%s+x}" ] || __husk_%s="$%s"; export %s=%s' % (name, name, name, name, shlex.quote(value))

    def after(self, request):
        for name in request.env:
            if self.NAME.match(name):
                yield ('if [ -n "${__husk_%s+x}" ]; then export %s="$__husk_%s"; else unset %s; fi; unset __husk_%s'
                       % (name, name, name, name, name))

    def execute(self, request):
        with tempfile.NamedTemporaryFile("w", prefix="cell-", suffix=".sh", encoding="utf-8",
                                         errors="surrogateescape") as file:
            file.write(request.code)
            file.flush()
            # Separate lines: an interrupt discards the rest of the current line.
            lines = ["", *self.before(request), ". %s </dev/null 3>&-" % file.name, "__husk_status=$?",
                     *self.after(request), "printf '%s\\n' \"$__husk_status\" >&3; (exit $__husk_status)", ""]
            self.send("\n".join(lines).encode("utf-8", "surrogateescape"))
            answer = self.answers.readline()
        if not answer:
            self.ended()
        elif answer.strip() != b"0":
            status = answer.decode("ascii", "replace").strip()
            self.kernel.error("KeyboardInterrupt" if status == "130" else "ExitStatus", status, "")


class Lines(Interpreter):
    """An interpreter with its own kernel in this directory. A request is a line to its descriptor 3: the file with the code,
    then words "set:NAME=VALUE", "unset:NAME" and "env:NAME=VALUE" (for this call only), names and values in hexadecimal.
    It writes events to its descriptor 4, one JSON line each, up to "end". A result may name files with further
    representations, which this side removes."""

    command = ()

    def ensure(self):
        if self.child is None:
            self.start([word.replace("{here}", HERE) for word in self.command], dict(os.environ), 3, 4,
                       stdin=subprocess.DEVNULL)
            self.answers.readline()

    def execute(self, request):
        with tempfile.NamedTemporaryFile("w", prefix="cell-", encoding="utf-8", errors="surrogateescape") as file:
            file.write(request.code)
            file.flush()
            self.send((" ".join([file.name, *self.variables(request)]) + "\n").encode())
            while True:
                answer = self.answers.readline()
                if not answer:
                    self.ended()
                    return
                event = json.loads(answer)
                if event.get("type") == "end":
                    return
                for mime, path in event.pop("files", {}).items():
                    with open(path, "rb") as picture:
                        event["bundle"][mime] = base64.b64encode(picture.read()).decode("ascii")
                    os.unlink(path)
                self.kernel.emit(event)

    @staticmethod
    def variables(request):
        def word(text):
            return text.encode("utf-8", "surrogateescape").hex()

        for name, value in request.changes.items():
            yield "unset:%s" % word(name) if value is None else "set:%s=%s" % (word(name), word(value))
        for name, value in request.env.items():
            yield "env:%s=%s" % (word(name), word(value))


class JavaScript(Lines):
    name = "node"
    command = ("node", "{here}/kernel.js")


class TypeScript(Lines):
    name = "node"
    command = ("node", "{here}/kernel.js", "typescript")


class R(Lines):
    name = "R"
    command = ("R", "--vanilla", "--no-echo", "--file={here}/kernel.R")


class Java(Lines):
    name = "the Java machine"
    # Options for a quick start and a small heap: by default the JVM sizes its heap by the host's memory.
    command = ("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xms16m", "-Xshare:auto", "{here}/kernel.java")


LANGUAGES = {"javascript": JavaScript, "typescript": TypeScript, "bash": Bash, "r": R, "java": Java}


def check(language):
    if language not in LANGUAGES:
        sys.exit("kernel: unknown language '%s' (python, %s)" % (language, ", ".join(LANGUAGES)))


def main(kernel, language):
    interpreter = LANGUAGES[language](kernel)
    try:
        interpreter.ensure()
    except FileNotFoundError as problem:
        sys.exit("kernel: %s is not installed in this sandbox" % problem.filename)
    kernel.serve(language, interpreter.run)
