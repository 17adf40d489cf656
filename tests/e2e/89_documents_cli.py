#!/usr/bin/env python3
# timeout: 1200
"""docs/cli.md: every command on the page, run as it is printed there and compared with the output printed below it. Runs
in a test internet of its own, where example.com answers.
"""

from lib import internet

internet.enter()

from lib import documents  # noqa: E402
from lib.harness import HUSK, TOP, assert_no_leaks, environment, husk, main, scratch, test  # noqa: E402

NOTE = 'class Note:\n    def _repr_html_(self): return "<b>done</b>"\nNote()\n'
# What depends on the host: its first line is compared.
LOOSE = ("husk doctor", "husk template ls", "husk logs", "husk events", "curl", "husk egress box --log")
# What does not end by itself, or needs more than this machine has.
NOT_RUN = {"husk serve": "runs until it is ended; e2e/64_server starts it"}


def prepare(blocks):
    """Each section starts without sandboxes; with `box`, when its commands use one that they do not create."""
    husk("rm", "--all", code=None)
    for kind in ("snapshot", "volume"):
        for each in husk(kind, "ls", "--json").json():
            husk(kind, "rm", each["id"], code=None)
    for token in husk("token", "ls", "--json").json():
        husk("token", "rm", token["id"], code=None)
    said = [command for _, lines in blocks for command, _ in documents.commands(lines)]
    uses = next((command for command in said if " box" in command), "")
    if uses and not uses.startswith("husk create"):
        husk("create", "--name", "box", "--ttl", "1h")


def session(heading, blocks):
    def run():
        prepare(blocks)
        with scratch() as place:
            (place / "note.py").write_text(NOTE)
            (place / "bin").mkdir()
            (place / "bin/husk").symlink_to(HUSK)
            env = environment({"HOME": str(place)})
            env["PATH"] = f"{place}/bin:{env['PATH']}"
            shell, names = documents.Shell(place, env), {}
            try:
                for _, lines in blocks:
                    for command, printed in documents.commands(lines):
                        if command in NOT_RUN:
                            continue
                        printed = [line.replace("/root/", f"{place}/") for line in printed]
                        if "--leaks" in command:  # what an ended machine leaves goes a moment after it
                            assert_no_leaks()
                        said, status = shell.run(documents.translate(names, command))
                        documents.check(command, printed, said, command.startswith(LOOSE))
                        documents.learn(names, printed, said)
                        fails = "exit " in command or any(line.startswith(("husk: ", "curl: ")) for line in printed)
                        assert status == 0 or fails, f"{command!r}: {said}"
            finally:
                shell.close()

    run.__name__ = heading.lower().replace(",", "").replace(" ", "_")
    return test(run)


FOUND = [(heading, blocks) for heading, blocks in documents.sections(TOP / "docs/cli.md") if any(documents.commands(lines) for _, lines in blocks)]
assert len(FOUND) > 10, "docs/cli.md has lost its sessions"
for each in FOUND:
    session(*each)

if __name__ == "__main__":
    main("base")
