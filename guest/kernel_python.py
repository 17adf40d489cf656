"""Runs the user's Python for kernel.py: one namespace for all calls, top-level await, the value of the last expression
as the main result, rich representations, and matplotlib figures as PNG.

Called by kernel.py with the Kernel whose descriptors are captured already. User code runs in the main thread, so that
an interrupt reaches it; nothing it raises may leave this module.
"""

import ast
import base64
import builtins
import importlib.util
import json
import linecache
import os
import re
import subprocess
import sys
import traceback
import types

import kernel_charts

REPRESENTATIONS = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_latex_", "text/latex"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_pdf_", "application/pdf"),
    ("_repr_json_", "application/json"),
    ("_repr_javascript_", "application/javascript"),
)
HERE = os.path.dirname(os.path.abspath(__file__))
JSON_LIMIT = 1 << 20  # a larger list or dict is given as text only
COROUTINE = 0x80  # inspect.CO_COROUTINE, without importing inspect


class Python:
    def __init__(self, kernel):
        self.kernel = kernel
        self.cells = 0
        self.loop = None
        self.shown = set()  # figures already given as a result of this call
        module = types.ModuleType("__main__")
        module.__dict__["__builtins__"] = builtins
        module.display = self.display
        # Pickle, dataclasses and multiprocessing look the user's names up here.
        sys.modules["__main__"] = module
        self.namespace = module.__dict__

    # ---- results

    def bundle(self, value):
        """Representations of a value by MIME type; always one in text/plain."""
        if isinstance(value, type):
            return {"text/plain": repr(value)}
        bundle = {}
        method = getattr(value, "_repr_mimebundle_", None)
        if callable(method):
            given = method()
            given = given[0] if isinstance(given, tuple) else given
            bundle.update((key, self._data(item)) for key, item in (given or {}).items())
        for name, mime in REPRESENTATIONS:
            method = getattr(value, name, None)
            if mime not in bundle and callable(method):
                data = method()
                data = data[0] if isinstance(data, tuple) else data
                if data is not None:
                    bundle[mime] = self._data(data)
        if self._is_figure(value):
            bundle["image/png"] = self._png(value)
            self.shown.add(id(value))
            self._add(bundle, kernel_charts.CHART, kernel_charts.figure_chart(value))
        elif isinstance(value, (dict, list)) and "application/json" not in bundle:
            self._add_json(bundle, value)
        else:
            self._add(bundle, kernel_charts.DATA, kernel_charts.table_data(value))
        if "text/plain" not in bundle:
            bundle["text/plain"] = repr(value)
        return bundle

    @staticmethod
    def _data(data):
        return base64.b64encode(data).decode("ascii") if isinstance(data, (bytes, bytearray)) else data

    @staticmethod
    def _add(bundle, mime, data):
        if data is not None:
            bundle[mime] = data

    @staticmethod
    def _add_json(bundle, value):
        try:
            if len(json.dumps(value, allow_nan=False)) <= JSON_LIMIT:
                bundle["application/json"] = value
        except (TypeError, ValueError, RecursionError):
            pass  # not plain data: text is what there is

    def result(self, value, main):
        bundle = self.bundle(value)
        self.kernel.emit({"type": "result", "main": main, "text": bundle["text/plain"], "bundle": bundle})

    def display(self, *values):
        """Shows values now, in their richest form."""
        for value in values:
            self.flush()
            self.result(value, False)

    # ---- matplotlib

    @staticmethod
    def _is_figure(value):
        figure = sys.modules.get("matplotlib.figure")
        return figure is not None and isinstance(value, getattr(figure, "Figure", ()))

    def _png(self, figure):
        import io

        file = io.BytesIO()
        figure.savefig(file, format="png", bbox_inches="tight")
        return base64.b64encode(file.getvalue()).decode("ascii")

    def show_figures(self):
        """plt.show(), and the end of every call: open figures become results and are closed."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None or not hasattr(pyplot, "get_fignums"):
            return
        for number in pyplot.get_fignums():
            figure = pyplot.figure(number)
            if id(figure) not in self.shown:
                self.flush()
                self.result(figure, False)
            pyplot.close(figure)

    def take_over_show(self, pyplot):
        # A function of its own: pyplot sets attributes on it, which a method does not take.
        pyplot.show = lambda *arguments, **options: self.show_figures()
        kernel_charts.remember_boxes()

    def find_spec(self, name, _path=None, _target=None):
        """As an entry of sys.meta_path: takes over pyplot.show the moment pyplot is imported."""
        if name != "matplotlib.pyplot":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                self.take_over_show(module)

            spec.loader.exec_module = exec_module
        return spec

    # ---- running

    def flush(self):
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (AttributeError, ValueError, OSError):
                pass  # the user's code closed or replaced it

    def compile(self, code, filename):
        """The statements, and the last expression apart (or None)."""
        try:
            tree = ast.parse(code, filename)
        except SyntaxError:
            rewritten = rewrite_magics(code)
            if rewritten == code:
                raise
            tree = ast.parse(rewritten, filename)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";"):
            last = ast.Expression(tree.body.pop().value)
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        return (
            compile(tree, filename, "exec", flags),
            compile(last, filename, "eval", flags) if last is not None else None,
        )

    def evaluate(self, compiled):
        value = eval(compiled, self.namespace)
        if not compiled.co_flags & COROUTINE:
            return value
        import asyncio

        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        task = self.loop.create_task(value)
        try:
            return self.loop.run_until_complete(task)
        except KeyboardInterrupt:
            task.cancel()
            try:
                self.loop.run_until_complete(task)
            except BaseException:
                pass  # it was told to stop; how it ended is the interrupt's business
            raise

    def run_cell(self, code, filename):
        statements, last = self.compile(code, filename)
        self.evaluate(statements)
        value = self.evaluate(last) if last is not None else None
        self.flush()
        if value is not None:
            self.namespace["_"] = value
            self.result(value, True)
        self.show_figures()

    def run(self, code):
        self.cells += 1
        filename = "<cell %d>" % self.cells
        linecache.cache[filename] = (len(code), None, code.splitlines(True), filename)
        self.shown.clear()
        self.kernel.interrupted = False
        try:
            try:
                self.kernel.busy = True
                self.run_cell(code, filename)
            finally:
                self.kernel.busy = False
        except SystemExit as request:
            if request.code not in (None, 0):
                self.kernel.error("SystemExit", str(request.code), "SystemExit: %s\n" % (request.code,))
        except BaseException as problem:
            self.report(problem)
        self.flush()

    def report(self, problem):
        """The error with its traceback as the user should see it: frames of the kernel are left out."""
        self.flush()
        try:
            value = str(problem)
            report = traceback.TracebackException.from_exception(problem)
            if len(report.stack) and report.stack[-1].filename == ast.__file__:
                report.stack.clear()  # code that does not parse: the message itself says where
            report.stack[:] = [frame for frame in report.stack if os.path.dirname(frame.filename) != HERE]
            text = "".join(report.format())
        except Exception as worse:
            value = "<%s while it was being printed>" % type(worse).__name__
            text = type(problem).__name__
        self.kernel.error(type(problem).__name__, value, text)


def shell(command):
    """What a line that starts with ! does."""
    status = subprocess.call(command, shell=True, executable="/bin/bash" if os.path.exists("/bin/bash") else None)
    if status:
        print("exit status %d" % status, file=sys.stderr)


def change_directory(path):
    os.chdir(os.path.expanduser(path))


def rewrite_magics(code):
    """Notebook habits that are not Python: !command, %%bash, %pip, %cd, %matplotlib. For code that does not parse."""
    if code.lstrip().startswith("%%bash"):
        return "__import__('kernel_python').shell(%r)" % code.lstrip().partition("\n")[2]
    lines = []
    for line in code.split("\n"):
        match = re.match(r"(\s*)(!|%)\s*(.+)$", line)
        if match:
            indent, mark, rest = match.groups()
            word, _, argument = rest.partition(" ")
            if mark == "!" or word in ("pip", "pip3"):
                rest = rest if mark == "!" else "python3 -m pip " + argument
                line = "%s__import__('kernel_python').shell(%r)" % (indent, rest)
            elif word == "cd":
                line = "%s__import__('kernel_python').change_directory(%r)" % (indent, argument.strip() or "~")
            elif word == "matplotlib":
                line = indent + "pass"
        lines.append(line)
    return "\n".join(lines)


def main(kernel, language):
    os.environ.setdefault("MPLBACKEND", "agg")
    sys.argv = [""]
    sys.path[0] = ""
    # A whole line is sent on as soon as it is printed.
    for name, fd in (("stdout", 1), ("stderr", 2)):
        setattr(sys, name, open(fd, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False))
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
    sys.stdin = sys.__stdin__ = open(0, "r", encoding="utf-8", closefd=False)
    python = Python(kernel)
    if "matplotlib.pyplot" in sys.modules:
        python.take_over_show(sys.modules["matplotlib.pyplot"])
    else:
        sys.meta_path.insert(0, python)
    kernel.serve(language, python.run)
