"""Runs Python code that draws, for Daytona's code-run: as `python3 -c CODE ARGUMENT… 2>&1`, but plt.show() writes each figure to
the stderr that this file was started with, one line of JSON for each. The shapes are those of kernel_charts.py with Daytona's
names and types: values of bars are text, places are numbers.
"""

import base64
import io
import json
import math
import os
import sys
import traceback
import types

import kernel_charts


def numbers(rows):
    return [[float(x), float(y)] for x, y in rows if math.isfinite(x) and math.isfinite(y)][: kernel_charts.POINTS]


def typed(chart, axes):
    """A chart of one pair of axes, as Daytona's clients check it."""
    from matplotlib.collections import PathCollection

    kind = chart["type"]
    if kind in ("line", "scatter"):
        drawn = axes.get_lines() if kind == "line" else [each for each in axes.collections if isinstance(each, PathCollection)]
        for element, artist in zip(chart["elements"], drawn):
            element["points"] = numbers(artist.get_xydata() if kind == "line" else artist.get_offsets())
        for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
            chart[name + "_ticks"] = [float(place) for place in axis.get_ticklocs()]
    for element in chart["elements"] if kind == "bar" else ():
        element["value"] = str(element["value"])
    return chart


def document(figure):
    chart = kernel_charts.figure_chart(figure) or {"type": "unknown", "title": None, "elements": []}
    if chart["type"] == "superchart":
        chart["type"] = "composite_chart"
        parts = [typed(part, axes) for part, axes in zip(chart["elements"], figure.axes)]
        # A part of a composite chart has no axes of its own in Daytona's types, only its picture's names.
        chart["elements"] = [{key: part.get(key) for key in ("type", "title", "x_label", "y_label")} for part in parts]
    elif figure.axes:
        typed(chart, figure.axes[0])
    picture = io.BytesIO()
    figure.savefig(picture, format="png", bbox_inches="tight")
    chart["png"] = base64.b64encode(picture.getvalue()).decode("ascii")
    return {key: value for key, value in chart.items() if value is not None}


def install(channel):
    try:
        import matplotlib

        if "MPLBACKEND" not in os.environ:
            matplotlib.use("agg")
        kernel_charts.watch_boxes()
        from matplotlib import pyplot
    except ImportError:
        return  # the code says so itself

    def show(*_arguments, **_options):
        for number in pyplot.get_fignums():
            channel.write(json.dumps(document(pyplot.figure(number)), allow_nan=False) + "\n")
        channel.flush()
        pyplot.close("all")

    pyplot.show = show


def main():
    code = sys.argv[1]
    sys.argv = ["-c", *sys.argv[2:]]
    sys.path[0] = ""
    channel = os.dup(2)
    os.dup2(1, 2)
    install(open(channel, "w", encoding="ascii"))
    sys.modules["__main__"] = program = types.ModuleType("__main__")
    try:
        exec(compile(code, "<string>", "exec"), program.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        here = error.__traceback__
        traceback.print_exception(type(error), error, here.tb_next if here else None)
        sys.exit(1)


main()
