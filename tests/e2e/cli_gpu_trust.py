"""A GPU is trusted after its self-test, by a program whose GPU is the emulated one: a self-test before anything is
computed, whose verdict is kept; the algorithms of matrix products, which are recorded and obeyed; and errors in the middle of a step,
after which a run goes on from its last commit."""

import glob
import json
import os
import shutil

import program
from program import script_test

SCRATCH = program.scratch_folder()
CACHE = os.path.join(SCRATCH, "cache")
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(2, 6000))
SHAPE = ("--seq", 16, "--micro-batch", 1, "--batch-tokens", 32, "--threads", 1, "--chunk-grains", 2)
RUN = os.path.join(SCRATCH, "run")
TESTED = "ops compared with the reference"
MANY_STEPS = 100000


def run(*arguments, gpu="", cache=CACHE, **more):
    return program.run(*arguments, env={**os.environ, "XDG_CACHE_HOME": cache, "SW_EMULATED_GPU": gpu, **more})


def train(folder, *more, steps=2, **options):
    return run("train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", folder, "--steps", steps, *SHAPE,
               "--place", "optimizer=host", "--order", "layer", "--update", "host", "--device", "cuda", *more,
               **options)


def trained():
    if not os.path.isdir(RUN):
        ended = train(RUN)
        assert ended.code == 0, ended.err
    return RUN


def kept(kind):
    return glob.glob(os.path.join(CACHE, "spillway", kind + "-*.json"))


def the_verdict_is_kept():
    first = train(os.path.join(SCRATCH, "first"))
    second = train(os.path.join(SCRATCH, "second"))
    problems = [f"status {ended.code}: {ended.err}" for ended in (first, second) if ended.code != 0]
    if TESTED not in first.err or TESTED in second.err or len(kept("gpu")) != 1:
        problems.append(f"{first.err!r}, then {second.err!r}; {kept('gpu')}")
    program.write(kept("gpu")[0], '{"key": ')
    third = train(os.path.join(SCRATCH, "third"))
    if third.code != 0 or TESTED not in third.err:
        problems.append(f"after a damaged verdict: {third.err!r}")
    nowhere = train(os.path.join(SCRATCH, "fourth"), cache="/proc/none", TMPDIR="/proc/none")
    if nowhere.code != 0 or "cannot be kept" not in nowhere.err:
        problems.append(f"without a cache: status {nowhere.code}, {nowhere.err!r}")
    return problems


def doctor_shows_it():
    trained()
    findings = json.loads(run("doctor", "--quick", "--json").out)["findings"]
    found = next(finding for finding in findings if finding["what"] == "self-test")
    ops = {op["op"]: op for op in found["facts"]["ops"]}
    problems = [] if found["state"] == "ok" else [f"{found}"]
    problems += [f"{name} is missing" for name in ("update", "attention backward", "product in tf32") if name not in ops]
    problems += [f"{op}" for op in ops.values() if not op["passed"] or op["comparisons"] < 1]
    unknown = json.loads(run("doctor", "--quick", "--json", cache=os.path.join(SCRATCH, "empty")).out)["findings"]
    state = next(finding["state"] for finding in unknown if finding["what"] == "self-test")
    return problems if state == "unknown" else problems + [f"without a verdict: {state}"]


def wrong_arithmetic_is_refused():
    """By name, and not by a verdict of before: this GPU is another."""
    trained()
    refused, problems = os.path.join(SCRATCH, "refused"), []
    spoilt = {"gpu": "wrong-products", "cache": os.path.join(SCRATCH, "spoilt")}
    for name, ended in (("train", train(refused, **spoilt)),
                        ("eval", run("eval", RUN, "--data", DATA, "--seq", 16, "--device", "cuda", **spoilt)),
                        ("generate", run("generate", RUN, "--prompt", "a", "--device", "cuda", **spoilt))):
        last = (ended.err.splitlines() or [""])[-1]
        problems += [f"{name}: '{word}' is not in {last!r}" for word in
                     ("Emulated GPU computes wrongly", "its product failed", "should be", "--device cpu")
                     if word not in last]
        if ended.code != 1 or ended.out:
            problems.append(f"{name}: status {ended.code}, {ended.out!r}")
    doctor = run("doctor", "--quick", **spoilt)
    if "computes wrongly: product failed" not in doctor.out:
        problems.append(f"doctor: {doctor.out!r}")
    return problems + (["the refused run is left"] if os.path.exists(refused) else [])


def products_of(folder):
    return program.read_json(os.path.join(folder, "run.json"))["products"]


def algorithms_are_recorded():
    """The same in every run of a machine, and each with its fields."""
    first, again = products_of(trained()), os.path.join(SCRATCH, "again")
    problems = [] if train(again).code == 0 else ["the second run failed"]
    if first != products_of(again) or not first["algorithms"] or first["gpu"] != "Emulated GPU":
        problems.append(f"{first}, {products_of(again)}")
    fields = {"m", "n", "k", "a_stride", "c_stride", "in", "out", "id", "tile", "stages", "split_k", "reduction", "swizzle", "custom_option",
              "workspace", "words"}
    problems += [f"{algorithm} lacks fields" for algorithm in first["algorithms"] if not fields <= set(algorithm)]
    other = os.path.join(SCRATCH, "of eval")
    run("eval", RUN, "--data", DATA, "--seq", 16, "--micro-batch", 1, "--tokens", 64, "--device", "cuda", cache=other)
    return problems + [f"nothing is kept in {cache}" for cache in (CACHE, other)
                       if not glob.glob(os.path.join(cache, "spillway", "products-*.json"))]


def resumed(what, words, gpu="", change=None):
    """A resume of a copy of the run, with another record, on another GPU."""
    folder, path = os.path.join(SCRATCH, what), os.path.join(SCRATCH, what, "run.json")
    shutil.copytree(trained(), folder)
    if change is not None:
        record = program.read_json(path)
        change(record)
        program.write(path, json.dumps(record))
    before = program.read_json(path).get("products")
    ended = run("resume", folder, "--steps", 3, gpu=gpu)
    said = "bits may change" in ended.err
    problems = [] if ended.code == 0 and said == bool(words) else [f"{what}: status {ended.code}, {ended.err!r}"]
    problems += [f"{what}: '{word}' is not in {ended.err!r}" for word in words if word not in ended.err]
    if not words and before is not None and before != products_of(folder):
        problems.append(f"{what}: others were taken")
    return problems


def take_last(record):
    """The emulated library's third algorithm, whichever was chosen. Its number is in an algorithm's upper half."""
    for algorithm in record["products"]["algorithms"]:
        algorithm["id"] = 2
        algorithm["words"] = algorithm["words"][:7] + "2" + algorithm["words"][8:]


def damage(record):
    for algorithm in record["products"]["algorithms"]:
        algorithm["words"] = "f" * len(algorithm["words"])


def by_warpgroups(record):
    record["products"]["warpgroups"] = True


def a_resume_obeys_the_record():
    return (resumed("same", ()) + resumed("last", (), change=take_last) +
            resumed("old", (), change=lambda record: record.pop("products")) +
            resumed("library", ("cuBLASLt 130002", "cuBLASLt 130003"), gpu="other-library") +
            resumed("gone", ("does not accept",), gpu="fewer-algorithms", change=take_last) +
            resumed("warpgroups", ("products of warpgroups",), change=by_warpgroups) +
            resumed("damaged", ("does not accept",), change=damage))


def errors_in_the_middle_of_a_step():
    trained()
    problems = []
    for fault, words in (("ecc", ("uncorrectable ECC error", "nvidia-smi -q -d ECC")),
                         ("launch-failure", ("launch failure",)), ("off-the-bus", ("lost the GPU", "dmesg"))):
        folder = os.path.join(SCRATCH, fault)
        ended = train(folder, "--save-every", 1, steps=MANY_STEPS, gpu=fault,
                      SW_EMULATED_FAULT_WHEN=os.path.join(folder, "log.jsonl"))
        last = (ended.err.splitlines() or [""])[-1]
        problems += [f"{fault}: '{word}' is not in {last!r}" for word in words if word not in last]
        steps = len(program.steps_of(folder))
        again = run("resume", folder, "--steps", steps + 1)
        done = [line["step"] for line in program.steps_of(folder)]
        if ended.code != 1 or again.code != 0 or done[-1] != steps + 1 or len(set(done)) != len(done):
            problems.append(f"{fault}: {ended.code}, then {again.code}: {done} {again.err!r}")
    return problems


script_test.run(the_verdict_is_kept, doctor_shows_it, wrong_arithmetic_is_refused, algorithms_are_recorded,
                a_resume_obeys_the_record, errors_in_the_middle_of_a_step)
