"""The part `vmm` of bench/run: husk-vmm natively on /dev/kvm, with a tiny guest (bench/vmm.c). Needs no instance and no
engine. A start is held against a bare KVM program in the same run, a fork against copying the same memory, and against the
fork of a machine that has changed little.
"""

import os
import subprocess
import tempfile

OWN_MB, CHILD_MB = 5 * 1.048576, 3 * 1.048576
START_GOAL, POOL_GOAL = 12.0, 12.0
STEPS = {
    "process": "fork, pid namespace, exec",
    "jail": "its jail, devices, filters, first answer",
    "machine": "KVM: machine, memory, interrupts, vCPU",
    "files": "console, root, disk, memory handed over",
    "restore": "memory mapped, state loaded",
    "run": "resume to the guest's first byte",
}


def build(top, build_folder, libraries):
    program = build_folder / "bench/vmm"
    program.parent.mkdir(exist_ok=True)
    command = [os.environ.get("CC", "gcc"), "-std=gnu17", "-D_GNU_SOURCE", "-O2", "-Iinclude", "-Isrc", "-Itests/unit",
               "bench/vmm.c", build_folder / "libvmm.a", build_folder / "libhusk.a", *libraries, "-o", program]
    subprocess.run(command, cwd=top, check=True)
    return program


def series(program, count, environment):
    """{name: [numbers]}, or None where there is no KVM."""
    with tempfile.TemporaryDirectory(prefix="husk-bench.", dir="/var/tmp") as place:
        done = subprocess.run([program, place, str(count)], env=environment, stdout=subprocess.PIPE, text=True,
                              check=False, timeout=1800)
    if done.returncode == 77:
        return None
    if done.returncode:
        raise RuntimeError(f"bench/vmm ended with {done.returncode}")
    return {line.split()[0]: [float(word) for word in line.split()[1:]] for line in done.stdout.splitlines()}


def rows(Row, count, top, build_folder, libraries):
    program = build(top, build_folder, libraries)
    found = series(program, count, {**os.environ, "HUSK_LIBDIR": str(build_folder)})
    if found is None:
        print("bench: /dev/kvm cannot be used here: nothing of husk-vmm was measured")
        return
    ms = lambda name: [value / 1000 for value in found[name]]
    print("husk-vmm from nothing to its guest, step by step (p50, ms):")
    for step, text in STEPS.items():
        values = sorted(ms(f"step:{step}"))
        print(f"    {text:44} {values[len(values) // 2]:8.2f}")
    for name, text, peer, goal in (
        ("start", "husk-vmm: start", "bare", START_GOAL),
        ("pool", "husk-vmm: from the pool", "bare_pool", POOL_GOAL),
    ):
        yield Row(f"{text} to the vCPU let go / bare KVM", "ms", ms(name), ms(peer), goal)
        yield Row(f"{text} to the first byte / bare KVM", "ms", ms(f"{name}_byte"), ms(peer), goal)
    yield Row("fork pause, 1 GiB changed / 16 MiB changed", "ms", ms("fork_much"), ms("fork_few"), 3.0)
    yield Row("fork pause, 1 GiB changed / copy of 1 GiB", "ms", ms("fork_much"), ms("copy"), 0.1)
    yield Row("longest stop ahead of it, 1 GiB / copy of 1 GiB", "ms", ms("held"), ms("copy"), 0.1)
    yield Row("child of it, pool to first byte / a small restore", "ms", ms("child_byte"), ms("restore_byte"), 3.0)
    yield Row("idle child of 100, PSS / 3 MiB", "MB", [value / 1e6 for value in found["child_pss"]], [CHILD_MB], 1.0)
    yield Row("pages written by a second fork, unchanged / + 1", "pages", [value + 1 for value in found["pages_again"]],
              [1.0], 1.0)
    yield Row("husk-vmm: memory beyond the guest's / 5 MiB", "MB", [value / 1e6 for value in found["memory"]], [OWN_MB],
              1.0)
