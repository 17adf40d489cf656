"""The desktop: looking at the screen and clicking, against the programs that do it by exec; a first picture against a first output;
what an idle screen costs. bench/run's part `desktop`."""

import json
import os
import time

TEMPLATE = "desktop"
PEER = "scrot -o /tmp/s.png && cat /tmp/s.png"
CLICK = {"action": "left_click", "coordinate": [640, 300]}
XDOTOOL = "xdotool mousemove 640 300 click 1"
WAIT_MS = 2000  # what the vendors' demonstrations sleep between an action and its picture
REST_SECONDS = 20  # a machine comes to rest after ten (src/engine/gvisor/quiet.c)
IDLE_SECONDS = 60  # the clock of the panel ticks once
IDLE_GOAL = 1.0  # percent of a CPU
ROUNDS = 15


def act(ours, box, **request):
    return ours.do("desktop", box, json.dumps(request))[0]


def by_exec(ours, box, *lines):
    """Each line in an exec of its own; what it prints comes back."""
    return sum(ours.do("shell", box, 60, f"export DISPLAY=:0; {line}")[0] for line in lines)


def turns(count, what, progress, ours, peer):
    mine, theirs = [], []
    for turn in range(count + 1):
        progress(f"desktop: {what} {turn} of {count}")
        pair = ours(), peer()
        if turn:  # the first warms both
            mine.append(pair[0])
            theirs.append(pair[1])
    return mine, theirs


def screen(row, ours, count, progress):
    box = ours.do("look", TEMPLATE)[1][0]
    act(ours, box, actions=[{"action": "open", "url": "about:version"}])
    ours.settle()
    found = turns(count, "screenshot", progress, lambda: act(ours, box, screenshot=True), lambda: by_exec(ours, box, PEER))
    yield row("screenshot, PNG of 1280x800 / scrot by exec", "ms", *found, 0.4)
    found = turns(count, "click", progress, lambda: act(ours, box, actions=[CLICK], screenshot=True), lambda: by_exec(ours, box, XDOTOOL, PEER))
    yield row("click and screenshot / xdotool, scrot by exec", "ms", *found, 0.3)
    found = turns(count, "settled", progress, lambda: act(ours, box, actions=[CLICK], settle=True, screenshot=True), lambda: by_exec(ours, box, XDOTOOL, PEER) + WAIT_MS)
    yield row("click and settled picture / xdotool, 2 s, scrot", "ms", *found, 0.3)
    yield from forks(row, ours, count, progress, box)
    ours.do("kill", box)


def once(ours, *words):
    """What it made is gone again, outside of the clock."""
    took, made = ours.do(*words)
    for each in made:
        ours.do("kill", each)
    ours.settle()
    return took


def creates(row, ours, count, progress):
    found = turns(count, "create", progress, lambda: once(ours, "look", TEMPLATE), lambda: once(ours, "create", TEMPLATE))
    yield row("create to first picture / to first output", "ms", *found, 1.5)


def forks(row, ours, count, progress, box):
    plain = ours.do("create", "base")[1][0]
    ours.settle()
    found = turns(count, "fork", progress, lambda: once(ours, "fork-look", box), lambda: once(ours, "fork", plain, 1))
    yield row("fork of a page to its picture / fork of base", "ms", *found, 2.0)
    ours.do("kill", plain)


def cpu_share(ours, box):
    """Percent of a CPU, of all that runs for the sandbox."""
    used = lambda: json.loads(ours.husk("stats", "--json", box))["cpu_us"]
    before, begin = used(), time.monotonic()
    time.sleep(IDLE_SECONDS)
    return (used() - before) / 1e4 / (time.monotonic() - begin)


def idle(row, ours, count, progress):
    del count
    progress("desktop: idle")
    box = ours.do("look", TEMPLATE)[1][0]
    time.sleep(REST_SECONDS)
    yield row("an idle desktop / a budget of 1 % of a CPU", "%", [cpu_share(ours, box)], [IDLE_GOAL], 1.0)
    ours.do("kill", box)


def rows(row, ours, count, progress):
    os.makedirs(ours.home, mode=0o700)
    try:
        ours.begin()
        progress("building the template desktop")
        ours.husk("template", "build", TEMPLATE)
        for part in (screen, creates, idle):
            yield from part(row, ours, min(count, ROUNDS), progress)
    finally:
        ours.end()
