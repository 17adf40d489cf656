"""The part `vmm` of bench/run: husk-vmm natively on /dev/kvm, with a tiny guest (bench/vmm.c). Needs no instance and no
engine. The goals are budgets, but for the fork, which is held against copying the same memory on this host.
"""

import os
import subprocess
import tempfile

START_MS, POOL_MS, OWN_MB = 5.0, 1.0, 5 * 1.048576
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
    for name, text, budget in (("start", "husk-vmm: start", START_MS), ("pool", "husk-vmm: from the pool", POOL_MS)):
        yield Row(f"{text} to the vCPU let go / {budget:.0f} ms", "ms", ms(name), [budget], 1.0)
        yield Row(f"{text} to the guest's first byte / {budget:.0f} ms", "ms", ms(f"{name}_byte"), [budget], 1.0)
    yield Row("fork pause, 64 MiB of 1 GiB changed / copy of 64 MiB", "ms", ms("fork"), ms("copy"), 2.0)
    yield Row("pages written by a second fork, unchanged / + 1", "pages", [value + 1 for value in found["pages_again"]],
              [1.0], 1.0)
    yield Row("husk-vmm: memory beyond the guest's / 5 MiB", "MB", [value / 1e6 for value in found["memory"]], [OWN_MB],
              1.0)
