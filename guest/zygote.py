"""A warm Python: it has imported the modules named on its command line, and forks for every `python3` handed to it. The
next child is always forked in advance, because copying so much memory takes longer than starting a bare interpreter.

Started by the code-interpreter template before its snapshot is taken: /usr/bin/python3 zygote.py numpy pandas ... The
client is handoff.c (the protocol is in handoff.h). A forked child takes over the caller's descriptors, environment,
directory, limits and credentials and runs the command of `python3`. If a loaded module could differ from the one that the
caller would import (a module of the same name beside the script, packages installed since), the child executes the real
python instead. The zygote must stay single-threaded, because it forks.
"""

import sys

STARTUP = set(sys.modules)  # loaded in every interpreter: never a reason to fall back

import array
import atexit
import fcntl
import gc
import importlib
import io
import os
import pwd
import random
import resource
import runpy
import select
import signal
import site
import socket
import struct
import threading
import time
import types

PATH = "/run/husk/python.sock"
REAL = "/usr/bin/python3"
HEADER = struct.Struct("=6IQ32Q")
ORDER = struct.Struct("=3I")  # to a child: size of the request that follows, uid, gid
CREDENTIALS = struct.Struct("=iII")  # pid, uid, gid
MAGIC = 0x48534B31
SIZE_MAX = 4 << 20


class Job:
    """One request: the command to run, and for which user."""

    def __init__(self, connection):
        self.connection = connection
        self.data = bytearray()
        self.descriptors = array.array("i")
        self.sender = None  # uid and gid of the client, from the kernel
        self.pid = None  # of the child that runs the command

    def receive(self):
        """Reads the available bytes; False when the client has ended."""
        space = socket.CMSG_SPACE(3 * self.descriptors.itemsize) + socket.CMSG_SPACE(CREDENTIALS.size)
        try:
            data, control, _flags, _address = self.connection.recvmsg(1 << 18, space)
        except BlockingIOError:
            return True
        except OSError:
            return False
        for level, kind, content in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self.descriptors.frombytes(content[: len(content) - len(content) % self.descriptors.itemsize])
            elif level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and self.sender is None:
                self.sender = CREDENTIALS.unpack(content)[1:]
        self.data += data
        return bool(data)

    def size(self):
        """The size of the whole request; 0 if not known yet. ValueError if it is not a valid request."""
        if len(self.data) < HEADER.size:
            return 0
        magic, size = HEADER.unpack_from(self.data)[:2]
        if magic != MAGIC or size > SIZE_MAX:
            raise ValueError("not a request")
        return HEADER.size + size

    def complete(self):
        size = self.size()
        if size == 0 or len(self.data) < size:
            return False
        if len(self.descriptors) != 3 or not self.sender:
            raise ValueError("not a request")
        return True

    def take_request(self):
        """Returns the bytes of the request; later bytes are kept."""
        size = self.size()
        request = bytes(self.data[:size])
        del self.data[:size]
        return request

    def close_descriptors(self):
        for fd in self.descriptors:
            os.close(fd)
        del self.descriptors[:]


class Order:
    """A request as seen by the child that runs it."""

    def __init__(self, request, sender, descriptors):
        fields = HEADER.unpack_from(request)
        argc, envc, self.umask, _reserved, self.ignored = fields[2:7]
        strings = request[HEADER.size :].split(b"\0")[:-1]
        if len(strings) != argc + envc + 1 or argc < 1:
            os._exit(125)
        self.arguments = [os.fsdecode(string) for string in strings[:argc]]
        self.environment = dict(pair.partition(b"=")[::2] for pair in strings[argc : argc + envc])
        self.directory = strings[-1]
        self.limits = list(zip(fields[7::2], fields[8::2]))
        self.sender = sender
        self.descriptors = descriptors


class Zygote:
    def __init__(self, path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.exists(path):
            os.unlink(path)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(path)
        os.chmod(path, 0o666)
        self.listener.listen(64)
        self.listener.setblocking(False)
        self.wake, self.woken = socket.socketpair()
        for end in (self.wake, self.woken):
            end.setblocking(False)
        signal.set_wakeup_fd(self.wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.poll = select.poll()
        self.poll.register(self.listener, select.POLLIN)
        self.poll.register(self.woken, select.POLLIN)
        self.jobs = {}  # by the descriptor of their connection
        self.complete = []  # complete requests that wait for a child
        self.spare = None  # (pid, link) of the child that was forked in advance

    def accept(self):
        try:
            connection, _address = self.listener.accept()
        except OSError:
            time.sleep(0.01)  # out of descriptors: temporary, so wait instead of spinning
            return
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.jobs[connection.fileno()] = Job(connection)
        self.poll.register(connection, select.POLLIN)

    def drop(self, job):
        self.poll.unregister(job.connection)
        del self.jobs[job.connection.fileno()]
        job.connection.close()
        job.close_descriptors()

    def kill(self, job, number):
        """Signals the child and its group, once the child leads a group."""
        for send in (os.killpg, os.kill):
            try:
                send(job.pid, number)
                return
            except OSError:
                pass

    def read(self, job):
        """Reads what a client sent: its request, then signals."""
        alive = job.receive()
        try:
            if job.pid is None and job not in self.complete and job.complete():
                self.complete.append(job)
        except ValueError:
            alive = False
        if job.pid is not None:
            for number in job.data:
                if 0 < number < signal.NSIG:
                    self.kill(job, number)
            del job.data[:]
        if not alive:
            if job.pid is not None:
                self.kill(job, signal.SIGKILL)
            if job in self.complete:
                self.complete.remove(job)
            self.drop(job)

    def fork(self):
        """Forks the next child; in the child, returns its link to the zygote."""
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.detach()
            return theirs
        theirs.close()
        self.spare = (pid, ours)
        return None

    def hand_over(self, job):
        job.pid, link = self.spare
        self.spare = None
        request = job.take_request()
        head = ORDER.pack(len(request), *job.sender)
        try:
            link.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, job.descriptors)])
            link.sendall(request)
        except OSError:
            pass  # the child was killed while it waited; its status is sent to the client
        link.close()
        job.close_descriptors()

    def reap(self):
        try:
            while self.woken.recv(4096):
                pass
        except BlockingIOError:
            pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self.spare and self.spare[0] == pid:
                self.spare[1].close()
                self.spare = None
            for job in [job for job in self.jobs.values() if job.pid == pid]:
                try:
                    job.connection.send(struct.pack("=i", status))
                except OSError:
                    pass  # the client has already disconnected
                self.drop(job)

    def serve(self):
        """Never returns in the zygote; in each forked child it returns the link for its order."""
        while True:
            if self.spare is None:
                link = self.fork()
                if link is not None:
                    return self.leave(link)
            if self.complete:
                self.hand_over(self.complete.pop(0))
                continue
            for fd, _events in self.poll.poll():
                if fd == self.listener.fileno():
                    self.accept()
                elif fd == self.woken.fileno():
                    self.reap()
                elif fd in self.jobs:
                    self.read(self.jobs[fd])

    def leave(self, link):
        """In the child: closes everything that belongs to the zygote."""
        signal.set_wakeup_fd(-1)
        for each in self.jobs.values():
            each.connection.detach()
        for own in (self.listener, self.wake, self.woken):
            own.detach()
        high = fcntl.fcntl(link.detach(), fcntl.F_DUPFD_CLOEXEC, 200)
        os.closerange(3, high)
        os.closerange(high + 1, 1024)
        return socket.socket(fileno=high)


# ---- in the child


def prepare():
    """Prepares what does not depend on the order; also touches, and so copies, the memory that every order needs."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    open_streams(False)
    reseed()
    importlib.invalidate_caches()
    exec(compile("pass", "<string>", "exec"), {})


def await_order(link):
    """Waits for the order; exits if the zygote has ended."""
    head, control, _flags, _address = link.recvmsg(ORDER.size, socket.CMSG_SPACE(12))
    if len(head) < ORDER.size or not control:
        os._exit(0)
    size, uid, gid = ORDER.unpack(head)
    request = bytearray()
    while len(request) < size:
        data = link.recv(size - len(request))
        if not data:
            os._exit(0)
        request += data
    link.close()
    return Order(bytes(request), (uid, gid), array.array("i", control[0][2]))


def become(job):
    """Takes over the caller's context; descriptors first, so that errors reach the caller."""
    for target, fd in enumerate(job.descriptors):
        os.dup2(fd, target)
    os.closerange(3, 16)
    for number in range(1, 32):
        if job.ignored >> (number - 1) & 1 and number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_IGN)
    for number, limit in enumerate(job.limits):
        limit = tuple(-1 if value >= 1 << 63 else value for value in limit)
        try:
            if resource.getrlimit(number) != limit:
                resource.setrlimit(number, limit)
        except (ValueError, OSError):
            pass  # a limit that this kernel does not support
    # Before the rights are dropped: the caller may be in a directory that it could not enter now. Its rights there do not grow.
    os.chdir(job.directory)
    if job.sender != (0, 0):
        drop_credentials(*job.sender)
    os.umask(job.umask)
    os.environb.clear()
    os.environb.update(job.environment)
    die_with_zygote()


def drop_credentials(uid, gid):
    try:
        os.initgroups(pwd.getpwuid(uid).pw_name, gid)
    except KeyError:
        os.setgroups([gid])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def die_with_zygote():
    """The client learns of the end only from the zygote, so without a zygote the child must end."""
    parent = os.getppid()
    LIBC.prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(125)


def parse(arguments):
    """(unbuffered, kind, what, argv): kind is -c, -m, - or script."""
    rest = arguments[1:]
    unbuffered = False
    while rest and rest[0] == "-u":
        unbuffered = True
        rest = rest[1:]
    if not rest:
        return unbuffered, "-", None, [""]
    if rest[0] in ("-c", "-m"):
        return unbuffered, rest[0], rest[1], [rest[0]] + rest[2:]
    if rest[0] == "-":
        return unbuffered, "-", None, rest
    return unbuffered, "script", rest[0], rest


def differs(folder):
    """True if a loaded module would be found in this folder instead, or if the folder changes the path."""
    try:
        names = set(os.listdir(folder or "."))
    except OSError:
        return False
    folder = os.path.abspath(folder)
    # The content of a site folder at our start was used by our own imports too.
    for name in names - SITES.get(folder, set()):
        stem = name.partition(".")[0]
        module = sys.modules.get(stem)
        if folder in SITES and name.endswith(".pth"):
            return True
        if module is None or stem in STARTUP or not (stem == name or name.endswith((".py", ".so"))):
            continue
        # A namespace package has no file, only folders.
        origin = getattr(module, "__file__", None) or "".join(list(getattr(module, "__path__", ()))[:1])
        if not origin.startswith(folder + os.sep):
            return True
    return False


def must_be_real(kind, what, first):
    user = os.path.join(
        os.path.expanduser("~"), ".local/lib/python%d.%d/site-packages" % sys.version_info[:2])
    if os.path.isdir(user) or differs(first) or any(differs(folder) for folder in SITES):
        return True
    return kind == "script" and (os.path.isdir(what) or what.endswith((".pyc", ".zip", ".pyz")))


def open_streams(unbuffered):
    locale = next((value for name in ("LC_ALL", "LC_CTYPE", "LANG") for value in [os.environ.get(name)] if value), "C")
    errors = "surrogateescape" if locale in ("C", "POSIX", "C.UTF-8", "C.utf8") else "strict"
    unbuffered = unbuffered or bool(os.environ.get("PYTHONUNBUFFERED"))
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        raw = io.FileIO(fd, mode, closefd=False)
        raw.name = "<%s>" % name
        if mode == "r":
            stream = io.TextIOWrapper(io.BufferedReader(raw), "utf-8", errors)
        else:
            stream = io.TextIOWrapper(
                raw if unbuffered else io.BufferedWriter(raw), "utf-8",
                "backslashreplace" if name == "stderr" else errors, newline="\n",
                line_buffering=name == "stderr" or raw.isatty(), write_through=unbuffered)
        stream.mode = mode
        setattr(sys, name, stream)
        setattr(sys, "__%s__" % name, stream)


def reseed():
    """Changes what must differ between the children of one snapshot."""
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def refresh():
    reseed()
    importlib.invalidate_caches()
    if os.environ.get("PYTHONDONTWRITEBYTECODE"):
        sys.dont_write_bytecode = True


def main_module(**names):
    module = types.ModuleType("__main__")
    module.__builtins__ = __import__("builtins")
    module.__dict__.update(names)
    sys.modules["__main__"] = module
    return module.__dict__


def read_script(path):
    try:
        with io.open_code(os.path.abspath(path)) as file:
            return file.read()
    except OSError as problem:
        sys.stderr.write("%s: can't open file %r: [Errno %d] %s\n"
                         % (REAL, os.path.abspath(path), problem.errno, problem.strerror))
        sys.exit(2)


def execute(kind, what):
    """Runs the code; its exceptions are passed on."""
    if kind == "-m":
        main_module(__spec__=None)
        runpy._run_module_as_main(what)
    elif kind == "script":
        from importlib.machinery import SourceFileLoader

        source = read_script(what)
        names = main_module(__file__=what, __cached__=None, __loader__=SourceFileLoader("__main__", what))
        exec(compile(source, what, "exec", dont_inherit=True), names)
    elif kind == "-c":
        exec(compile(what, "<string>", "exec", dont_inherit=True), main_module())
    else:
        exec(compile(sys.stdin.buffer.read(), "<stdin>", "exec", dont_inherit=True), main_module())


def report(problem):
    """Handles an uncaught exception as the interpreter does, without the frames of this file in the traceback."""
    trace = problem.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.excepthook(type(problem), problem.with_traceback(trace), trace)


def exit_status(request):
    if request.code is None:
        return 0
    if isinstance(request.code, int):
        return request.code & 0xFF
    print(request.code, file=sys.stderr)
    return 1


def flush():
    """Returns False if output was lost."""
    flushed = True
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError:
            flushed = False
    return flushed


def finish(status):
    """The visible end of an interpreter. Freeing what was loaded before the fork would touch, and so copy, all of its memory.
    Only objects of the caller's code are freed, so that its files are flushed."""
    threading._shutdown()
    atexit._run_exitfuncs()
    flushed = flush()
    for name in ["__main__"] + [name for name in reversed(list(sys.modules)) if name not in LOADED]:
        module = sys.modules.get(name)
        if isinstance(module, types.ModuleType) and vars(module) is not globals():
            vars(module).clear()
    gc.collect()
    if not (flush() and flushed) and status == 0:
        status = 120
    os._exit(status)


def die_interrupted():
    flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)


def run(job):
    become(job)
    unbuffered, kind, what, argv = parse(job.arguments)
    first = os.path.dirname(os.path.realpath(what)) if kind == "script" else os.getcwd() if kind == "-m" else ""
    if must_be_real(kind, what, first):
        os.execv(REAL, job.arguments)
    open_streams(unbuffered)
    refresh()
    sys.argv, sys.orig_argv = argv, list(job.arguments)
    sys.path[0] = first
    status = 0
    try:
        execute(kind, what)
    except SystemExit as request:
        status = exit_status(request)
    except KeyboardInterrupt as problem:
        report(problem)
        die_interrupted()
    except BaseException as problem:
        report(problem)
        status = 1
    finish(status)


def load(names):
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as problem:
            print("zygote: cannot import %s: %s" % (name, problem), file=sys.stderr)
    import ctypes

    return ctypes.CDLL(None)


def close_files():
    """Closes files that a module keeps open for itself. A child has none of the zygote's descriptors: closing such a file there
    would fail, or close a file of the caller."""
    for thing in gc.get_objects():
        if type(thing) is io.TextIOWrapper and not thing.closed and thing.fileno() > 2:
            thing.close()


LIBC = load(sys.argv[1:])
close_files()
SITES = {folder: set(os.listdir(folder)) if os.path.isdir(folder) else set() for folder in site.getsitepackages()}
LOADED = set(sys.modules)
gc.collect()
gc.freeze()
LINK = Zygote(PATH).serve()
prepare()
run(await_order(LINK))
