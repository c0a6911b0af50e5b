"""The Python package without torch: a store of arrays, its errors as exceptions, and a library that is found or said to be
missing."""

import array
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PYTHON = os.path.join(ROOT, "python")
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "structure"), PYTHON]
os.environ["SPILLWAY_LIBRARY"] = os.path.abspath(sys.argv[1])
import script_test  # noqa: E402
import spillway  # noqa: E402
from spillway.store import parse_size  # noqa: E402

COUNT = 1000


def address(values):
    return values.buffer_info()[0]


def opened(folder, weights, **options):
    options = {"host_memory": "64MiB", "allow_buffered": True, **options}
    store = spillway.Store(os.path.join(folder, "store"), **options)
    store.add("w", address(weights), len(weights))
    store.open()
    return store


def train(store, weights, steps):
    gradient = array.array("f", [0.0] * len(weights))
    for _ in range(steps):
        for i, weight in enumerate(weights):
            gradient[i] = weight - 1.0
        store.gradient(0, address(gradient))
        result = store.step(lr=0.1, clip=1.0, weight_decay=0.0, note=f"after {store.last_step + 1}")
    return result


def a_store_trains_and_resumes():
    with tempfile.TemporaryDirectory() as folder:
        weights = array.array("f", [0.0] * COUNT)
        with opened(folder, weights) as store:
            result = train(store, weights, 20)
            usage = store.usage()
        kept, found = weights[:], array.array("f", [9.0] * COUNT)
        with opened(folder, found) as store:
            step, note = store.last_step, store.note
            master = array.array("f", [0.0] * COUNT)
            store.read(0, "master", address(master))
    checks = {"the result": result.step == 20 and result.committed and not result.skipped and result.applied_steps == 20,
              "the distance": abs(kept[0] - 1.0) < 0.5, "the usage": usage.parameters == COUNT and usage.drive_bytes > 0,
              "the step": step == 20, "the note": note == "after 20", "the weights": found == kept, "the master": master == kept}
    return [f"{what} is wrong" for what, right in checks.items() if not right]


def errors_are_exceptions():
    with tempfile.TemporaryDirectory() as folder:
        weights = array.array("f", [0.0] * COUNT)
        store = opened(folder, weights)
        problems = script_test.raised(spillway.StoreError, "already open in this process", opened, folder, weights)
        problems += script_test.raised(spillway.StoreArgumentError, "'w' has no gradient", store.step, lr=0.1)
        problems += script_test.raised(ValueError, "lr is nan", train_once, store, weights, float("nan"))
        problems += script_test.raised(ValueError, "an element type", store.gradient, 0, address(weights), "fp64")
        store.close()
        store.close()
        problems += script_test.raised(ValueError, "is closed", store.save)
        return problems + script_test.raised(ValueError, "'w' has 999 elements, and 1000", opened, folder, weights[1:])


def train_once(store, weights, lr):
    store.gradient(0, address(weights))
    store.step(lr=lr)


def sizes_are_read():
    problems = [] if [parse_size(size) for size in ("1.5GiB", "64M", 7, 4e9)] == [3 << 29, 64 << 20, 7, 4000000000] else ["a size is wrong"]
    for wrong in ("32GB", "", "-1", "x", 0, -1, float("nan"), None, 1 << 63):
        problems += script_test.raised(ValueError, "is not a size", parse_size, wrong)
    return problems


# A program whose thread is in a step when it ends, unless it ends between two.
ENDS = """
import sys, threading, time
sys.argv = ["", {library!r}]
sys.path.insert(0, {here!r})
import package
weights = package.array.array("f", [0.0] * 400000)
store = package.opened({folder!r}, weights)
started = threading.Event()
def go():
    while True:
        package.train_once(store, weights, 0.1)
        print("committed", store.last_step, flush=True)
        started.set()
threading.Thread(target=go, daemon=True).start()
started.wait()
time.sleep({wait})
{end}
"""


def an_interpreter_may_end_in_a_step():
    problems, committed = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for number, ending in enumerate(("sys.exit(0)", "raise KeyboardInterrupt", "store.close(); sys.exit(0)")):
            program = ENDS.format(here=HERE, library=sys.argv[1], folder=folder, wait=0.03 * number, end=ending)
            done = subprocess.run([sys.executable, "-B", "-c", program], capture_output=True, text=True, check=False,
                                  timeout=120 * script_test.TIME_FACTOR)
            steps = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("committed ")]
            if done.returncode not in ((-2, 1, 130) if "Keyboard" in ending else (0,)) or steps[:1] != [committed + 1]:
                problems.append(f"{ending}: exit status {done.returncode}, steps {steps[:1]} to {steps[-1:]}: {done.stderr[-300:]}")
            with opened(folder, array.array("f", [0.0] * 400000)) as store:
                committed = store.last_step
            if committed not in (max(steps, default=0), max(steps, default=0) + 1):
                problems.append(f"{ending}: step {steps[-1:]} was the last, and it resumes at {committed}")
    return problems


def a_missing_library_is_said():
    done = subprocess.run([sys.executable, "-B", "-c", "import spillway; print('imported'); spillway.loaded_version()"],
                          env={**os.environ, "PYTHONPATH": PYTHON, "SPILLWAY_LIBRARY": "/nowhere/libspillway.so"},
                          capture_output=True, text=True, check=False)
    return [] if "imported" in done.stdout and "SPILLWAY_LIBRARY" in done.stderr else [done.stdout + done.stderr]


def importing_takes_nothing_else():
    """Modules that the interpreter had loaded before are left out. Each name is found afterwards; what torch is needed for is not
    asked for here."""
    code = ("import sys; before = set(sys.modules); import spillway; print(sorted(set(sys.modules) - before)); "
            "print([name for name in spillway.__all__ if name not in dir(spillway)]); spillway.io.checksum, spillway.plan, spillway.StoreError; "
            "print([name for name in ('torch', 'numpy') if name in sys.modules])")
    done = subprocess.run([sys.executable, "-B", "-S", "-c", code], env={**os.environ, "PYTHONPATH": PYTHON}, capture_output=True,
                          text=True, check=False)
    return [] if done.stdout.split("\n")[:3] == ["['__future__', 'spillway']", "[]", "[]"] else [done.stdout + done.stderr]


CHANGE = """
import array, sys, spillway
weights = array.array("f", [0.0]) * int(sys.argv[3])
store = spillway.Store(sys.argv[1], host_memory="64MiB", allow_buffered=True, sharded=sys.argv[2] == "sharded")
store.add("w", weights.buffer_info()[0], len(weights), whole_count=len(weights))
print("begins", flush=True)
store.open()
"""


def state_of(folder, count, sharded):
    """The step, and all parts of the state."""
    weights = array.array("f", [0.0]) * count
    with spillway.Store(folder, host_memory="64MiB", allow_buffered=True, sharded=sharded) as store:
        store.add("w", address(weights), count, whole_count=count)
        store.open()
        if store.last_step == 0:
            store.gradient(0, address(array.array("f", [0.01]) * count))
            store.step(lr=0.1)
            store.save()
        parts = [array.array("f", [0.0]) * count for _ in range(3)]
        for name, values in zip(("master", "exp_avg", "exp_avg_sq"), parts, strict=True):
            store.read(0, name, address(values))
        return store.last_step, parts


def a_killed_change_of_parts_loses_nothing():
    """Whole tensors become parts of one process and back. Processes that do so are killed at many instants."""
    count = 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        wanted, problems = state_of(store, count, False), []
        for number in range(12):
            kind = ("sharded", "whole")[number % 2]
            change = subprocess.Popen([sys.executable, "-B", "-c", CHANGE, store, kind, str(count)], stdout=subprocess.PIPE,
                                      env={**os.environ, "PYTHONPATH": PYTHON})
            change.stdout.readline()
            time.sleep(0.008 * number)
            change.kill()
            change.communicate()
            if number % 3 == 2 and state_of(store, count, number % 2 == 0) != wanted:
                problems.append(f"another state after {number + 1} kills")
        return problems


if __name__ == "__main__":
    script_test.run(a_store_trains_and_resumes, errors_are_exceptions, sizes_are_read, an_interpreter_may_end_in_a_step,
                    a_missing_library_is_said, importing_takes_nothing_else, a_killed_change_of_parts_loses_nothing)
