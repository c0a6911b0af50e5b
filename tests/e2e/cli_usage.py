"""Help, versions and reports: every flag is explained, results go to standard output and nothing else does."""

import json
import os
import re
import subprocess

import program
from program import script_test

COMMANDS = {
    "train": """--model --data --run --steps --schedule-steps --batch-tokens --seq --micro-batch --precision --device
        --order --recompute --zero --lr --warmup --schedule --decay-steps --min-lr --weight-decay --beta1 --beta2 --eps
        --clip --seed --init --tokens --durability --val --device-memory --host-memory --update --place --nvme --eval-every --save-every
        --export-every --keep
        --endurance --time-limit --rank-timeout --reduce --allow-shared-gpu --allow-buffered""",
    "resume": """DIR --steps --tokens --data --val --schedule-steps --lr --min-lr --device-memory --host-memory --zero --rank-timeout --update --place --nvme --eval-every --save-every --export-every --keep
        --endurance --time-limit
        --allow-buffered""",
    "plan": """--model --ranks --batch-tokens --seq --micro-batch --precision --durability --device --order --recompute
        --zero --device-memory --host-memory --update --place --nvme --steps --save-every --endurance --allow-buffered --rates --trace --explain --json""",
    "generate": "DIR|MODEL --prompt --tokens --max-tokens --temperature --top-k --top-p --seed --precision",
    "eval": "DIR|MODEL --data --seq --tokens --token-type --micro-batch --precision --threads --json",
    "export": "DIR|MODEL OUT --dtype --shard-size",
    "tensors": "DIR --name --part --step --to --json",
    "verify": "DIR --json",
    "report": "RUN --out --watch --port",
    "doctor": "--nvme --quick --measure --json",
}
# Their flags are those of their own tests.
BENCHES = ("copy", "comm", "update", "muon", "gemm", "experts", "attention", "compute", "load", "step", "zero", "io")
PLAN_FIELDS = {"model": str, "parameters": int, "batch_tokens": int, "micro_batch": int, "seq": int, "precision": str,
               "active_parameters": int, "optimizer_state": str, "grads_state": str,
               "recompute": list, "commit_every_step": bool, "store_bytes": int, "disk_bytes": int, "peak_bytes": dict,
               "placement": dict, "updates": list, "frozen": type(None), "group": int, "order_prices": list, "update_prices": (dict, type(None)), "placement_prices": (dict, type(None)), "lanes": dict, "ops": int, "waits": int, "predicted": dict,
               "saves": (dict, type(None)), "writes": dict, "data": (dict, type(None)), "would_help": type(None),
               "ranks": int, "zero": (int, type(None)), "tensor": (dict, type(None)), "expert_ranks": int, "tensor_choice": (list, type(None)),
               "pipeline": (dict, type(None)), "pipeline_choice": (list, type(None)),
               "expert_group": int, "expert_group_choice": (list, type(None)), "nodes": (dict, type(None)), "secondary": (dict, type(None)), "sent": dict, "quantized": (dict, type(None))}
SIMULATION_FIELDS = {"step_s": float, "tokens_per_second": float, "bottleneck": str, "bottleneck_share": float,
                     "lane_busy_s": dict}


def shape_of_help(command, text):
    """Every help fits 80 columns, has its flags in groups, the output last, and ends in three examples."""
    problems = [f"{command} --help is too wide: {line!r}" for line in text.splitlines() if len(line) > 80]
    headings = re.findall(r"^(\S[^:\n]*):$", text, re.MULTILINE)
    if len(headings) != len(set(headings)) or headings[-1] != "Examples":
        problems.append(f"{command} --help has the headings {headings}")
    examples = text.partition("\nExamples:\n")[2]
    if len(re.findall(rf"^  (?:mpirun -n \d+ )?spillway {command}\b", examples, re.MULTILINE)) != 3:
        problems.append(f"{command} --help has not three examples")
    if "preset" in text and "gpt2-124m  " not in text:
        problems.append(f"{command} --help speaks of presets and does not list them")
    return problems


def help_explains_every_flag():
    problems = []
    for command, flags in COMMANDS.items():
        ended = program.run(command, "--help")
        if ended.code != 0 or ended.err:
            problems.append(f"{command} --help: status {ended.code}, {ended.err!r}")
        for flag in flags.split():
            line = re.search(rf"^  {re.escape(flag)}(\.\.\.)?[ \n].*", ended.out, re.MULTILINE)
            if line is None:
                problems.append(f"{command} --help does not explain {flag}")
        if "--quiet" not in ended.out:
            problems.append(f"{command} --help does not explain --quiet")
        problems += shape_of_help(command, ended.out)
    if not re.search(r"--place [^-]*\(default: as before\)", " ".join(program.run("resume", "--help").out.split())):
        problems.append("resume --help does not say that what is not given stays as before")
    return problems


def benches_have_help_of_the_same_shape():
    wide = [f"bench --help is too wide: {line!r}" for line in program.run("bench", "--help").out.splitlines()
            if len(line) > 80]
    return wide + [problem for name in BENCHES for problem in
                   shape_of_help(f"bench {name}", program.run("bench", name, "--help").out)]


def the_program_itself():
    problems = []
    overview = program.run("--help")
    if overview.code != 0 or any(f"\n  {command} " not in overview.out for command in COMMANDS):
        problems.append(f"--help: status {overview.code}, {overview.out!r}")
    version = program.run("--version")
    if version.code != 0 or not re.fullmatch(r"spillway \d+\.\d+\.\d+\n", version.out):
        problems.append(f"--version: status {version.code}, {version.out!r}")
    for word in ("version", "-V"):
        if program.run(word).out != version.out:
            problems.append(f"{word}: {program.run(word)}")
    for words in (("train",), ("bench", "io")):
        explained = program.run("help", *words)
        if explained.code != 0 or explained.out != program.run(*words, "--help").out or not explained.out:
            problems.append(f"help {words}: status {explained.code}, {explained.out[:200]!r}")
    for arguments in ([], ["trian"], ["help", "trian"]):
        ended = program.run(*arguments)
        if ended.code != 2 or ended.out or not ended.err:
            problems.append(f"{arguments}: status {ended.code}, {ended.out!r}")
    return problems


def wrong_fields(what, found, fields):
    return [f"{what}: '{name}' is {found.get(name)!r}" for name, kind in fields.items()
            if not isinstance(found.get(name), kind)] + [f"{what}: '{name}' is new" for name in found.keys() - fields]


def plans():
    ended = program.run("plan", "--model", "gpt2-tiny", "--json", *program.SHAPE, "--place",
                        "grads=host,optimizer=nvme")
    if ended.code != 0 or ended.err:
        return [f"plan: status {ended.code}, {ended.err!r}"]
    plan = json.loads(ended.out)
    problems = wrong_fields("plan", plan, PLAN_FIELDS)
    if plan["peak_bytes"].keys() != {"device", "host", "nvme"}:
        problems.append(f"plan: peaks of {sorted(plan['peak_bytes'])}")
    expected = {"weights": "device", "grads": "host", "optimizer": "nvme", "acts": "device"}
    if {state: set(tiers) for state, tiers in plan["placement"].items()} != {s: {t} for s, t in expected.items()}:
        problems.append(f"plan: placement {plan['placement']}")
    for lane in ("compute", "upload", "download", "read", "write", "update"):
        problems += wrong_fields(f"lane {lane}", plan["lanes"].get(lane, {}), {"ops": int, "bytes": int})
    if plan["predicted"].keys() != {"plain", "speculated", "redone"}:
        problems.append(f"plan: predicts {sorted(plan['predicted'])}")
    for way, found in plan["predicted"].items():
        problems += wrong_fields(f"predicted {way}", found, SIMULATION_FIELDS)
    readable = program.run("plan", "--model", "gpt2-124m", "--batch-tokens", 64, "--seq", 64, "--explain")
    if readable.code != 0 or "checked" not in readable.out or "a step takes" not in readable.out:
        problems.append(f"plan without --json: status {readable.code}, {readable.out!r}")
    return problems


# Values that are texts by themselves; only a file or the rest of the command line says whether one is wrong.
FREE_TEXT = {"MODULES", "M", "FILE", "FILE|DIR|-", "FILE.bin", "DIR", "DIR|DEVICE", "DIR[:SIZE]", "FOLDER", "TEXT", "TOKEN", "LINE", "PATTERN", "NAME", "P%|FILE"}
# A command line of each command that is right but for what a test adds; {} is a folder or file that is not there.
RIGHT = {"train": "--model gpt2-tiny --init --data {} --run {}.run", "resume": "{}", "plan": "--model gpt2-tiny",
         "generate": "{} --prompt a", "eval": "{} --data {}", "export": "{} {}.out", "verify": "{}", "tensors": "{}", "report": "{}",
         "inspect": "{} --model {}", "tokenize": "--model {} --data {} --out {}.bin", "doctor": "--quick"}


def wrong_usage(words, *named):
    """A refusal of the command line has status 2, one line, and the words that help; nothing is written."""
    ended = subprocess.run(program.command(*words), capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    head = f"spillway {' '.join(words[:2]) if words[0] == 'bench' else words[0]}: "
    if ended.returncode != 2 or ended.stdout or not ended.stderr.startswith(head) or ended.stderr.count("\n") != 1 \
            or any(word not in ended.stderr for word in named):
        return [f"{' '.join(words)}: status {ended.returncode}: {ended.stdout[:100]!r} {ended.stderr[:300]!r}"]
    return []


def every_flag_refuses_values_that_cannot_be():
    """Each flag that takes a value gets one that is none, and each that takes none gets one; a flag that several commands have
    alike is tried with the first."""
    problems, tried = [], set()
    for command in [*RIGHT, *(f"bench {name}" for name in BENCHES)]:
        words = command.split()
        text = program.run(*words, "--help").out
        flags = re.findall(r"^  (--[\w-]+)(?: (\S+?))?(\.\.\.)?(?:$|  +\S)", text, re.MULTILINE)
        if len(flags) < 3:
            problems.append(f"{command} --help shows only the flags {flags}")
        for flag, value, many in flags:
            if (flag, value) in tried or value in FREE_TEXT or many or flag in ("--quiet", "--help"):
                continue
            tried.add((flag, value))
            right = RIGHT.get(command, "").replace("{}", "missing").split() if flag not in RIGHT.get(command, "") else []
            problems += wrong_usage([*words, *right, flag, "-7x"], flag, "-7x") if value else wrong_usage([*words, f"{flag}=yes"], flag)
        problems += wrong_usage([*words, flags[0][0]], flags[0][0]) if flags[0][1] else []
        problems += wrong_usage([*words, "--no-such-flag"], "--no-such-flag") + wrong_usage([*words, "-x"], "-x")
    return problems


def arguments_that_cannot_be_end_with_2():
    missing = os.path.join(program.scratch_folder(), "missing")
    table = {
        "train": ("--encoding bogus", "--chat-format bogus", "--schedule bogus", "--precision int4", "--steps 0", "--steps -3", "--lr -1",
                  "--batch-tokens 0", "--seq -64", "--epochs 1 --steps 2", "--place nowhere=host", "--order 0", "--val 60%",
                  "--nvme {}:3QQ", "--lr-scale x", "--freeze half", "--lora -1", "--lora 4 --freeze embedding", "--lora-alpha 2",
                  "--lora 4 --lora-targets q_proj,,v_proj", "--lora 4 --lora-alpha -1", "--zero 4", "--tensor 0", "--tensor 2", "--zero-secondary two",
                  "--device-memory -1GiB", "--device-memory 3QQ", "--time-limit soon", "--save-every 0", "--zero-secondary node --zero 2",
                  "--reduce int8", "--gather int8", "--sequence-parallel yes", "--rounding stochastic", "--seed 1 --seed 2",
                  "--nvme {}" + " --nvme {}" * 64, "extra", "-- extra"),
        "resume": ("--steps 0", "--steps", "--lr fast", "--place rubbish", "again", "--init", "--seed 3", "--nvme {}:-1"),
        "plan": ("--ranks 0", "--ranks -2", "--nodes 3", "--ranks 4 --tensor 3", "--ranks 3 --nodes 2 --machine h100", "--largest 5 --explain --svg x",
                 "--machine h100 --rates {}", "--machine h100 --device cpu", "--epochs 2", "--smallest-machine --trace {}", "--encoding bogus",
                 "--chat-format bogus", "--batch-tokens 100 --seq 64 --micro-batch 1", "--reduce int4", "--lr 1", "extra",
                 "--ranks 2 --grads-state 8bit", "--ranks 2 --zero-secondary node"),
        "eval": ("--encoding bogus", "--chat-format bogus", "--seq 0", "--tokens -1", "--tensor 2", "--threads 0", "--prompt a", "extra",
                 "--micro-batch -4", "--nvme {}:3QQ"),
        "generate": ("--chat-format bogus", "--max-tokens 0", "--temperature -1", "--top-p 2", "--tokens {}", "--system a", "--tensor 3",
                     "--prompt b", "--chat --prompt-file {}", "extra", "--min-p nan", "--seed -1"),
        "export": ("--dtype int8", "--shard-size 0", "--shard-size 5parsec", "extra", "--nvme {}:3QQ"),
        "tensors": ("extra", "--name a", "--to a", "--name a --to b --json", "--name a --to b --part w", "--step -1", "--nvme {}:-1"),
        "verify": ("extra", "--nvme", "--nvme {}:-1", "--json=yes"),
        "inspect": ("--encoding bogus", "--chat-format bogus", "--examples 0", "--max-tokens -1", "--loss none", "--bos perhaps", "extra"),
        "tokenize": ("--encoding bogus", "--chat-format bogus", "--pack -1", "--pack 64 --joined", "--lines --separator x", "--threads 0",
                     "--loss none", "extra"),
        "report": ("--port 0", "--port 99999", "--port 80", "--watch --out x", " {}" * 10),
        "doctor": ("extra", "--nvme"),
    }
    problems = [problem for command, wrong in table.items() for more in wrong
                for problem in wrong_usage([command, *f"{RIGHT[command]} {more}".replace("{}", missing).split()])]
    bare = ("train", "train --model gpt2-tiny", "resume", "plan", "eval", f"eval {missing}", "generate", f"generate {missing}", "export",
            f"export {missing}", "verify", "tensors", "inspect", f"inspect {missing}", "tokenize", f"tokenize --model {missing} --data {missing}",
            f"tokenize --model {missing} --data {missing} --out {missing}.txt", "report")
    benches = ("copy --size 3QQ", "copy --rounds 0", "copy extra", "gemm --model", "gemm --seq 0", "comm --size 1", "io --block 1000",
               "io --sustain --thorough", "io --sustain --random", "io --depth 0", "io --block 64MiB --depth 512", "step --tensor 2",
               "step --ranks 2", "step --place rubbish", "zero --tensor 0", "load --rounds 0", "update --precision int4")
    return problems + [problem for words in [*bare, *(f"bench {words}" for words in benches)] for problem in wrong_usage(words.split())]


def what_depends_on_files_ends_with_1():
    missing = os.path.join(program.scratch_folder(), "missing")
    words = {**RIGHT, "plan": "--model {}", "doctor": None}
    extra = [["plan", "--model", "gpt2-tiny", "--machine", "h1000"], ["plan", "--model", "gpt2-tiny", "--seq", "100000"]]
    problems = []
    for given in [[command, *arguments.replace("{}", missing).split()] for command, arguments in words.items() if arguments] + extra:
        ended = program.run(*given)
        if ended.code != 1 or ended.err.count("\n") != 1:
            problems.append(f"{given}: status {ended.code}: {ended.err[:300]!r}")
    return problems


def results_that_cannot_be_written():
    problems = []
    for arguments in (["plan", "--model", "gpt2-tiny"], ["plan", "--model", "gpt2-tiny", "--json"],
                      ["doctor", "--quick"]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(program.command(*arguments), stdout=full, stderr=subprocess.PIPE, check=False)
        if done.returncode != 1 or b"standard output" not in done.stderr:
            problems.append(f"{arguments} to a full disk: status {done.returncode}, {done.stderr!r}")
    return problems


script_test.run(help_explains_every_flag, benches_have_help_of_the_same_shape, the_program_itself, plans,
                every_flag_refuses_values_that_cannot_be, arguments_that_cannot_be_end_with_2, what_depends_on_files_ends_with_1,
                results_that_cannot_be_written)
