"""`spillway plan` asked for sizes: the largest model for a machine, the smallest machine for a model, and what would help."""

import json
import os
import subprocess
import sys

import program
from program import script_test

SCRATCH = program.scratch_folder()
MACHINES = os.path.join(os.path.dirname(__file__), "..", "..", "bench", "machines")
LEAST, FAST, FASTER, FAMILIES = 20000, 60000, 120000, ["gpt2", "llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe"]
# Each size that is tried is one plan, not a search. The largest GPT-2 alone is found with everything open.
CLOSED = ("--order", "batch", "--recompute", "none")


def largest(*more):
    return json.loads(program.must("plan", "--machine", "rtx3090", *more, "--json").out)["largest"]


def gpt2(name, layers, hidden, heads):
    """A config.json of the vocabulary and positions of GPT-2."""
    config = {"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": hidden, "n_layer": layers,
              "n_head": heads}
    return program.write(os.path.join(SCRATCH, name), json.dumps(config))


def mixture(name, **more):
    """A config.json of a small Mixtral whose experts are most of it."""
    config = {"model_type": "mixtral", "vocab_size": 4096, "hidden_size": 1024, "intermediate_size": 2048,
              "num_hidden_layers": 6, "max_position_embeddings": 4096, "num_attention_heads": 8, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2, **more}
    return program.write(os.path.join(SCRATCH, name), json.dumps(config))


def the_largest_trains_as_planned():
    """Its step is the one that `plan` predicts for it, it is fast enough, and a model somewhat larger is not."""
    found, = largest("--model", "gpt2-124m", "--largest", LEAST)
    problems = []
    planned = json.loads(program.must("plan", "--machine", "rtx3090", "--json", "--model", gpt2(
        "found.json", found["layers"], found["hidden"], found["heads"])).out)
    step = planned["predicted"]["plain"]
    if planned["parameters"] != found["parameters"] or abs(step["step_s"] / found["step_s"] - 1) > 1e-9:
        problems.append(f"{found} is planned as {planned['parameters']} parameters, {step}")
    if planned["disk_bytes"] != found["disk_bytes"]:
        problems.append(f"{found} takes {planned['disk_bytes']} bytes of disk as planned")
    if not found["layers"] > found["heads"]:
        problems.append(f"{found} is no deeper than the proportions, which have as many heads as layers")
    if found["tokens_per_second"] < LEAST or found["limit"] != "speed":
        problems.append(f"{found} is too slow")
    layers = found["layers"] * 5 // 4
    larger = json.loads(program.must("plan", "--machine", "rtx3090", "--json", "--model", gpt2(
        "larger.json", layers, layers * 64, layers)).out)["predicted"]["plain"]
    if larger["tokens_per_second"] >= LEAST:
        problems.append(f"{layers} layers make {larger['tokens_per_second']} tokens/s")
    return problems


def memory_limits_too():
    """With little memory a slow machine is limited by it; budgets and shapes are those of the flags. What a small device
    limits is the width; the layers of that width fill the host."""
    problems = []
    for budget, limit in ((("--device-memory", "2GiB"), "host memory"), (("--host-memory", "256MiB"), "host memory")):
        found, = largest("--model", "gpt2-124m", "--largest", 1, *budget, "--place", "optimizer=host")
        if found["parameters"] is None or found["limit"] != limit:
            problems.append(f"{budget}: {found}")
    longer, = largest("--model", "gpt2-124m", "--largest", LEAST, *CLOSED, "--seq", 4096)
    shorter, = largest("--model", "gpt2-124m", "--largest", LEAST, *CLOSED)
    if not longer["parameters"] < shorter["parameters"]:
        problems.append(f"longer sequences: {longer}, {shorter}")
    return problems


def each_family_has_one():
    """As fast as small models are, whose plans are soon made; the table is of models that are faster still, which not each family
    has."""
    found = largest("--largest", FAST, *CLOSED)
    problems = [] if [row["family"] for row in found if row["parameters"]] == FAMILIES else [f"families {found}"]
    found = largest("--largest", FASTER, *CLOSED)
    said = program.must("plan", "--machine", "rtx3090", "--largest", FASTER, *CLOSED).out
    rows = [line.split() for line in said.splitlines()[-len(FAMILIES):]]
    for row, line in zip(found, rows):
        if row["parameters"] is None:
            right = line == [row["family"], "none:", "speed"]
        else:
            right = [line[0], *line[3:7]] == [row["family"], str(row["hidden"]), str(row["layers"]), f"{row['tokens_per_second']:.0f}",
                                              f"{row['disk_bytes'] / 2 ** 30:.2f}"]
        if not right:
            problems.append(f"{line} instead of {row}")
    if len({row["parameters"] is None for row in found}) != 2:
        problems.append(f"not some families but not others reach {FASTER}: {found}")
    problems += [f"a line is too wide: {line}" for line in said.splitlines() if len(line) > 80]
    none = largest("--largest", 10 ** 12, *CLOSED)
    return problems + [f"none reaches {row}" for row in none if row["parameters"] is not None or row["limit"] != "speed"]


def units_of_experts_are_chosen():
    """--expert-group auto takes the units with the shortest step: whole blocks where these are as fast, and smaller units where
    they are faster, or where whole blocks do not fit. The plan is that of the number given."""
    model = ("plan", "--machine", "rtx3090", "--model", mixture("mixture.json"), "--seq", 512, "--batch-tokens", 8192, "--order", "batch")
    problems, taken = [], {}
    for name, memory in (("much", ()), ("little", ("--device-memory", "400MiB", "--micro-batch", 1))):
        auto = json.loads(program.must(*model, *memory, "--expert-group", "auto", "--json").out)
        steps = {row["experts"]: row["step_s"] for row in auto["expert_group_choice"]}
        taken[name] = auto["expert_group"]
        fitting = [step for step in steps.values() if step is not None]
        if steps[taken[name]] > 1.006 * min(fitting) or next(iter(steps)) != 0:
            problems.append(f"{name}: {taken[name]} of {steps}")
    refused = auto["expert_group_choice"][0]["refused"]
    if taken["much"] != 0 or taken["little"] == 0 or "--device-memory" not in (refused or ""):
        problems.append(f"{taken}, {refused}")
    given = json.loads(program.must(*model, *memory, "--expert-group", taken["little"], "--json").out)
    if given["expert_group_choice"] is not None or given["predicted"] != auto["predicted"] or given["ops"] != auto["ops"]:
        problems.append(f"{auto['predicted']} by auto, {given['predicted']} with {taken['little']}")
    said = program.must(*model, *memory, "--expert-group", "auto").out
    if f"--expert-group auto is --expert-group {taken['little']}, by predicted step:" not in said:
        problems.append(said)
    dense = json.loads(program.must("plan", "--machine", "rtx3090", "--model", "gpt2-tiny", "--expert-group", "auto", "--json").out)
    if (dense["expert_group"], dense["expert_group_choice"]) != (0, None):
        problems.append(f"without experts: {dense['expert_group']}, {dense['expert_group_choice']}")
    problems += program.refused("experts of every family", ["plan", "--machine", "rtx3090", "--largest", "auto", "--expert-group", 16],
                                "--expert-group 16", "--model", status=2)
    active = [json.loads(program.must("plan", "--machine", "rtx3090", "--model", mixture("mixture.json"), "--lora", 16, "--lora-targets",
                                      targets, "--json").out)["active_parameters"] for targets in ("all", "attention")]
    # Three adapters of rank 16 between 1024 and 2048, beside the 2 of 8 experts that a token has in 6 layers.
    if active[0] - active[1] != 3 * 16 * (1024 + 2048) * 2 * 6:
        problems.append(f"adapters of experts make {active[0] - active[1]} parameters of a token's")
    fitting, = largest("--model", mixture("mixture.json"), "--largest", 1, "--device-memory", "400MiB", "--micro-batch", 1, "--order",
                       "batch", "--recompute", "all", "--seq", 512, "--batch-tokens", 512, "--expert-group", "auto")
    # Whole blocks of this width do not fit: those of the model above do not either.
    if fitting["hidden"] < 1024 or fitting["expert_group"] == 0 or fitting["experts"] != 8:
        problems.append(f"units of experts allow no wide model: {fitting}")
    return problems


def the_smallest_machine_is_enough():
    """`plan` fits each row's budgets with the row's speed, and refuses the searched ones when they are a little smaller."""
    problems, model = [], ("plan", "--machine", "rtx3090", "--model", "gpt2-355m", "--micro-batch", 4)
    rows = json.loads(program.must(*model, "--smallest-machine", "--json").out)["smallest"]
    whats = ["as they are", "least device memory", "least host memory", "both small"]
    if [row["what"] for row in rows] != whats:
        problems.append(f"rows {rows}")
    for row in rows:
        budgets = {"--device-memory": row["device_memory"], "--host-memory": row["host_memory"]}
        flags = [part for flag, size in budgets.items() for part in (flag, f"{size // 1024}KiB")]
        planned = json.loads(program.must(*model, *flags, "--json").out)
        if abs(planned["predicted"]["plain"]["step_s"] / row["step_s"] - 1) > 0.01 or planned["disk_bytes"] != row["disk_bytes"]:
            problems.append(f"{row} is planned with {planned['predicted']['plain']}, {planned['disk_bytes']} on disk")
    for row, flag, size in ((rows[1], "--device-memory", "device_memory"), (rows[2], "--host-memory", "host_memory")):
        if not row[size] < rows[0][size] / 2:
            problems.append(f"{flag} {row[size]} is not small")
        problems += program.refused(f"less {flag}", [*model, flag, f"{row[size] * 63 // 64 // 1024}KiB"], flag)
    if not rows[3]["device_memory"] < rows[0]["device_memory"] / 2 or not rows[3]["host_memory"] < rows[0]["host_memory"] / 2:
        problems.append(f"both are not small: {rows[3]}")
    said = program.must(*model, "--smallest-machine").out
    problems += [f"{what} is not printed" for what in whats if f"  {what} " not in said]
    problems += [f"a line is too wide: {line}" for line in said.splitlines() if len(line) > 80]
    both = ["--device-memory", "1KiB", "--smallest-machine"]
    return problems + program.refused("a model that does not fit", [*model, *both], "--device-memory")


def doubled(names):
    """The file of a machine whose rates of these names are doubled."""
    with open(os.path.join(MACHINES, "rtx3090.json"), encoding="utf-8") as file:
        machine = json.load(file)
    for name in names:
        machine["rates"][name]["bytes_per_s"] = 2 * machine["rates"][name]["bytes_per_s"]["expected"]
    return program.write(os.path.join(SCRATCH, "doubled.json"), json.dumps(machine))


def what_helps_is_planned():
    """Each row of --explain is the plan of the flags, or the machine, that it names."""
    problems = []
    shape = ["--model", "gpt2-124m", "--place", "optimizer=nvme,acts=host:50%/nvme", "--order", "batch", "--update", "host",
             "--micro-batch", 2]
    host, device = ["--host-memory", "768MiB"], ["--device-memory", "1GiB"]
    given = ["plan", "--machine", "rtx3090", *shape, *host, *device]
    said = json.loads(program.must(*given, "--explain", "--json").out)
    rows = {row["what"]: row for row in said["would_help"]}
    for what, machine, more in (("one more drive", doubled(("read", "write")), (*host, *device)),
                                ("host memory doubled", "rtx3090", ("--host-memory", "1536MiB", *device)),
                                ("device memory doubled", "rtx3090", ("--device-memory", "2GiB", *host)),
                                ("batch doubled", "rtx3090", ("--batch-tokens", 32768, *host, *device))):
        step = json.loads(program.must("plan", "--machine", machine, *shape, *more, "--json").out)["predicted"]["plain"]
        if not rows[what]["fits"] or abs(rows[what]["step_s"] / step["step_s"] - 1) > 0.01:
            problems.append(f"{what}: {rows[what]} instead of {step}")
    if not rows["one more drive"]["step_s"] < 0.7 * said["predicted"]["plain"]["step_s"]:
        problems.append(f"a drive does not help: {rows}")
    if json.loads(program.must(*given, "--json").out)["would_help"] is not None:
        problems.append("it is tried without --explain")
    text = program.must(*given, "--explain").out.partition("predicted step\n")[2]
    problems += [f"{what} is not printed" for what in rows if f"  {what} " not in text]
    return problems + [f"a line is too wide: {line}" for line in text.splitlines() if len(line) > 80]


def the_table_of_models_is_written():
    """tools/plan_table.py puts the speeds of `plan`, and what a model lacks that does not fit, between two marks only."""
    table = os.path.join(os.path.dirname(__file__), "..", "..", "tools", "plan_table.py")
    marks = "<!-- plan_table.py: begin -->", "<!-- plan_table.py: end -->"
    page = program.write(os.path.join(SCRATCH, "page.md"), f"before\n{marks[0]}\nold\n{marks[1]}\nafter\n")
    small = json.loads(program.must("plan", "--machine", "rtx3090", "--model", "gpt2-124m", "--json",
                                    "--batch-tokens", 65536).out)["predicted"]["plain"]
    with open(os.path.join(MACHINES, "rtx3090.json"), encoding="utf-8") as file:
        machine = json.load(file)
    machine["device"]["memory_bytes"] = 1 << 29
    tight = program.write(os.path.join(SCRATCH, "tight.json"), json.dumps(machine))
    for _ in range(2):
        subprocess.run([sys.executable, "-B", table, "--models", "gpt2-124m", "--machines", f"rtx3090,{tight}",
                        "--batch-tokens", "65536", "--write", page], check=True, env={**os.environ, "SW_PROGRAM": program.PROGRAM})
    with open(page, encoding="utf-8") as file:
        lines = file.read().splitlines()
    problems = [] if [lines[0], lines[1], *lines[-2:]] == ["before", marks[0], marks[1], "after"] else [f"around it: {lines}"]
    cells = lines[4].split(" | ")
    if len(lines) != 7 or not cells[1].startswith(f"{small['tokens_per_second']:,.0f} (") or "--device-memory" not in cells[2]:
        problems.append(f"{lines} instead of {small}")
    unmarked = subprocess.run([sys.executable, "-B", table, "--models", "gpt2-124m", "--machines", "rtx3090", "--write", tight],
                              capture_output=True, text=True, check=False, env={**os.environ, "SW_PROGRAM": program.PROGRAM})
    return problems + ([] if unmarked.returncode == 1 and "lacks the marks" in unmarked.stderr else [f"no marks: {unmarked}"])


def bad_ones_are_refused():
    machine = ("plan", "--machine", "rtx3090")
    return program.refused_each([
        ("no model", machine, "--model", "--largest"),
        ("a speed of nothing", (*machine, "--largest", 0), "--largest", "at least 1"),
        ("a negative speed", (*machine, "--largest=-1"), "--largest", "at least 1"),
        ("a word", (*machine, "--largest", "fast"), "--largest", "auto"),
        ("rates of one model", ("plan", "--largest", 9, "--rates", "x"), "--rates"),
        ("frozen units", (*machine, "--largest", 9, "--freeze", "embedding"), "--freeze"),
        ("both questions", (*machine, "--largest", 9, "--smallest-machine"), "--largest"),
        ("no model of the smallest machine", (*machine, "--smallest-machine"), "--model"),
        ("a mistyped flag", (*machine, "--smalest-machine"), "did you mean --smallest-machine?"),
        ("a trace", (*machine, "--largest", 9, "--trace", "x"), "--trace"),
        ("two choices", (*machine, "--model", "mixtral-8x7b", "--ranks", 2, "--tensor", "auto", "--expert-group", "auto"),
         "--tensor auto", "--expert-group auto"),
        ("rates of one size", ("plan", "--model", "mixtral-8x7b", "--rates", "x", "--expert-group", "auto"), "--expert-group N"),
        ("an image", (*machine, "--largest", 9, "--svg", "x"), "--svg"),
    ], status=2, watched=[SCRATCH]) + program.refused_each([
        ("an unknown machine", ("plan", "--machine", "rtx", "--largest", 9), "rtx3090"),
        ("an unknown model", (*machine, "--model", "gpt3", "--largest", 9), "gpt2-124m"),
    ], watched=[SCRATCH])


script_test.run(the_largest_trains_as_planned, memory_limits_too, each_family_has_one, units_of_experts_are_chosen,
                the_smallest_machine_is_enough, what_helps_is_planned, the_table_of_models_is_written, bad_ones_are_refused)
