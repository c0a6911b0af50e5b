"""`spillway plan --machine`: a machine that is described, and not here."""

import copy
import json
import os
import subprocess

import program
from program import script_test

SCRATCH = program.scratch_folder()
MACHINES = os.path.join(os.path.dirname(__file__), "..", "..", "bench", "machines")
SHAPE = ("--model", "gpt2-tiny", "--seq", 64, "--micro-batch", 4, "--batch-tokens", 512,
         "--recompute", "none", "--order", "batch")
OPEN = ("--model", "gpt2-tiny", "--seq", 64, "--micro-batch", 1, "--batch-tokens", 32 * 64, "--recompute", "none")
ON_DEVICE = ("--place", "weights=device,grads=device,optimizer=device,acts=device")
FREE_MOVES = {name: {"bytes_per_s": 1e30, "cores": 0} for name in
              "upload download update update_on_device finish zero read write gather reduce".split()}
MACHINE = {"spillway_machine": 2, "host_bytes": 1 << 36,
           "device": {"name": "a GPU", "memory_bytes": 1 << 35, "memory_bytes_per_s": 1e30, "fp32_flops_per_s": 1e9,
                      "tf32_flops_per_s": 4e9,
                      "bf16_flops_per_s": 1e9, "fp16_flops_per_s": 1e9, "attention_forward_flops_per_s": 1e9,
                      "attention_backward_flops_per_s": 1e9, "attention_tile_rows": 0, "op_s": 0},
           "rates": {**FREE_MOVES, "cores": 4, "compute_cores": 0, "read_write_slowdown": 1, "io_latency_s": 0,
                     "commit_s": 0, "comm_latency_s": 0, "op_s": 0, "queued_op_s": 0}}


def described(name, device=(), rates=(), **more):
    machine = copy.deepcopy(MACHINE)
    machine.update(more)
    machine["device"].update(device)
    machine["rates"].update(rates)
    return program.write(os.path.join(SCRATCH, name), json.dumps(machine))


def plan(machine, *more):
    return ["plan", *SHAPE, "--machine", machine, *more]


def report(machine, *more):
    return json.loads(program.must(*plan(machine, *more), "--json").out)


def step_s(machine, *more):
    return report(machine, *ON_DEVICE, *more)["predicted"]["plain"]["step_s"]


def arithmetic_is_counted():
    """Where only products take time, a step is 6 operations a parameter that multiplies and token, and attention's two
    products forward and five backward of the pairs that it sees, and of half a tile more a query where there are tiles."""
    seq, tokens = 64, 512
    config = program.read_json(os.path.join(exported_config(), "config.json"))
    hidden, layers, vocab = config["n_embd"], config["n_layer"], config["vocab_size"]
    products = 6 * (12 * layers * hidden * hidden + vocab * hidden) * tokens
    attention = 7 * 2 * hidden * layers * (seq + 1) / 2 * tokens
    problems = []
    found = step_s(described("plain"))
    if abs(found / ((products + attention) / 1e9) - 1) > 1e-6:
        problems.append(f"a step takes {found} s instead of {(products + attention) / 1e9} s")
    tiled = step_s(described("tiled", device={"attention_tile_rows": 16}))
    if abs(tiled / ((products + attention * (seq + 1 + 16) / (seq + 1)) / 1e9) - 1) > 1e-6:
        problems.append(f"in tiles of 16 queries a step takes {tiled} s")
    faster = step_s(described("faster", device={"bf16_flops_per_s": 2e9, "attention_forward_flops_per_s": 2e9,
                                                "attention_backward_flops_per_s": 2e9}))
    if abs(found / faster - 2) > 1e-6:
        problems.append(f"twice the speed makes {faster} s of {found} s")
    tf32 = [step_s(described("tf32", device={"attention_forward_flops_per_s": 1e12,
                                             "attention_backward_flops_per_s": 1e12}), "--precision", precision)
            for precision in ("fp32", "tf32")]
    if abs(tf32[0] / tf32[1] - 4) > 0.2:
        problems.append(f"fp32 and tf32 take {tf32} s")
    ranged = {"low": 5e8, "expected": 1e9, "high": 2e9, "why": "for the test"}
    bounds = report(described("ranged", device={"bf16_flops_per_s": ranged, "attention_forward_flops_per_s": ranged,
                                                   "attention_backward_flops_per_s": ranged}), *ON_DEVICE)["predicted"]["bounds"]
    if abs(bounds["fast_s"] * 2 / found - 1) > 1e-6 or abs(bounds["slow_s"] / 2 / found - 1) > 1e-6:
        problems.append(f"rates from half to twice make {bounds} of {found} s")
    assumed = {"low": 1, "expected": 1e9, "high": 1e30, "why": "for the test"}
    if step_s(described("assumed", device={"bf16_flops_per_s": assumed})) != found:
        problems.append("of an assumed number another than the expected one counts")
    ops = step_s(described("ops", device={"op_s": 1e-3}))
    if not ops > found + 0.05:
        problems.append(f"a millisecond an op makes {ops} s of {found} s")
    return problems


def exported_config():
    folder = os.path.join(SCRATCH, "exported")
    if not os.path.isdir(folder):
        data = program.write(os.path.join(SCRATCH, "data.txt"), program.text(3, 4000))
        run = os.path.join(SCRATCH, "run")
        program.must("train", "--model", "gpt2-tiny", *program.SHAPE, "--init", "--data", data, "--run", run, "--steps", 1)
        program.must("export", run, folder)
    return folder


def the_order_is_chosen_by_price():
    """All micro-batches at a time, or fewer: what is predicted to be fastest; and fewer where all do not fit."""
    problems = []
    slow_link = {name: {"bytes_per_s": 1e6, "cores": 0} for name in ("upload", "download")}
    for rates, more in (({}, ()), (slow_link, ("--place", "optimizer=host")), (slow_link, ("--place", "weights=host")),
                        ({"update": {"bytes_per_s": 1e6, "cores": 4}}, ("--place", "optimizer=host", "--update", "host"))):
        machine = described("open", rates=rates)
        found = json.loads(program.must("plan", *OPEN, "--machine", machine, *more, "--json").out)
        prices = {order["group"]: order["step_s"] or order["least_s"] for order in found["order_prices"]}
        if list(prices) != [32, 16, 4, 1] or prices[found["group"]] > 1.006 * min(prices.values()):
            problems.append(f"{more}: group {found['group']} of {found['order_prices']}")
        for order in (order for order in found["order_prices"] if order["least_s"] is not None):
            every = json.loads(program.must("plan", *OPEN, "--machine", machine, *more, "--order", order["group"],
                                            "--json").out)["predicted"]["plain"]["step_s"]
            if every * 1.006 < found["predicted"]["plain"]["step_s"]:
                problems.append(f"{more}: --order {order['group']} takes {every} s, and what is chosen {found['predicted']}")
        named = json.loads(program.must("plan", *OPEN, "--machine", machine, *more, "--order", 4, "--json").out)
        if named["order_prices"] != [] or named["group"] != 4:
            problems.append(f"{more}: --order 4 is group {named['group']} of {named['order_prices']}")
    whole = json.loads(program.must("plan", *OPEN, *ON_DEVICE, "--machine", described("large"), "--order", "layer",
                                    "--json").out)["peak_bytes"]["device"]
    short = described("short", device={"memory_bytes": int(whole * 0.9)})
    program_said = program.refused("all at once", ["plan", *OPEN, *ON_DEVICE, "--machine", short, "--order", "layer"],
                                   "--device-memory")
    group = json.loads(program.must("plan", *OPEN, *ON_DEVICE, "--machine", short, "--json").out)["group"]
    if not group < 32:
        problems.append(f"group {group} where all do not fit")
    return problems + program_said


def planning_takes_little_memory():
    """Whatever the number of micro-batches and chunks: a plan of 70 billion parameters stays below 1 GiB, and one that would
    not is refused with the way on before it takes more. Each is one plan: a search keeps no more than the best and the next."""
    problems, machine = [], os.path.join(MACHINES, "rtx4090.json")
    large = ("--model", "llama-70b", "--batch-tokens", 262144, "--order", "layer", "--recompute", "all", "--update", "host",
             "--place", "weights=nvme,grads=nvme,optimizer=nvme,acts=nvme")
    long = ("--model", "gpt2-tiny", "--batch-tokens", 2097152, "--micro-batch", 1, "--seq", 16)
    for more, code, expected in ((large, 0, "a run of 1000 steps takes"),
                                 ((*large, "--chunk-grains", 16), 1, "a larger --micro-batch"),
                                 ((*long, "--order", "layer"), 1, "a larger --micro-batch")):
        command = program.command("plan", "--machine", machine, *more)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
            said = child.stdout.read()
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != code or expected not in said:
            problems.append(f"{more}: exit {child.returncode} instead of {code}: {said[-500:]}")
        if usage.ru_maxrss >= 1 << 20:
            problems.append(f"{more}: {usage.ru_maxrss} KiB of memory")
    return problems


def planned_with_layers(layers):
    """Plans so many layers of hidden size 25,600 for 1,024 GPUs of 64 nodes; returns the answer, the processor time in seconds
    and the peak memory in KiB."""
    config = {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 25600, "n_layer": layers, "n_head": 200, "n_positions": 1024}
    folder = os.path.join(SCRATCH, f"layers-{layers}")
    os.makedirs(folder, exist_ok=True)
    program.write(os.path.join(folder, "config.json"), json.dumps(config))
    words = program.command("plan", "--model", folder, "--machine", os.path.join(MACHINES, "dgx2.json"), "--ranks", 1024,
                            "--nodes", 64, "--zero", 3, "--tiles", 25, "--precision", "fp16", "--seq", 1024,
                            "--micro-batch", 1, "--batch-tokens", 1 << 20, "--json")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        said = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise RuntimeError(f"exit {child.returncode}: {said[-500:]}")
    return json.loads(said), usage.ru_utime + usage.ru_stime, usage.ru_maxrss


def trillions_take_little_to_plan():
    """A trillion parameters take less than 1 GiB, and at most twice the time of a quarter of the layers. The time is the
    processor's, which other tests do not change; a sanitizer, with which SW_COUNTER is not there, does."""
    problems, (found, taken, memory), (_, quarter, _) = [], planned_with_layers(128), planned_with_layers(32)
    if taken > 2 * quarter:  # the other tests' use of caches, if it was not the planner: the lesser of two
        taken, quarter = min(taken, planned_with_layers(128)[1]), min(quarter, planned_with_layers(32)[1])
    if not 1e12 < found["parameters"] < 1.02e12 or (found["ranks"], found["zero"], found["nodes"]["count"]) != (1024, 3, 64):
        problems.append(f"{found['parameters']} parameters, {found['ranks']} ranks, {found['zero']}, {found['nodes']}")
    if memory >= 1 << 20 or (taken > 2 * quarter and "SW_COUNTER" in os.environ):
        problems.append(f"planning took {taken:.1f} s, a quarter of the layers {quarter:.1f} s, and {memory} KiB")
    return problems


def order_and_updates_are_chosen_together():
    """No named order, with its own choice of where updates run, is faster than what is chosen: also where orders tie as
    long as the host updates, and not when the device does."""
    problems, h100 = [], ("--machine", os.path.join(MACHINES, "h100.json"))
    for groups, shape in (((16, 4, 1), ("qwen2.5-1.5b", "--seq", 1024, "--micro-batch", 4, "--batch-tokens", 131072,
                                        "--place", "weights=device,grads=device,optimizer=host,acts=device")),
                          ((1,), ("llama-8b", "--seq", 2048, "--micro-batch", 1, "--batch-tokens", 65536, "--place",
                                  "grads=device,optimizer=host"))):
        arguments = ("plan", "--precision", "bf16", *h100, "--json", "--model", *shape)
        chosen = json.loads(program.must(*arguments).out)
        found = {}
        for group in groups:
            found[group] = json.loads(program.must(*arguments, "--order", group).out)["predicted"]["plain"]["step_s"]
        step = chosen["predicted"]["plain"]["step_s"]
        if not step < 1.006 * min(found.values()):
            problems.append(f"{shape}: {step} s in groups of {chosen['group']}, by order {found}")
    return problems


def the_drive_takes_only_what_memory_cannot():
    """Gradients and records stay in memory where both fit, though intermediates could have the room."""
    problems = []
    for more in ((), ("--place", "optimizer=host")):
        found = json.loads(program.must(
            "plan", "--model", "llama-8b", "--precision", "bf16", "--seq", 2048, "--micro-batch", 1, "--batch-tokens",
            65536, "--order", 4, "--machine", os.path.join(MACHINES, "h100.json"), "--json", *more).out)
        away = {state: tiers.count("nvme") for state, tiers in found["placement"].items() if "nvme" in tiers}
        if away:
            problems.append(f"{more}: units on the drive {away}")
    return problems


def budgets_are_its_own():
    problems = []
    small = described("small", device={"memory_bytes": 1 << 19})
    problems += program.refused("a GPU of 512 KiB", plan(small, *ON_DEVICE), "--device-memory", watched=[SCRATCH])
    text = program.must(*plan(described("large"))).out
    if "predicted for a machine with a GPU" not in " ".join(text.split()) or "30.00 GiB" not in text or f"{0.8 * 64:.2f} GiB" not in text:
        problems.append(f"its name and budgets are not said: {text}")
    return problems


def shipped_ones_are_read():
    problems = []
    names = sorted(name for name in os.listdir(MACHINES) if name.endswith(".json"))
    for name in names:
        found = report(os.path.join(MACHINES, name), "--ranks", 2)
        if not found["predicted"]["plain"]["step_s"] > 0:
            problems.append(f"{name}: {found['predicted']}")
    return problems if names else ["there are none"]


def shipped_ones_have_names():
    """Each file's name stands for it, in any folder, and a name counts before a file of that name."""
    problems, elsewhere = [], os.path.join(SCRATCH, "elsewhere")
    os.makedirs(elsewhere)
    names = sorted(name.removesuffix(".json") for name in os.listdir(MACHINES) if name.endswith(".json"))
    program.write(os.path.join(elsewhere, names[0]), "no machine")
    said = program.must("plan", "--help").out
    for name in names:
        by_name = program.run(*plan(name, "--json"), cwd=elsewhere).out
        if by_name != program.must(*plan(os.path.join(MACHINES, name + ".json"), "--json")).out:
            problems.append(f"{name} is not its file")
        if f"\n  {name} " not in said:
            problems.append(f"--help does not list {name}")
    problems += program.refused("a mistyped name", plan("rtx409"), ", ".join(names), "did you mean rtx4090?")
    return problems + program.refused("no name", plan(""), "--machine is empty", status=2)


NODE = {"devices": 4, "hop_s": 0, "network_bytes_per_s": 1e30, "network_hop_s": 0}
RANKS = ("--model", "gpt2-tiny", "--seq", 64, "--micro-batch", 1, "--batch-tokens", 1024, "--recompute", "none", "--order",
         "batch", "--precision", "bf16")


def on_nodes(machine, *more):
    return json.loads(program.must("plan", *RANKS, "--machine", machine, *more, "--json").out)


def nodes_slow_the_exchange():
    """The network between nodes takes what it should: twice its bytes' time where it is half as fast, and its hops."""
    problems = []
    exchange = lambda found: found["predicted"]["plain"]["lane_busy_s"]["comm"]
    machines = {rate: described(f"network-{rate}", node={**NODE, "network_bytes_per_s": rate}) for rate in (5e5, 1e6)}
    slow, fast = (on_nodes(machine, "--ranks", 16) for machine in machines.values())
    if slow["nodes"]["count"] != 4 or slow["ranks"] != 16 or abs(exchange(slow) / exchange(fast) - 2) > 1e-6:
        problems.append(f"of a network half as fast: {slow['nodes']}, {exchange(slow)} s instead of {2 * exchange(fast)} s")
    within = on_nodes(machines[5e5], "--ranks", 4)
    if within["nodes"]["count"] != 1 or not exchange(within) < 1e-3 * exchange(slow):
        problems.append(f"one node waits for the network: {within['nodes']}, {exchange(within)} s")
    more = on_nodes(machines[5e5], "--ranks", 16, "--nodes", 8)
    if more["nodes"]["count"] != 8 or not exchange(more) > exchange(slow):
        problems.append(f"eight nodes take {exchange(more)} s, and four {exchange(slow)} s")
    hops = on_nodes(described("hops", node={**NODE, "network_hop_s": 1}), "--ranks", 16)
    collectives = hops["lanes"]["comm"]["ops"]
    if abs(exchange(hops) / (3 * collectives) - 1) > 1e-6:
        problems.append(f"{collectives} collectives of 3 hops between nodes take {exchange(hops)} s")
    for node in (slow, more):
        host = node["peak_bytes"]["host"] * 16 // node["nodes"]["count"]
        if node["nodes"]["node_host_bytes"] != host:
            problems.append(f"the ranks of a node take {host} bytes of the host, not {node['nodes']}")
    said = program.must("plan", *RANKS, "--machine", machines[5e5], "--ranks", 16, "--nodes", 8).out
    if "16 ranks on 8 nodes: each GPU does " not in " ".join(said.split()):
        problems.append(f"the answer has no nodes: {said}")
    return problems


def groups_across_nodes_are_priced():
    """Where links within nodes are free, the exchanges of tensor groups and of the ranks with the same part take what leaves
    the nodes at the network's rate, and the answer says what the same groups within nodes would save."""
    problems, network = [], 1e6
    machine = described("grouped", node={**NODE, "network_bytes_per_s": network})
    exchange = lambda found: found["predicted"]["plain"]["lane_busy_s"]["comm"]
    across = on_nodes(machine, "--ranks", 8, "--nodes", 4, "--tensor", 4)
    within = on_nodes(machine, "--ranks", 8, "--nodes", 2, "--tensor", 4)
    for what, found, nodes in (("across", across, 2), ("within", within, 1)):
        expected = found["sent"]["between_bytes"] / network
        if found["tensor"]["nodes"] != nodes or abs(exchange(found) / expected - 1) > 0.01:
            problems.append(f"{what} nodes: {found['tensor']}, {exchange(found)} s instead of {expected} s")
    # Reductions send to the 2 of 3 peers of a group that lie on the other node, gathers to 1, and the one data partner is always there.
    if not across["sent"]["between_bytes"] > 1.3 * within["sent"]["between_bytes"]:
        problems.append(f"across nodes {across['sent']}, within them {within['sent']}")
    step, saved = across["predicted"]["plain"]["step_s"], across["tensor"]["within_node_step_s"]
    if within["tensor"]["within_node_step_s"] is not None or abs(saved / within["predicted"]["plain"]["step_s"] - 1) > 0.01:
        problems.append(f"within one node {saved} s, and {within['predicted']['plain']['step_s']} s where that is so")
    said = program.must("plan", *RANKS, "--machine", machine, "--ranks", 8, "--nodes", 4, "--tensor", 4)
    price = f"the tensor groups of 4 ranks span 2 nodes: a step takes {program.time_text(step)}, {program.time_text(saved)} within one node; use --tensor 2"
    if price not in said.err:
        problems.append(f"the answer lacks '{price}': {said.err}")
    quiet = program.must("plan", *RANKS, "--machine", machine, "--ranks", 8, "--nodes", 2, "--tensor", 4)
    if "span" in quiet.err:
        problems.append(f"groups within nodes: {quiet.err}")
    return problems


def impossible_nodes_are_refused():
    flat, nodes = described("flat"), described("nodes", node=NODE)
    table = [("no machine", 2, ["--ranks", 4, "--nodes", 2], ["--nodes", "--machine"]),
             ("no node", 1, ["--machine", flat, "--ranks", 4, "--nodes", 2], ["network", '"node"']),
             ("nodes of nothing", 2, ["--machine", nodes, "--ranks", 4, "--nodes", 0], ["--nodes"]),
             ("more nodes than ranks", 2, ["--machine", nodes, "--ranks", 4, "--nodes", 8], ["--ranks 4", "--nodes 8"]),
             ("uneven nodes", 2, ["--machine", nodes, "--ranks", 8, "--nodes", 3], ["--ranks 8", "--nodes 3", "evenly"]),
             ("more GPUs than a node has", 1, ["--machine", nodes, "--ranks", 16, "--nodes", 2], ["4 GPUs", "8 of each"])]
    problems = []
    for what, status, flags, words in table:
        problems += program.refused(what, ["plan", *RANKS, *flags], *words, status=status, watched=[SCRATCH])
    for name, value in (("devices", 0), ("devices", 1.5), ("devices", 5000), ("network_bytes_per_s", 0), ("hop_s", -1),
                        ("network_hop_s", None), ("links", 1)):
        machine = described(f"node-{name}", node={**NODE, name: value})
        problems += program.refused(f"{name} {value}", plan(machine), name, watched=[SCRATCH])
    return problems


def stages_take_the_memory_of_the_paper():
    """Model states of N ranks are 2 bytes of weights, 2 of gradients and 12 of the optimizer a parameter, of which a stage
    shares out more and more (Rajbhandari et al., SC20, section 5); grains and tensors are padded by less than 2%. On
    the drive, where each is alone beside a generation of the optimizer, a rank of stage 1 keeps its shard of the reduced
    gradients: the paper's whole gradients of stage 1 are on the device only until they are reduced."""
    ranks, problems = 8, []
    shape = ("--model", "gpt2-124m", "--batch-tokens", 16384, "--precision", "bf16", "--ranks", ranks, "--machine",
             os.path.join(MACHINES, "h100.json"))
    for stage, expected in enumerate(((2, 2, 12), (2, 2 / ranks, 12 / ranks), (2, 2 / ranks, 12 / ranks),
                                      (2 / ranks, 2 / ranks, 12 / ranks))):
        def bytes_a_parameter(place):
            found = json.loads(program.must("plan", *shape, "--zero", stage, "--place", place, "--json").out)
            return found["peak_bytes"]["nvme"] / found["parameters"]

        optimizer = bytes_a_parameter("optimizer=nvme") / 2
        found = (bytes_a_parameter("optimizer=host,grads=host,weights=nvme") - optimizer,
                 bytes_a_parameter("optimizer=host,weights=host,grads=nvme") - optimizer, optimizer)
        if not all(1 <= one / other < 1.02 for one, other in zip(found, expected)):
            problems.append(f"stage {stage}: weights, gradients and optimizer take {found} bytes a parameter, not {expected}")
    return problems


def its_drive_may_be_limited():
    """--nvme says what the store may take there; the folder is one of the other machine and not looked at."""
    machine, on_drive = described("limited"), ("--place", "optimizer=nvme")
    problems = [] if report(machine, *on_drive, "--nvme", "/not/here:2TB") == report(machine, *on_drive) else ["a large drive matters"]
    return problems + program.refused("a small drive", plan(machine, *on_drive, "--nvme", "/not/here:1MiB"),
                                      "/not/here", "1.00 MiB", watched=[SCRATCH])


def bad_ones_are_refused():
    good = described("good")
    table = [
        ("no file", os.path.join(SCRATCH, "none"), ["none"]),
        ("no JSON", program.write(os.path.join(SCRATCH, "text"), "{"), ["line 1"]),
        ("other JSON", program.write(os.path.join(SCRATCH, "other"), "[1]"), ["spillway_machine"]),
        ("an unknown field", described("unknown", hostbytes=1), ["the machine", "'hostbytes'", "did you mean host_bytes"]),
        ("an unknown field of the device", described("unknown-device", device={"fp32_flops_per_sec": 1}),
         ["device", "'fp32_flops_per_sec'", "did you mean fp32_flops_per_s?"]),
        ("an unknown rate", described("unknown-rate", rates={"colour": 1}), ["rates", "'colour'", "remove it"]),
        ("an unknown field of a rate", described("unknown-part", rates={"read": {"bytes_per_s": 1, "core": 0}}),
         ["read", "did you mean cores?"]),
        ("another version", described("version", spillway_machine=1), ["spillway_machine"]),
        ("half a byte", described("half", device={"memory_bytes": 0.5}), ["memory_bytes"]),
        ("no name", described("no-name", device={"name": ""}), ["name"]),
        ("no device", program.write(os.path.join(SCRATCH, "less"), json.dumps(
            {name: value for name, value in MACHINE.items() if name != "device"})), ["device"]),
        ("a long name", described("long", device={"name": "x" * 64}), ["name"]),
        ("no speed", described("speed", device={"bf16_flops_per_s": 0}), ["bf16_flops_per_s"]),
        ("a word", described("word", device={"op_s": "fast"}), ["op_s"]),
        ("half a tile", described("tile", device={"attention_tile_rows": 0.5}), ["attention_tile_rows"]),
        ("no reason", described("reason", device={"op_s": {"low": 1, "expected": 2, "high": 3}}), ["op_s", "why"]),
        ("low above high", described("low", device={"op_s": {"low": 3, "expected": 2, "high": 1, "why": "x"}}),
         ["op_s", "low"]),
        ("an assumed word", described("assumed", rates={"commit_s": {"low": 0, "expected": "1", "high": 2, "why": "x"}}),
         ["commit_s"]),
        ("too much memory", described("much", host_bytes=1e30), ["host_bytes"]),
        ("a rate of nothing", described("nothing", rates={"upload": {"bytes_per_s": 0, "cores": 0}}), ["bytes_per_s"]),
        ("no rate", described("rate", rates={"update": None}), ["update"]),
    ]
    problems = []
    for what, machine, words in table:
        problems += program.refused(what, plan(machine), *words, watched=[SCRATCH])
    for more, word in ((["--rates", os.path.join(SCRATCH, "rates")], "--rates"), (["--device", "cpu"], "--device cpu")):
        problems += program.refused(word, plan(good, *more), word, status=2, watched=[SCRATCH])
    return problems


def rings_of_a_small_model_are_small():
    """A chunk of 128 grains has room for far more than a unit of it has: rings of such chunks took 200 MB of the host."""
    chunked = report(described("small.json"), "--chunk-grains", 128)
    least = report(described("small.json"), "--chunk-grains", 2)
    return [f"{chunked['peak_bytes'][tier]} bytes of {tier} in large chunks, {least['peak_bytes'][tier]} in small ones"
            for tier in ("host", "device") if chunked["peak_bytes"][tier] > 16 * least["peak_bytes"][tier] + (1 << 24)]


def a_change_that_the_model_cannot_have_is_no_error():
    """Parts of a wide model have vectors that narrow state does not keep, and `plan` tries narrow state by itself."""
    folder = os.path.join(SCRATCH, "wide")
    os.makedirs(folder)
    program.write(os.path.join(folder, "config.json"), json.dumps(
        {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 12288, "n_layer": 8, "n_head": 96, "n_positions": 64,
         "vocab_size": 512}))
    said = program.must("plan", "--model", folder, "--machine", "dgx2", "--ranks", 2, "--tensor", 2, "--seq", 64, "--batch-tokens", 128,
                        "--device-memory", "24GiB", "--host-memory", "4GiB", "--explain").out
    narrow = [line for line in said.splitlines() if "optimizer state 8bit" in line]
    return [] if len(narrow) == 1 and "has no plan that fits" in narrow[0] else [f"narrow state is said to be {narrow}"]


script_test.run(arithmetic_is_counted, a_change_that_the_model_cannot_have_is_no_error, rings_of_a_small_model_are_small, the_order_is_chosen_by_price, planning_takes_little_memory,
                trillions_take_little_to_plan, order_and_updates_are_chosen_together,
                the_drive_takes_only_what_memory_cannot, budgets_are_its_own, shipped_ones_are_read, shipped_ones_have_names,
                nodes_slow_the_exchange, groups_across_nodes_are_priced, impossible_nodes_are_refused, stages_take_the_memory_of_the_paper,
                its_drive_may_be_limited, bad_ones_are_refused)
