"""A tree of thought on real machines: what is in the interpreter's memory branches with the machine, twice, and no
branch sees another. Then the cheap way back: a branch ruins itself, and a new machine starts where the snapshot was.
"""

from husk import Sandbox


def think(sandbox, step):
    sandbox.run_code(f"path.append({step!r})", check=True)
    return sandbox


with Sandbox.create(ttl_seconds=600) as root:
    root.run_code("path = ['root']")
    kept = root.snapshot()

    left, right = root.fork(2)
    with think(left, "left") as left, think(right, "right") as right:
        with think(left.fork(), "deeper") as deeper:
            for sandbox in (root, left, right, deeper):
                print(sandbox.run_code("' > '.join(path)").text)

        ruined = right.exec("rm -rf /usr /bin /lib*; ls")
        print("ruined:", ruined.exit_code != 0 or not right.exec("ls").ok)

    with Sandbox.create(snapshot=kept, ttl_seconds=600) as again:
        print("again:", again.run_code("path").text, again.exec("ls -d /usr").stdout, end="")
    kept.remove()
