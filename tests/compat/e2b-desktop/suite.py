"""The unmodified `e2b-desktop` package for Python against a Husk server and its template 'desktop'. Prints "done" at its end."""

import time

from e2b_desktop import Sandbox


def until(what, condition):
    for _ in range(300):
        try:
            value = condition()
        except Exception:  # noqa: BLE001 - not yet there
            value = None
        if value:
            return value
        time.sleep(0.2)
    raise AssertionError(f"waited in vain: {what}")


desktop = Sandbox.create("desktop", resolution=(1024, 768), timeout=300)
try:
    assert desktop.get_screen_size() == (1024, 768)
    assert bytes(desktop.screenshot())[1:4] == b"PNG"
    desktop.move_mouse(100, 200)
    assert desktop.get_cursor_position() == (100, 200)
    desktop.left_click(300, 300)
    desktop.scroll("down", 2)
    desktop.drag((400, 400), (500, 500))
    desktop.launch("xfce4-terminal")
    until("the terminal", lambda: desktop.get_window_title(desktop.get_application_windows("xfce4-terminal")[0]))
    until("the focus", lambda: desktop.get_current_window_id() in desktop.get_application_windows("xfce4-terminal"))
    desktop.write("echo typed >/tmp/typed")
    desktop.press("enter")
    assert until("the command", lambda: desktop.files.read("/tmp/typed")).strip() == "typed"
    desktop.stream.start(require_auth=True)
    assert "/vnc.html" in desktop.stream.get_url(auth_key=desktop.stream.get_auth_key())
    desktop.stream.stop()
    print("done")
finally:
    desktop.kill()
