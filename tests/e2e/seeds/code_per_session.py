"""One sandbox for the whole conversation: what the first call defines is there in the second. The price is that you own
its end, and there are three who see to that: `finally`, `with`, and the time to live when the program is no more.
"""

import os
import signal
import subprocess
import sys
import time

from husk import Sandbox
from husk.tools import Toolset

import agent


def converse():
    """The usual way: the sandbox lives as long as the loop, however that ends."""
    sandbox = Sandbox.create(template="code-interpreter", ttl_seconds=1800)
    try:
        tools = Toolset(sandbox, ["run_code"])
        print(agent.run("Average the readings.", tools.anthropic(), tools.answer_anthropic))
    finally:
        sandbox.kill()
    print("after the loop:", sandbox.refresh().end_reason)


def raise_in_the_loop():
    """A loop that fails: here the model's answer makes no sense to the program."""
    try:
        with Sandbox.create(ttl_seconds=1800) as sandbox:
            sandbox.run_code("total = 7")
            raise ValueError(f"not a number: {sandbox.run_code('hex(total)').text}")
    except ValueError as error:
        print("the loop raised:", error)
    print("after the error:", sandbox.refresh().end_reason)


def die():
    """A program that gets no chance to clean up, run as a process of its own."""
    sandbox = Sandbox.create(ttl_seconds=5)
    print(sandbox.id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


if sys.argv[1:] == ["die"]:
    die()
converse()
raise_in_the_loop()
dead = subprocess.run([sys.executable, __file__, "die"], stdout=subprocess.PIPE, text=True, check=False)
orphan = Sandbox.connect(dead.stdout.strip())
print("the program was killed, its sandbox is", orphan.state)
while orphan.refresh().state != "ended":
    time.sleep(0.2)
print("after its time to live:", orphan.info.end_reason)
