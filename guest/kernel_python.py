"""Runs the user's Python for kernel.py: IPython's InteractiveShell in this process. Results, displays, pages and errors are
sent as events of the kernel. IPython defines the meaning of a cell (magics, !commands, await, In and Out, representations,
figures), as in Jupyter.

Cells run in the main thread, inside an event loop that continues between them. So an interrupt reaches a cell, its tasks
continue after it, and asyncio sees a running loop, as in Jupyter. No exception of a cell may leave this module.
"""

import asyncio
import base64
import builtins
import getpass
import json
import os
import sys

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import StdinNotImplementedError
from IPython.core.formatters import BaseFormatter
from IPython.core.interactiveshell import InteractiveShell
from traitlets import ObjectName, Type, Unicode
from traitlets.config import Config

import kernel_charts

HERE = os.path.dirname(os.path.abspath(__file__))
JSON_LIMIT = 1 << 20  # a larger list or dict is sent as text only
INLINE = "module://matplotlib_inline.backend_inline"


# ---- representations beyond IPython's


class ChartFormatter(BaseFormatter):
    """The data of a matplotlib figure."""

    format_type = Unicode(kernel_charts.CHART)
    print_method = ObjectName("_repr_husk_chart_")
    _return_type = dict

    def __call__(self, value):
        figure = sys.modules.get("matplotlib.figure")
        if figure is not None and isinstance(value, getattr(figure, "Figure", ())):
            return kernel_charts.figure_chart(value)
        return None


class TableFormatter(BaseFormatter):
    """The columns of a pandas table."""

    format_type = Unicode(kernel_charts.DATA)
    print_method = ObjectName("_repr_husk_data_")
    _return_type = dict

    def __call__(self, value):
        return kernel_charts.table_data(value)


def plain_json(value):
    """A list or dict as JSON; None if it is not plain data, or too large."""
    try:
        if len(json.dumps(value, allow_nan=False)) <= JSON_LIMIT:
            return value
    except (TypeError, ValueError, RecursionError):
        pass
    return None


def encoded(bundle):
    """The bundle in the form to send: bytes as base64, values that JSON does not support as text."""
    out = {}
    for mime, data in bundle.items():
        if isinstance(data, (bytes, bytearray)):
            data = base64.b64encode(data).decode("ascii")
        elif not isinstance(data, str):
            try:
                json.dumps(data)
            except (TypeError, ValueError, RecursionError):
                data = str(data)
        out[mime] = data
    return out


# ---- IPython's ends


def flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, ValueError, OSError):
            pass  # the user's code has closed or replaced it


def send(shell, bundle, main):
    bundle = encoded(bundle)
    flush()
    shell.kernel.emit({"type": "result", "main": main, "text": str(bundle.get("text/plain", "")), "bundle": bundle})


class ResultHook(DisplayHook):
    """The value of a cell's last expression."""

    def write_output_prompt(self):
        pass

    def write_format_data(self, format_dict, md_dict=None):
        send(self.shell, format_dict, True)

    def finish_displayhook(self):
        pass


class Publisher(DisplayPublisher):
    """display(), and everything that calls it. An update replaces what was shown: of all updates of one display only the last
    is sent, at the end of the cell."""

    updates = {}

    def publish(self, data, metadata=None, source=None, *, transient=None, update=False, **_options):
        if update and (transient or {}).get("display_id"):
            self.updates[transient["display_id"]] = data
        else:
            send(self.shell, data, False)

    def clear_output(self, wait=False):
        pass  # sent events cannot be taken back

    def send_updates(self):
        updates, self.updates = self.updates, {}
        for data in updates.values():
            send(self.shell, data, False)


class ZMQInteractiveShell(InteractiveShell):
    """The name is that of Jupyter's shell: libraries decide by it whether they are in a notebook."""

    displayhook_class = Type(ResultHook)
    display_pub_class = Type(Publisher)
    kernel = None
    traceback = None  # of the last error shown

    def init_display_formatter(self):
        super().init_display_formatter()
        formatters = self.display_formatter.formatters
        formatters[kernel_charts.CHART] = ChartFormatter(parent=self.display_formatter)
        formatters[kernel_charts.DATA] = TableFormatter(parent=self.display_formatter)
        for kind in (dict, list):
            formatters["application/json"].for_type(kind, plain_json)

    def enable_gui(self, gui=None):
        pass  # there is no display

    def ask_exit(self):
        print("exit() leaves the context as it is; restart it for a fresh one", file=sys.stderr)

    def system(self, cmd):
        # Directly to the captured descriptors: a terminal in between would merge stdout and stderr.
        flush()
        self.system_raw(cmd)

    def _get_exc_info(self, exc_tuple=None):
        """Removes the frames of this kernel: those that raise interrupts, and those of input()."""
        kind, value, trace = super()._get_exc_info(exc_tuple)
        at = trace
        while at is not None and at.tb_next is not None:
            if os.path.dirname(at.tb_next.tb_frame.f_code.co_filename) == HERE:
                at.tb_next = at.tb_next.tb_next
            else:
                at = at.tb_next
        return kind, value, trace

    def _showtraceback(self, etype, evalue, stb):
        self.traceback = "\n".join(stb) + "\n"


def refuse_input(_prompt="", *_arguments, **_options):
    raise StdinNotImplementedError("input() was called, but nobody can answer here: assign the value in the code instead")


# ---- cells


class Python:
    def __init__(self, kernel):
        self.kernel = kernel
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self.task = None  # the running cell
        self.input = b""
        kernel.interrupt = self.interrupt
        ZMQInteractiveShell.kernel = kernel
        # History stays in memory: its database would need a thread, and a file that all forks share.
        config = Config({"HistoryManager": {"enabled": False}})
        self.shell = ZMQInteractiveShell.instance(config=config, colors="NoColor", autoindent=False, display_page=True, quiet=True)
        builtins.input = getpass.getpass = refuse_input

    def interrupt(self, frame):
        """Raises in the cell's own code; a cell that waits is cancelled."""
        while frame is not None:
            if frame.f_code is Python.run_cell.__code__:
                raise KeyboardInterrupt
            frame = frame.f_back
        if self.task is not None:
            self.loop.call_soon_threadsafe(self.task.cancel)

    async def run_cell(self, code):
        """Returns IPython's result of the cell."""
        shell, problem = self.shell, None
        try:
            transformed = shell.transform_cell(code)
        except Exception:
            transformed, problem = code, sys.exc_info()
        if not shell.should_run_async(code, transformed_cell=transformed, preprocessing_exc_tuple=problem):
            return shell.run_cell(code, store_history=True)
        try:
            result = await shell.run_cell_async(
                code, store_history=True, transformed_cell=transformed, preprocessing_exc_tuple=problem)
        finally:
            shell.events.trigger("post_execute")
        shell.events.trigger("post_run_cell", result)
        return result

    async def run(self, code):
        shell = self.shell
        shell.traceback = None
        self.task = self.loop.create_task(self.run_cell(code))
        try:
            self.kernel.busy = True
            result = await self.task
            error = result.error_before_exec or result.error_in_exec
        except BaseException as problem:  # an interrupt just before or after the cell's own code
            error = problem
        finally:
            self.kernel.busy = False
            self.task = None
        shell.display_pub.send_updates()
        flush()
        if error is not None:
            self.report(error)
        elif shell.traceback:
            sys.stderr.write(shell.traceback)  # of an error outside the cell: in a callback, a hook
            flush()

    def report(self, error):
        if isinstance(error, asyncio.CancelledError):
            error = KeyboardInterrupt("interrupted while it waited")
        try:
            value = str(error)
        except Exception as worse:
            value = "<%s while it was being printed>" % type(worse).__name__
        name = type(error).__name__
        self.kernel.error(name, value, self.shell.traceback or "%s: %s\n" % (name, value))

    # ---- requests

    async def line(self):
        """The next line of the requests; b"" at the end. Reads only when called."""
        fd = self.kernel.requests.fileno()
        while b"\n" not in self.input:
            readable = self.loop.create_future()
            self.loop.add_reader(fd, lambda: readable.done() or readable.set_result(None))
            try:
                await readable
            finally:
                self.loop.remove_reader(fd)
            data = os.read(fd, 1 << 20)
            if not data:
                return b""
            self.input += data
        line, _, self.input = self.input.partition(b"\n")
        return line + b"\n"

    async def serve(self, language):
        self.kernel.ready(language)
        while True:
            line = await self.line()
            if not line:
                return
            request = self.kernel.begin(line)
            if request is None:
                continue
            change(request.changes)
            before = {name: os.environ.get(name) for name in request.env}
            change(request.env)
            count = self.shell.execution_count
            await self.run(request.code)
            change(before)
            self.kernel.finish(count)


def change(variables):
    """Changes the environment of this process and its children; None removes a variable."""
    for name, value in variables.items():
        try:
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        except ValueError:
            pass  # a name that an environment cannot contain


def main(kernel, language):
    os.environ["MPLBACKEND"] = INLINE
    sys.argv = [""]
    sys.path[0] = ""
    # A complete line is sent as soon as it is printed.
    for name, fd in (("stdout", 1), ("stderr", 2)):
        setattr(sys, name, open(fd, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False))
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
    sys.stdin = sys.__stdin__ = open(0, "r", encoding="utf-8", closefd=False)
    python = Python(kernel)
    kernel_charts.watch_boxes()
    if "matplotlib.pyplot" in sys.modules:  # the zygote has imported it, with another backend
        python.shell.enable_matplotlib("inline")
    python.loop.run_until_complete(python.serve(language))
