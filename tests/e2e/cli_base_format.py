"""--base-format as a user has it: fewer bytes from the drive, as the plan says; the same numbers wherever the base
lives, on two ranks, after a kill and in other commands; exports hold the weights as they were loaded; and refusals."""

import json
import os
import random
import signal
import subprocess
import time

import hf_folder
import program
from program import script_test
from ranks_jobs import threads

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(5, 12000))
VAL = program.write(os.path.join(SCRATCH, "val.txt"), program.text(6, 3000))
STEPS, HALF = 4, 2
BLOCKS = ("--freeze", "blocks:0-2")
WEIGHTS_AWAY = "weights=nvme,optimizer=host,grads=host,acts=host"
EVERYTHING_AWAY = "weights=nvme,acts=nvme,grads=nvme,optimizer=nvme"


def path(*names):
    return os.path.join(SCRATCH, *names)


RECORD_BYTES = {"int8": 16640, "nf4": 8512}  # of a grain of 16,384 elements
# Three blocks with matrices of 12 grains, beside which the embedding is small.
MATRIX_GRAINS = 3 * 12
CONFIG = hf_folder.config(n_embd=128, n_layer=3, n_head=4)


def folder_of(name, spoil=None):
    """A folder of random weights; spoil: the tensor that gets an infinity."""
    tensors = {}
    for tensor, shape in hf_folder.shapes(hidden=128, layers=3).items():
        draw = random.Random(f"base {tensor}")
        mean = 1.0 if ".ln_" in tensor and tensor.endswith("weight") else 0.0
        values = [mean + draw.gauss(0, 0.03) for _ in range(hf_folder.count(shape))]
        if tensor == spoil:
            values[len(values) // 2] = float("inf")
        tensors[tensor] = (shape, values)
    return hf_folder.make(path(name), CONFIG, hf_folder.safetensors(tensors))


FOLDER = folder_of("folder")


def train(run, form, *more, freeze=BLOCKS, model=(FOLDER,), steps=STEPS, total=STEPS, place="weights=nvme",
          precision="bf16"):
    return ["train", "--model", *model, "--data", DATA, "--run", path(run), "--steps", steps, "--schedule-steps",
            max(steps, total), "--warmup", 1, "--lr", "1e-3", *program.SHAPE, "--place", place, "--precision", precision, *freeze,
            "--base-format", form, *more]


def a_step_reads_the_bytes_of_the_plan():
    """The base once forward and once backward: in nf4 at most 0.35 times as many bytes as in the compute type."""
    problems, read = [], {}
    for form in ("compute", "int8", "nf4"):
        run = "read-" + form
        program.must(*train(run, form, place=WEIGHTS_AWAY))
        steps = program.steps_of(path(run))
        plan = json.loads(program.must("plan", "--model", FOLDER, *program.SHAPE, "--precision", "bf16", *BLOCKS,
                                       "--base-format", form, "--place", WEIGHTS_AWAY, "--nvme", SCRATCH, "--json").out)
        read[form] = steps[-1]["bytes"]["nvme_read"]
        if plan["lanes"]["read"]["bytes"] != read[form]:
            problems.append(f"{form}: {read[form]} bytes read, planned {plan['lanes']['read']['bytes']}")
        if steps[-1]["bytes"]["upload"] != plan["lanes"]["upload"]["bytes"]:
            problems.append(f"{form}: {steps[-1]['bytes']['upload']} bytes uploaded")
        frozen = plan["frozen"]
        if (frozen["base_format"], frozen["base_bytes"]) != (form, RECORD_BYTES.get(form, 0) * MATRIX_GRAINS):
            problems.append(f"{form}: the plan says {frozen}")
    for form, most in (("int8", 0.6), ("nf4", 0.35)):
        if not 0 < read[form] <= most * read["compute"]:
            problems.append(f"{form}: {read[form]} bytes beside {read['compute']}")
    losses = {form: program.steps_of(path("read-" + form))[-1]["loss"] for form in read}
    for form, share in (("int8", 0.001), ("nf4", 0.02)):
        if not 0 < abs(losses[form] - losses["compute"]) < share * losses["compute"]:
            problems.append(f"{form}: losses {losses}")
    return problems


def numbers_do_not_depend_on_where_the_base_lives():
    problems = []
    for form, freeze in (("nf4", BLOCKS), ("int8", ("--freeze", "*.mlp.*,blocks:1")),
                         ("nf4", ("--lora", 4, "--lora-alpha", 8))):
        name = f"{form}-{freeze[0]}-{freeze[1]}"
        expected = None
        for place in ("weights=device", "weights=host,optimizer=nvme", EVERYTHING_AWAY, "weights=host:40%/nvme"):
            run = f"{name}-{place}".replace("/", "+").replace("*", "x")
            program.must(*train(run, form, freeze=freeze, place=place))
            expected = expected or program.numbers_of(path(run))
            if program.numbers_of(path(run)) != expected:
                problems.append(f"{run}: other numbers")
    return problems


def a_killed_run_goes_on_with_the_same_bits():
    whole = ("kill-whole", "nf4", "--save-every", 1)
    program.must(*train(*whole, steps=120, place=EVERYTHING_AWAY))
    process = program.start(*train("killed", "nf4", "--save-every", 1, steps=120, place=EVERYTHING_AWAY))
    end = time.monotonic() + 60
    while (not os.path.exists(path("killed", "log.jsonl")) or len(program.steps_of(path("killed"))) < 20) \
            and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = len(program.steps_of(path("killed")))
    program.must("resume", path("killed"), "--place", "weights=host")
    same = program.numbers_of(path("killed")) == program.numbers_of(path("kill-whole"))
    return ([] if same else ["other numbers"]) + ([] if before < 120 else ["it was not killed in time"])


def adapters_are_not_written_each_step():
    """They live in memory beside a base on the drive, unless the request says otherwise; either way as planned."""
    problems, runs = [], {}
    for name, trained in (("adapters-near", ""), ("adapters-far", ",trained=nvme")):
        how = ("--lora", 4)
        program.must(*train(name, "nf4", freeze=how, steps=HALF, place=WEIGHTS_AWAY + trained))
        runs[name] = program.numbers_of(path(name))
        written = program.steps_of(path(name))[-1]["bytes"]["nvme_write"]
        plan = json.loads(program.must("plan", "--model", FOLDER, *program.SHAPE, "--precision", "bf16", *how, "--base-format", "nf4",
                                       "--place", WEIGHTS_AWAY + trained, "--nvme", SCRATCH, "--json").out)
        if (written == 0) != (trained == "") or plan["lanes"]["write"]["bytes"] != written:
            problems.append(f"{name}: {written} bytes written, planned {plan['lanes']['write']['bytes']}")
        if plan["frozen"]["trained_on"] != ("nvme" if trained else "host"):
            problems.append(f"{name}: the plan says {plan['frozen']}")
    shown = " ".join(program.must("plan", "--model", FOLDER, *program.SHAPE, "--lora", 4, "--place", WEIGHTS_AWAY, "--nvme", SCRATCH).out.split())
    if "3 units whose frozen ones are on nvme live on host" not in shown:
        problems.append(f"plan does not say where adapters live: {shown}")
    program.must("resume", path("adapters-far"), "--steps", HALF + 1, "--place", WEIGHTS_AWAY)
    program.must("resume", path("adapters-near"), "--steps", HALF + 1, "--place", WEIGHTS_AWAY + ",trained=nvme")
    ends = [program.numbers_of(path(name)) for name in runs]
    return problems + ([] if len(set(map(str, runs.values()))) == 1 and ends[0] == ends[1] else ["other numbers"])


def find_kept(run):
    """Where the pages with the checksums of frozen weights begin in a run's store, and the first of these weights."""
    with open(path(run, program.STORE), "rb") as file:
        content = file.read()
    at = content.find(b"SWKEPT\0\0")
    grains = int.from_bytes(content[at + 48:at + 56], "little")
    return at, at + 4096 * (1 + -(-8 * grains // 4096)) + (64 << 10)


def overwrite(run, offset, content):
    with open(path(run, program.STORE), "r+b") as file:
        file.seek(offset)
        file.write(content)


def spoil(model, at):
    """Changes a frozen weight of the model, or changes it back."""
    with open(os.path.join(model[0], "model.safetensors"), "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def a_resume_takes_over_the_base_on_the_drive():
    """It reads the model's weights only to make what is missing: a store of before, or what was damaged."""
    problems = []
    for form, place in (("nf4", EVERYTHING_AWAY), ("compute", WEIGHTS_AWAY)):
        model = (folder_of("model-" + form),)
        end = os.path.getsize(os.path.join(model[0], "model.safetensors"))
        how = {"place": place, "freeze": ("--freeze", "blocks:0-2,embedding")}
        run, whole = "kept-" + form, "kept-whole-" + form
        program.must(*train(whole, form, model=model, steps=6, **how))
        program.must(*train(run, form, model=model, steps=1, total=6, **how))
        weight = end // 2
        spoil(model, weight)
        program.must("resume", path(run), "--steps", 2)
        problems += program.refused(f"{form}: the base in memory", ["resume", path(run), "--steps", 3, "--place", "weights=host"], "has changed")
        problems += program.refused(f"{form}: a base that is not there any more", ["resume", path(run), "--steps", 3, "--place", place], "has changed")
        spoil(model, weight)
        program.must("resume", path(run), "--steps", 3)
        overwrite(run, find_kept(run)[1] + 100, b"damage")
        ended = program.run("resume", path(run), "--steps", 4)
        if ended.code != 1 or "wrong checksum" not in ended.err.splitlines()[-1]:
            problems.append(f"{form}: damage: status {ended.code}: {ended.err[-300:]}")
        program.must("resume", path(run), "--steps", 4)
        overwrite(run, find_kept(run)[0], bytes(4096))  # as in a store of an older version
        program.must("resume", path(run), "--steps", 5)
        spoil(model, weight)
        program.must("resume", path(run), "--steps", 6)
        if program.numbers_of(path(run)) != program.numbers_of(path(whole)):
            problems.append(f"{form}: other numbers")
    return problems


def two_ranks(*arguments):
    done = program.limits.run(threads(2, program.command(*arguments)), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"two ranks of {' '.join(map(str, arguments))}: {done.stderr[-500:]}")


def each_rank_holds_its_share_of_the_base():
    """At stage 3, and the ranks gather it."""
    plan = ("plan", "--model", FOLDER, "--seq", program.SEQ, "--micro-batch", 1, "--batch-tokens", 4 * program.SEQ,
            "--chunk-grains", 2, "--precision", "bf16", "--lora", 4, "--base-format", "nf4", "--json", "--place",
            "weights=host,optimizer=host,grads=host,acts=device")
    plans = [json.loads(program.must(*plan, "--ranks", ranks, "--zero", stage).out) for stage, ranks in ((2, 2), (3, 2), (3, 4))]
    base = plans[0]["frozen"]["base_bytes"]
    held, sent = [found["peak_bytes"]["host"] for found in plans], [found["lanes"]["comm"]["bytes"] for found in plans]
    if not 0.45 * base <= held[0] - held[1] or not 0.2 * base <= held[1] - held[2]:
        return [f"{held} bytes are held, and the base has {base}"]
    return [] if sent[0] + 0.45 * base <= sent[1] else [f"{sent} bytes are sent, and the base has {base}"]


def ranks_write_no_adapters():
    """Each rank of any stage keeps them on the host beside a base on the drive, unless the request says otherwise."""
    problems = []
    for stage, trained in ((2, ""), (3, ""), (3, ",trained=nvme")):
        plan = json.loads(program.must("plan", "--model", FOLDER, "--seq", program.SEQ, "--micro-batch", 1, "--batch-tokens",
                                       4 * program.SEQ, "--precision", "bf16", "--lora", 4, "--base-format", "nf4", "--json", "--ranks", 2,
                                       "--zero", stage, "--place", WEIGHTS_AWAY + trained, "--nvme", SCRATCH).out)
        if (plan["lanes"]["write"]["bytes"] == 0) != (trained == ""):
            problems.append(f"stage {stage}{trained}: {plan['lanes']['write']['bytes']} bytes written")
    return problems


def ranks_have_the_numbers_of_stage_0():
    """Stage 3 shares the base out; one rank goes on with a run of two, and two with that."""
    problems = []
    places = ("weights=device", "weights=host,optimizer=nvme", "weights=nvme", "weights=host")
    for form, freeze, stages in (("nf4", ("--lora", 4), range(4)), ("int8", ("--freeze", "*.mlp.*,blocks:1"), (0, 3))):
        expected = ended = None
        for stage in stages:
            run, place = f"ranks-{form}-{stage}", places[stage]
            two_ranks(*train(run, form, "--zero", stage, freeze=freeze, steps=HALF, place=place))
            expected = expected or program.numbers_of(path(run))
            if program.numbers_of(path(run)) != expected:
                problems.append(f"{run}: other numbers")
            program.must("resume", path(run), "--steps", STEPS - 1)
            two_ranks("resume", path(run), "--steps", STEPS)
            ended = ended or program.numbers_of(path(run))
            if program.numbers_of(path(run)) != ended:
                problems.append(f"{run}: other numbers after its resumes")
    return problems


def other_commands_compute_with_the_base():
    """An evaluation has the loss of the training's own, with memory for all weights and without; generate has one
    text."""
    program.must(*train("used", "nf4", "--val", VAL, "--eval-every", STEPS))
    logged = [line["val_loss"] for line in program.log_lines(path("used")) if "val_loss" in line][-1]
    evaluate = ("--data", VAL, "--seq", program.SEQ, "--precision", "bf16", "--json")
    losses = [json.loads(program.must("eval", path("used"), *evaluate, *memory).out)["loss"]
              for memory in ((), ("--device-memory", "24MiB"))]
    program.must("export", path("used"), path("used-out"))
    exact = json.loads(program.must("eval", path("used-out"), *evaluate).out)["loss"]
    say = ("--prompt", "the ", "--max-tokens", 10, "--temperature", 0, "--precision", "bf16")
    texts = {program.must("generate", path("used"), *say, *memory).out for memory in ((), ("--device-memory", "24MiB"))}
    problems = [] if abs(losses[0] - logged) < 1e-9 * logged and losses[0] == losses[1] else [f"losses {losses}, logged {logged}"]
    problems += [] if exact != losses[0] and abs(exact - logged) < 0.02 * logged else [f"the export has {exact}, the run {logged}"]
    report = json.loads(program.must("verify", path("used"), "--json").out)
    return problems + ([] if len(texts) == 1 else [f"texts {texts}"]) + ([] if report["bad"] == [] else [f"{report['bad']}"])


def tensors_of(file):
    with open(file, "rb") as content:
        header, data = hf_folder.split(content.read())
    return {name: data[slice(*tensor["data_offsets"])] for name, tensor in header.items() if name != "__metadata__"}


def exports_hold_the_weights_as_they_were_loaded():
    """In fp32 and exactly, although the run computes with 4 bits."""
    program.must(*train("exported", "nf4"))
    program.must("export", path("exported"), path("out"))
    before, after = tensors_of(os.path.join(FOLDER, "model.safetensors")), tensors_of(path("out", "model.safetensors"))
    problems = [] if before.keys() == after.keys() else [f"other tensors: {sorted(before.keys() ^ after.keys())[:4]}"]
    return problems + [f"{name} {'changed' if '.h.' in name else 'was not trained'}" for name in before
                       if (before[name] != after.get(name)) == (".h." in name)]


def what_does_not_go_is_refused():
    table = [("nothing frozen", train("none", "nf4", freeze=()), "--lora or --freeze"),
             ("fp8", train("none", "nf4", precision="fp8"), "--precision fp8"),
             ("another format", train("none", "nf5"), "compute|int8|nf4")]
    problems = program.refused_each(table, status=2, watched=[SCRATCH])
    spoiled = folder_of("spoiled", spoil="transformer.h.1.attn.c_proj.weight")
    problems += program.refused("an infinity", train("spoiled-run", "nf4", model=(spoiled,)),
                                "h.1.attn.c_proj.weight", "not finite")
    program.must(*train("fixed", "nf4", steps=1))
    return problems + program.refused("another one at a resume", ["resume", path("fixed"), "--base-format", "int8"],
                                      "--base-format", status=2, watched=[path("fixed")])


def runs_of_before_go_on():
    """Their run.json does not have the setting."""
    program.must(*train("old", "compute", steps=HALF))
    run = program.read_json(path("old", "run.json"))
    del run["settings"]["base_format"]
    program.write(path("old", "run.json"), json.dumps(run))
    program.must("resume", path("old"), "--steps", STEPS)
    program.must(*train("new", "compute"))
    return [] if program.numbers_of(path("old")) == program.numbers_of(path("new")) else ["other numbers"]


script_test.run(a_step_reads_the_bytes_of_the_plan, numbers_do_not_depend_on_where_the_base_lives,
                a_killed_run_goes_on_with_the_same_bits, a_resume_takes_over_the_base_on_the_drive,
                each_rank_holds_its_share_of_the_base, ranks_write_no_adapters, adapters_are_not_written_each_step,
                ranks_have_the_numbers_of_stage_0, other_commands_compute_with_the_base,
                exports_hold_the_weights_as_they_were_loaded, what_does_not_go_is_refused, runs_of_before_go_on)
