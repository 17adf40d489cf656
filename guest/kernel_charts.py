"""The data of a matplotlib figure or a pandas table, for programs that draw it again instead of showing the picture. Called by
kernel_python.py for each result.

The shapes (line, scatter, bar, pie, box_and_whisker, several of them as superchart, all others as unknown) are those of
E2B's code interpreter, so that programs written for it work.
"""

import importlib.util
import json
import math
import re
import sys

CHART = "application/vnd.husk.chart+json"
DATA = "application/vnd.husk.data+json"
LIMIT = 1 << 20  # bytes of JSON; larger results have only the picture and the text
POINTS = 20000


def plain(value):
    """A number, a string or None, from a value of numpy, pandas or datetime."""
    if hasattr(value, "isoformat"):
        return None if value != value else value.isoformat()
    if type(value).__module__ == "numpy" and type(value).__name__ == "datetime64":
        return str(value)
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def bounded(document):
    return document if len(json.dumps(document, allow_nan=False)) <= LIMIT else None


# ---- charts


def unit(label):
    """The unit in "speed (m/s)" or "speed [m/s]", or None."""
    match = re.search(r"\((.*?)\)\s*$|\[(.*?)\]\s*$", label or "")
    return (match.group(1) or match.group(2)) if match else None


def scale(axis, name):
    from matplotlib import category, dates

    converter = axis.converter
    if isinstance(converter, category.StrCategoryConverter):
        return "categorical"
    if isinstance(converter, (dates.DateConverter, dates.ConciseDateConverter)) or (
        type(converter).__name__ == "_SwitchableDateConverter"
    ):
        return "datetime"
    return name


def ticks(axis, kind):
    from matplotlib import dates

    places = axis.get_ticklocs()
    if kind == "datetime":
        return [dates.num2date(place).isoformat() for place in places]
    return [plain(place) for place in places]


def frame(axes, kind):
    return {
        "type": kind,
        "title": axes.get_title() or None,
        "x_label": axes.get_xlabel() or None,
        "y_label": axes.get_ylabel() or None,
        "x_unit": unit(axes.get_xlabel()),
        "y_unit": unit(axes.get_ylabel()),
    }


def point_frame(axes, kind):
    chart = frame(axes, kind)
    for name, axis, given in (("x", axes.xaxis, axes.get_xscale()), ("y", axes.yaxis, axes.get_yscale())):
        of = scale(axis, given)
        chart[name + "_scale"] = of
        chart[name + "_ticks"] = ticks(axis, of)
        chart[name + "_tick_labels"] = [label.get_text() for label in axis.get_ticklabels()]
    return chart


def name_of(artist, word):
    label = str(artist.get_label())
    return word + label[len("_child"):] if label.startswith("_child") else label


def line_chart(axes):
    chart = point_frame(axes, "line")
    chart["elements"] = [
        {
            "label": name_of(line, "Line "),
            "points": [[plain(x), plain(y)] for x, y in zip(line.get_xdata(), line.get_ydata())][:POINTS],
        }
        for line in axes.get_lines()
    ]
    return chart


def scatter_chart(axes, dots):
    from matplotlib import dates

    chart = point_frame(axes, "scatter")

    def place(value, kind):
        return dates.num2date(value).isoformat() if kind == "datetime" else plain(value)

    chart["elements"] = [
        {
            "label": name_of(each, "Dots "),
            "points": [
                [place(x, chart["x_scale"]), place(y, chart["y_scale"])] for x, y in each.get_offsets().tolist()[:POINTS]
            ],
        }
        for each in dots
    ]
    return chart


def bar_chart(axes, bars):
    chart = frame(axes, "bar")
    chart["elements"] = []
    for number, container in enumerate(bars):
        flat = container.orientation == "horizontal"
        axis = axes.yaxis if flat else axes.xaxis
        names = {round(float(at), 6): text.get_text() for at, text in zip(axis.get_ticklocs(), axis.get_ticklabels())}
        group = str(container.get_label())
        for bar in container:
            at = bar.get_y() + bar.get_height() / 2 if flat else bar.get_x() + bar.get_width() / 2
            # Bars of several groups are drawn beside their common position.
            near = min(names, key=lambda place: abs(place - at), default=None)
            label = names.get(near) if near is not None and abs(near - at) < 0.5 else None
            chart["elements"].append({
                "label": label or str(plain(at)),
                "value": plain(bar.get_width() if flat else bar.get_height()),
                "group": group if not group.startswith("_container") else str(number),
            })
    return chart


def pie_chart(axes, wedges):
    return {
        "type": "pie",
        "title": axes.get_title() or None,
        "elements": [
            {
                "label": str(wedge.get_label()),
                "angle": plain(wedge.theta2 - wedge.theta1),
                "radius": plain(wedge.r),
            }
            for wedge in wedges
        ],
    }


def box_chart(axes, boxes):
    chart = frame(axes, "box_and_whisker")
    names = [label.get_text() for label in axes.get_xticklabels()]
    chart["elements"] = [
        {
            "label": str(box.get("label") or (names[i] if i < len(names) else i + 1)),
            "min": plain(box["whislo"]),
            "first_quartile": plain(box["q1"]),
            "median": plain(box["med"]),
            "third_quartile": plain(box["q3"]),
            "max": plain(box["whishi"]),
            "outliers": [plain(value) for value in box.get("fliers", ())],
        }
        for i, box in enumerate(boxes)
    ]
    return chart


def unknown_chart(axes):
    return {"type": "unknown", "title": axes.get_title() or None, "elements": []}


def axes_chart(axes):
    from matplotlib import collections, container, patches

    wedges = [patch for patch in axes.patches if isinstance(patch, patches.Wedge)]
    bars = [each for each in axes.containers if isinstance(each, container.BarContainer)]
    dots = [each for each in axes.collections if isinstance(each, collections.PathCollection)]
    boxes = getattr(axes, "_husk_boxes", None)
    if axes.name == "3d":  # what it holds are places on the screen
        return unknown_chart(axes)
    if boxes:
        return box_chart(axes, boxes)
    if wedges:
        return pie_chart(axes, wedges)
    if bars:
        return bar_chart(axes, bars)
    if dots:
        return scatter_chart(axes, dots)
    # An image, a filled contour or a polygon may have lines that say little about it.
    known = not axes.images and not axes.collections and not axes.patches
    return line_chart(axes) if axes.get_lines() and known else unknown_chart(axes)


def remember_boxes(axes_type):
    """A box plot leaves only lines behind, so its data is kept when it is drawn."""
    draw = axes_type.bxp
    if getattr(draw, "husk", False):
        return

    def bxp(self, bxpstats, *arguments, **options):
        self._husk_boxes = getattr(self, "_husk_boxes", []) + list(bxpstats)
        return draw(self, bxpstats, *arguments, **options)

    bxp.husk = True
    axes_type.bxp = bxp


class AxesWatch:
    """An entry of sys.meta_path: calls remember_boxes when matplotlib's axes are imported."""

    @classmethod
    def find_spec(cls, name, _path=None, _target=None):
        if name != "matplotlib.axes._axes":
            return None
        sys.meta_path.remove(cls)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                remember_boxes(module.Axes)

            spec.loader.exec_module = exec_module
        return spec


def watch_boxes():
    loaded = sys.modules.get("matplotlib.axes._axes")
    if loaded is not None:
        remember_boxes(loaded.Axes)
    else:
        sys.meta_path.insert(0, AxesWatch)


def figure_chart(figure):
    """The figure's data; None for a figure without axes. Never raises: the picture is shown anyway."""
    try:
        charts = [axes_chart(axes) for axes in figure.axes]
        if len(charts) <= 1:
            return bounded(charts[0]) if charts else None
        title = figure._suptitle.get_text() if figure._suptitle else None
        return bounded({"type": "superchart", "title": title or None, "elements": charts})
    except Exception:
        return {"type": "unknown", "title": None, "elements": []}


# ---- tables


def table_data(value):
    """Columns of a pandas table by name; None for any other value, or if it is too large or its names are not unique."""
    if type(value).__name__ != "DataFrame" or type(value).__module__.partition(".")[0] != "pandas":
        return None
    try:
        names = {str(name) for name in value.columns}
        if value.size * 2 > LIMIT or len(names) < len(value.columns):  # of two columns with one name, one would be lost
            return None
        return bounded({
            str(name): [plain(each) for each in column] for name, column in value.to_dict(orient="list").items()
        })
    except Exception:
        return None
