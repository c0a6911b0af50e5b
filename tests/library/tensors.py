"""spillway tensors and spillway.read_run: the state of a run and of stores by name, beside an export and beside the library's own
reading, while another process or handle has it open."""

import array
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "structure"), os.path.join(ROOT, "python")]
os.environ["SPILLWAY_LIBRARY"] = os.path.abspath(sys.argv[1])
PROGRAM = os.environ["SPILLWAY_PROGRAM"] = os.path.abspath(sys.argv[2])
import script_test  # noqa: E402
import spillway  # noqa: E402

COUNTS = {"embedding": 40000, "norm": 7, "head": 1000}
PARTS = {"master": "master", "m": "exp_avg", "v": "exp_avg_sq"}


def tensors(folder, *more):
    return subprocess.run([PROGRAM, "tensors", folder, *more], capture_output=True, check=False)


def written(folder, name, part):
    """The header and the elements of a tensor that is written to standard output."""
    done = tensors(folder, "--name", name, "--part", part, "--to", "-")
    if done.returncode != 0:
        return done.stderr.decode(), b""
    length = 10 + int.from_bytes(done.stdout[8:10], "little")
    return done.stdout[:length].decode("latin-1"), done.stdout[length:]


def trained(folder, *more):
    data, run = os.path.join(folder, "data.txt"), os.path.join(folder, "run")
    with open(data, "w", encoding="utf-8") as file:
        file.write("to be or not to be, " * 200)
    subprocess.run([PROGRAM, "train", "--model", "gpt2-tiny", "--init", "--data", data, "--run", run, "--steps", "2", "--batch-tokens", "64",
                    "--seq", "32", "--allow-buffered", "--quiet", *more], check=True, capture_output=True)
    return run


def exported(run, out):
    """Tensors of an export of fp32: shape and bytes by name."""
    subprocess.run([PROGRAM, "export", run, out, "--quiet"], check=True, capture_output=True)
    with open(os.path.join(out, "model.safetensors"), "rb") as file:
        content = file.read()
    begin = 8 + int.from_bytes(content[:8], "little")
    found = json.loads(content[8:begin])
    return {name: (entry["shape"], content[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]])
            for name, entry in found.items() if name != "__metadata__"}


def a_run_has_what_its_export_has():
    with tempfile.TemporaryDirectory() as folder:
        run = trained(folder)
        wanted = exported(run, os.path.join(folder, "out"))
        listed = json.loads(tensors(run, "--json").stdout)
        shapes = {entry["name"]: entry["shape"] for entry in listed["tensors"] if entry["trained"]}
        problems = [] if listed["step"] == 2 and shapes == {name: shape for name, (shape, _) in wanted.items()} else [f"it lists {listed}"]
        for name in list(wanted)[::7]:
            shape, values = wanted[name]
            header, found = written(run, name, "master")
            literal = f"'shape': ({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
            if found != values or not header.startswith("\x93NUMPY\x01\0") or literal not in header or len(header) % 64 != 0:
                problems.append(f"{name} differs: {header}")
            second = array.array("f", written(run, name, "v")[1])
            problems += [] if len(second) * 4 == len(values) and min(second) >= 0 and max(second) > 0 else [f"the second moment of {name}"]
        return problems + python_problems(run, wanted)


def python_problems(run, wanted):
    state = spillway.read_run(run)
    name = next(iter(wanted))
    problems = [] if len(state) == len(wanted) and state.step == 2 and name in state else [f"read_run says {state}"]
    try:
        import numpy
    except ImportError:
        return problems + script_test.raised(ImportError, "numpy", state.read, name)
    right = state[name].tobytes() == wanted[name][1] and list(state[name].shape) == wanted[name][0] and state[name].dtype == numpy.float32
    problems += [] if right and (state.read(name, "exp_avg_sq") >= 0).all() else [f"{name} as numpy differs"]
    problems += script_test.raised(ValueError, "not a part", state.read, name, "w") + script_test.raised(KeyError, "x", state.read, "x")
    state.step = 1
    return problems + script_test.raised(spillway.ProgramError, "is of step 2, and step 1 is asked for", state.read, name)


def opened(folder, weights, **options):
    store = spillway.Store(folder, host_memory="64MiB", allow_buffered=True, **options)
    for name, values in weights.items():
        store.add(name, values.buffer_info()[0], len(values))
    store.open()
    return store


def train(store, weights, steps):
    for _ in range(steps):
        for index, values in enumerate(weights.values()):
            store.gradient(index, values.buffer_info()[0])
        store.step(lr=0.1)
    store.save()


def made_weights():
    return {name: array.array("f", [0.001 * (i % 100) - 0.03 for i in range(count)]) for name, count in COUNTS.items()}


def differing(folder, store, what):
    """Compares what the program reads with what the open store says."""
    problems = []
    for index, (name, count) in enumerate(COUNTS.items()):
        for part, own in PARTS.items():
            values = array.array("f", bytes(4 * count))
            store.read(index, own, values.buffer_info()[0])
            header, found = written(folder, name, part)
            problems += [] if found == values.tobytes() and f"({count},)" in header else [f"{what}: the {part} of {name}: {header}"]
    return problems


def a_store_is_read_while_it_is_open():
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        for state in ("fp32", "bf16", "8bit"):
            place, weights = os.path.join(folder, state), made_weights()
            with opened(place, weights, state=state) as store:
                train(store, weights, 2)
                problems += differing(place, store, state)
    return problems


class Gather:
    """The gather of two threads that stand for processes."""

    def __init__(self):
        self.barrier, self.addresses = threading.Barrier(2, timeout=60 * script_test.TIME_FACTOR), [0, 0]

    def of(self, rank):
        def gather(address, bounds):
            self.addresses[rank] = address
            self.barrier.wait()
            other = 1 - rank
            ctypes.memmove(address + bounds[other], self.addresses[other] + bounds[other], bounds[other + 1] - bounds[other])
            self.barrier.wait()
        return gather


def stores_of_several_processes_are_read():
    with tempfile.TemporaryDirectory() as folder:
        place, gather = os.path.join(folder, "store"), Gather()

        def work(rank):
            weights = made_weights()
            with opened(place, weights, rank=rank, ranks=2, gather=gather.of(rank)) as store:
                train(store, weights, 2)
        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = {name: [written(place, name, part)[1] for part in PARTS] for name in COUNTS}
        alone = made_weights()
        with opened(place, alone) as store:
            problems = [] if store.last_step == 2 else [f"the store is at step {store.last_step}"]
            for index, (name, count) in enumerate(COUNTS.items()):
                for own, read in zip(PARTS.values(), found[name]):
                    values = array.array("f", bytes(4 * count))
                    store.read(index, own, values.buffer_info()[0])
                    problems += [] if read == values.tobytes() else [f"the {own} of {name} differs"]
    return problems


def part_of(count, rank, cut):
    """The first element and the number of those that one of two processes has of a tensor."""
    first = min(count, {"halves": -(-count // 2), "uneven": count // 3, "none": 0}[cut])
    return (0, first) if rank == 0 else (first, count - first)


def parts_of_several_processes_are_put_together():
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        for cut, state, placed in (("halves", "fp32", True), ("uneven", "8bit", True), ("none", "bf16", True), ("halves", "bf16", False)):
            place, gather, own = os.path.join(folder, cut + state + str(placed)), Gather(), [{}, {}]

            def work(rank, place=place, gather=gather, own=own, cut=cut, state=state, placed=placed):
                store = spillway.Store(place, host_memory="64MiB", allow_buffered=True, rank=rank, ranks=2, gather=gather.of(rank), state=state,
                                       sharded=True)
                weights = {}
                for name, values in made_weights().items():
                    first, count = part_of(len(values), rank, cut)
                    weights[name] = values[first:first + count]
                    store.add(name, weights[name].buffer_info()[0] if count else 0, count, whole_count=len(values) if placed else 0,
                              first=first if placed else 0)
                with store:
                    store.open()
                    for _ in range(2):
                        for index, values in enumerate(weights.values()):
                            if values:
                                store.gradient(index, values.buffer_info()[0])
                        store.step(lr=0.1)
                    store.save()
                    for index, (name, values) in enumerate(weights.items()):
                        for part in PARTS:
                            out = array.array("f", bytes(4 * max(1, len(values))))
                            store.read(index, PARTS[part], out.buffer_info()[0])
                            own[rank][name, part] = out.tobytes()[:4 * len(values)]
            threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            said = tensors(place, "--json")
            if not placed:
                problems += [] if said.returncode == 1 and b"does not say where the parts of 'embedding' lie" in said.stderr else [f"no places: {said}"]
                continue
            listed = {entry["name"]: entry["shape"] for entry in json.loads(said.stdout or b'{"tensors": []}')["tensors"]}
            problems += [] if listed == {name: [count] for name, count in COUNTS.items()} else [f"{cut}: {said}"]
            for name, part in own[0]:
                found = written(place, name, part)
                problems += [] if found[1] == own[0][name, part] + own[1][name, part] else [f"{cut}, {state}: the {part} of {name}: {found[0]}"]
    return problems


def mistakes_are_said():
    with tempfile.TemporaryDirectory() as folder:
        place, weights = os.path.join(folder, "store"), made_weights()
        with opened(place, weights):
            pass
        cases = [((place, "--name", "nrm", "--to", "-"), "has no tensor 'nrm'; did you mean norm"), ((place, "--step", "4"), "is of step 0"),
                 ((folder,), "is not the folder of a run"), ((place, "--name", "norm", "--to", "/dev/full"), "No space left"),
                 ((place, "--name", "norm", "--to", os.path.join(folder, "no", "x.npy")), "x.npy cannot be written: No such file")]
        problems = [f"{words[1:]}: {said.returncode} {said.stderr}" for words, text in cases
                    for said in [tensors(*words)] if said.returncode != 1 or text not in said.stderr.decode() or said.stdout]
        with open(os.path.join(place, "tensors.json"), "r+b") as file:
            content = file.read().replace(b'"norm"', b'"mron"')
            file.seek(0)
            file.write(content)
        said = tensors(place)
    return problems + ([] if said.returncode == 1 and b"tensors.json" in said.stderr else [f"a damaged list: {said.stderr}"])


script_test.run(a_run_has_what_its_export_has, a_store_is_read_while_it_is_open, stores_of_several_processes_are_read,
                parts_of_several_processes_are_put_together, mistakes_are_said)
