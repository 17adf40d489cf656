#!/usr/bin/python3
"""Two hundred lives, twenty of them ended by kill -9 of the supervisor at some moment. Nothing may stay."""

# timeout: 900
import concurrent.futures
import os
import random
import signal
import time

from lib.harness import *

CYCLES = 200
KILLED = 20


def one_life(number, delay):
    """One create and its end; `delay`: seconds after which the supervisor is killed, None for a proper end."""
    box = husk("create", "--json", "--ttl", "10m").json()["id"]
    if delay is None:
        if number % 10 == 0:
            assert_equal(sh(box, f"echo {number}"), str(number))
        husk("rm", box)
        return
    with ending(start("exec", box, "--", "sh", "-c", "while :; do echo x; done")):
        time.sleep(delay)
        try:
            os.kill(supervisor_pid(box), signal.SIGKILL)
        except (OSError, ProcessLookupError):
            pass
    husk("rm", "-f", box, code=None)


@test
def test_two_hundred_cycles():
    dice = random.Random(2024)
    killed = set(dice.sample(range(CYCLES), KILLED))
    delays = [dice.uniform(0, 0.3) if number in killed else None for number in range(CYCLES)]
    before = set(listed())
    with concurrent.futures.ThreadPoolExecutor(2) as workers:
        for life in [workers.submit(one_life, number, delay) for number, delay in enumerate(delays)]:
            life.result()
    assert_equal(set(listed()), before, "sandboxes that stay")
    husk("gc")
    assert_no_leaks()


@test
def test_the_pool_empties():
    husk("rm", "--all")  # what another file left; no other runs in this instance now
    husk("gc", "--all")
    until(lambda: not instance_processes(), "no process stays when the pool is emptied", seconds=30)
    assert_equal([name for name in os.listdir(f"{HOME}/machines")], [])
    assert_no_leaks()


if __name__ == "__main__":
    main("base")
