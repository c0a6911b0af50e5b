"""Adapters as PEFT's folders: in for train, eval and generate, out of runs, merged into their model; and wrong ones."""

import array
import itertools
import json
import math
import os
import shutil
import struct

import hf_folder
import program
from program import script_test
from ranks_jobs import threads

GOLDEN = os.path.join(os.path.dirname(program.HERE), "data")
SCRATCH = program.scratch_folder()
NEAR = 1e-5  # of losses in fp32
CONFIG, WEIGHTS, PREFIX = "adapter_config.json", "adapter_model.safetensors", "base_model.model."
# That of Mixtral adapts every expert, and that of gpt-oss the tensors that have all experts of a layer.
GPT2, QWEN2, MIXTRAL, GPTOSS = "gpt2-a", "qwen2-a", "mixtral-a", "gptoss-a"
ALL = (GPT2, QWEN2, MIXTRAL, GPTOSS)
FP32 = ("--precision", "fp32", "--threads", 1)


def path(*names):
    return os.path.join(SCRATCH, *names)


def golden(*names):
    return os.path.join(GOLDEN, *names)


def adapter(base):
    return golden("adapter-" + base)


def facts(base):
    return program.read_json(adapter(base) + ".json")


def data(base):
    return program.write(path(base + ".bin"), array.array("H", facts(base)["tokens"]).tobytes())


def train(name, base, *more, steps=None, rate=None):
    """The settings that peft had. Each step takes all of the data."""
    told = facts(base)
    return ["train", "--model", golden(base), "--data", data(base), "--run", path(name), "--steps", steps or len(told["losses"]),
            "--seq", told["seq"], "--micro-batch", told["micro_batch"], "--batch-tokens", told["windows"] * told["seq"],
            "--schedule", "constant", "--warmup", 0, "--lr", told["lr"] if rate is None else rate, "--beta1", told["beta1"],
            "--beta2", told["beta2"], "--eps", told["eps"], "--weight-decay", told["weight_decay"], "--clip", told["clip"], *FP32, *more]


def from_peft(name, base, *more, **changes):
    return train(name, base, "--adapter", adapter(base), *more, **changes)


def run_of(base):
    """A run from the golden adapter, made once."""
    if not os.path.isdir(path("run-" + base)):
        program.must(*from_peft("run-" + base, base))
    return path("run-" + base)


def exported(name, source, *more):
    program.must("export", source, path(name), *more)
    return path(name)


def tensors_of(folder, file=WEIGHTS):
    """Names to type, shape and bytes."""
    with open(os.path.join(folder, file), "rb") as opened:
        header, content = hf_folder.split(opened.read())
    return {name: (entry["dtype"], entry["shape"], content[slice(*entry["data_offsets"])]) for name, entry in header.items()
            if name != "__metadata__"}


def floats(content):
    return struct.unpack(f"<{len(content) // 4}f", content)


def evaluated(source, base, *more):
    return json.loads(program.must("eval", source, "--data", data(base), "--seq", facts(base)["seq"], *FP32, "--json", *more).out)["loss"]


def trains_as_peft_does():
    """From an adapter that PEFT made, with the losses that PEFT had; also resumed, with the adapter's folder gone."""
    problems = []
    for base in ALL:
        expected = facts(base)["losses"]
        losses = [line["loss"] for line in program.steps_of(run_of(base))]
        if len(losses) != len(expected) or not all(abs(a - b) <= NEAR for a, b in zip(losses, expected)):
            problems.append(f"{base}: losses {losses} instead of {expected}")
        shutil.copytree(adapter(base), path("gone"))
        program.must(*train("resumed-" + base, base, "--adapter", path("gone"), steps=3))
        shutil.rmtree(path("gone"))
        program.must("resume", path("resumed-" + base), "--steps", len(expected))
        if program.numbers_of(path("resumed-" + base)) != program.numbers_of(run_of(base)):
            problems.append(f"{base}: other numbers after a resume")
    return problems


def groups_train_as_peft_does():
    """Groups of ranks (--tensor) have the losses of PEFT, too, and export what one rank does but for the order of sums."""
    problems = []
    for base, ranks in ((GPT2, 3), (QWEN2, 2), (QWEN2, 4), (MIXTRAL, 2), (GPTOSS, 2)):
        name, expected = f"group-{base}-{ranks}", facts(base)["losses"]
        arguments = threads(ranks, program.command(*from_peft(name, base, "--tensor", ranks)))
        done = program.limits.run(arguments, capture_output=True, text=True, check=False)
        losses = [line["loss"] for line in program.steps_of(path(name))] if done.returncode == 0 else done.stderr[-500:]
        if done.returncode != 0 or len(losses) != len(expected) or not all(abs(a - b) <= NEAR for a, b in zip(losses, expected)):
            problems.append(f"{name}: losses {losses} instead of {expected}")
            continue
        one, group = (tensors_of(exported(f"{name}-{n}", source)) for n, source in enumerate((run_of(base), path(name))))
        far = [key for key in one for a, b in zip(floats(one[key][2]), floats(group[key][2])) if abs(a - b) > NEAR]
        problems += [] if one.keys() == group.keys() and not far else [f"{name}: other values of {set(far)}"]
    return problems


def what_goes_in_comes_out():
    """Tensor by tensor, of a run of no step and of the folder itself, also as bf16; and what PEFT reads of it."""
    problems = []
    for base in ALL:
        before, told = tensors_of(adapter(base)), program.read_json(os.path.join(adapter(base), CONFIG))
        program.must(*from_peft("still-" + base, base, steps=1, rate=0))
        for name, source, more in (("run", path("still-" + base), ()), ("folder", golden(base), ("--adapter", adapter(base)))):
            folder = exported(f"out-{name}-{base}", source, *more)
            problems += [] if tensors_of(folder) == before else [f"{base}, {name}: other tensors"]
            if sorted(os.listdir(folder)) != [CONFIG, WEIGHTS]:
                problems.append(f"{base}, {name}: {os.listdir(folder)}")
            config = program.read_json(os.path.join(folder, CONFIG))
            kept = ("peft_type", "task_type", "r", "lora_alpha", "bias", "fan_in_fan_out", "rank_pattern", "alpha_pattern")
            problems += [f"{base}, {name}: {key} is {config.get(key)}" for key in kept if config.get(key) != told[key]]
            if config.get("use_rslora", False) != told["use_rslora"]:
                problems.append(f"{base}, {name}: another scale")
            if config["base_model_name_or_path"] != golden(base):
                problems.append(f"{base}, {name}: the base is {config['base_model_name_or_path']}")
        again = exported("again-" + base, golden(base), "--adapter", path("out-run-" + base))
        problems += [] if program.tree(again) == program.tree(path("out-run-" + base)) else [f"{base}: other bytes again"]
        narrow = exported("narrow-" + base, golden(base), "--adapter", adapter(base), "--dtype", "bf16")
        problems += [f"{base}: {name} is {kind}" for name, (kind, _, _) in tensors_of(narrow).items() if kind != "BF16"]
    modules = {base: program.read_json(path("out-run-" + base, CONFIG)) for base in ALL}
    expected = {GPT2: ["attn.c_proj", "c_fc"], MIXTRAL: ["o_proj", "w1", "w3", "w2"], GPTOSS: ["v_proj"],
                QWEN2: ["model.layers.1.self_attn.q_proj", "model.layers.2.self_attn.q_proj",
                        "model.layers.1.self_attn.v_proj", "model.layers.2.self_attn.v_proj"]}
    problems += [f"{base}: modules {modules[base]['target_modules']}" for base in expected
                 if modules[base]["target_modules"] != expected[base]]
    if [modules[base].get("target_parameters") for base in (GPTOSS, MIXTRAL)] != [["gate_up_proj", "down_proj"], None]:
        problems.append("other target_parameters")
    if modules[QWEN2]["modules_to_save"] != ["model.norm"] or modules[GPT2]["modules_to_save"] is not None:
        problems.append("other modules_to_save")
    return problems


def merged_by_hand(base, folder):
    """W + scale·B·A of each adapted matrix, in double."""
    config, weights = program.read_json(os.path.join(folder, CONFIG)), tensors_of(folder)
    scale = config["lora_alpha"] / (math.sqrt(config["r"]) if config.get("use_rslora") else config["r"])
    for name, (_, shape, content) in tensors_of(golden(base), "model.safetensors").items():
        values, module, experts = list(floats(content)), PREFIX + name.removesuffix(".weight"), 1
        if len(shape) == 3:  # of all experts, of which PEFT wraps down around gate and up
            experts, (module, _, last) = shape[0], module.rpartition(".")
            module += "" if last == "down_proj" else ".base_layer"
        if PREFIX + name in weights:
            values = list(floats(weights[PREFIX + name][2]))
        if module + ".lora_A.weight" in weights:
            rank, inputs = config["r"], weights[module + ".lora_A.weight"][1][1]
            a, b = (floats(weights[f"{module}.lora_{which}.weight"][2]) for which in "AB")
            outputs = len(b) // (rank * experts)
            for e, o, i in itertools.product(range(experts), range(outputs), range(inputs)):
                at = i * outputs + o if config["fan_in_fan_out"] or experts > 1 else o * inputs + i
                values[e * inputs * outputs + at] += scale * sum(b[(o * rank + r) * experts + e] * a[(e * rank + r) * inputs + i]
                                                                 for r in range(rank))
        yield name, shape, values


def merged_weights_are_sums():
    """A run and folders merge alike, in one file and in shards; the merged model has the loss of the adapter beside its base."""
    problems = []
    for base in ALL:
        alone = exported("alone-" + base, run_of(base))
        whole = tensors_of(exported("merged-" + base, run_of(base), "--merge"), "model.safetensors")
        for name, shape, values in merged_by_hand(base, alone):
            kind, found_shape, content = whole.pop(name)
            if kind != "F32" or found_shape != shape or any(abs(a - b) > 1e-6 for a, b in zip(floats(content), values)):
                problems.append(f"{base}: {name} is not the sum")
        problems += [f"{base}: unknown {name}" for name in whole]
        exported("folders-" + base, golden(base), "--adapter", alone, "--merge")
        if program.tree(path("folders-" + base)) != program.tree(path("merged-" + base)):
            problems.append(f"{base}: the run and the folders merge into other bytes")
        exported("shards-" + base, run_of(base), "--merge", "--shard-size", "20KiB")
        parts = {}
        for file in os.listdir(path("shards-" + base)):
            parts.update(tensors_of(path("shards-" + base), file) if file.endswith(".safetensors") else {})
        if parts != tensors_of(path("merged-" + base), "model.safetensors"):
            problems.append(f"{base}: other tensors in shards")
        losses = [evaluated(run_of(base), base), evaluated(golden(base), base, "--adapter", alone), evaluated(path("merged-" + base), base)]
        if losses[0] != losses[1] or abs(losses[0] - losses[2]) > NEAR:
            problems.append(f"{base}: losses {losses}")
        if abs(evaluated(golden(base), base, "--adapter", adapter(base)) - facts(base)["losses"][0]) > NEAR:
            problems.append(f"{base}: another loss at the start")
        say = ("--prompt", "abc", "--max-tokens", 12, "--temperature", 0, *FP32)
        texts = [program.must("generate", source, *say, *more).out for source, more in
                 ((run_of(base), ()), (golden(base), ("--adapter", alone)), (path("merged-" + base), ()))]
        problems += [] if texts[0] == texts[1] == texts[2] else [f"{base}: texts {texts}"]
    return problems


def exports_on_the_way_are_adapters():
    program.must(*from_peft("on-the-way", GPT2, "--export-every", 2, steps=4))
    folder = path("on-the-way", "exports", "step-4")
    problems = [] if sorted(os.listdir(folder)) == [CONFIG, WEIGHTS] else [f"exports have {os.listdir(folder)}"]
    return problems + ([] if tensors_of(folder) == tensors_of(exported("at-the-end", path("on-the-way"))) else ["other tensors"])


def flags_that_agree_with_the_adapter():
    """The recipe of a run names the adapter, and what it says of it."""
    program.must(*from_peft("agree", QWEN2, "--lora", 3, "--lora-alpha", 4, "--rslora", steps=2))
    program.must("train", "--recipe", path("agree", "recipe.yaml"), "--run", path("repeated"))
    problems = [] if program.numbers_of(path("agree")) == program.numbers_of(path("repeated")) else ["a recipe has other numbers"]
    program.must(*from_peft("narrow-base", GPT2, "--base-format", "int8", steps=1, rate=0))
    exported("of-narrow", path("narrow-base"), "--merge")
    exported("of-wide", golden(GPT2), "--adapter", adapter(GPT2), "--merge")
    if tensors_of(path("of-narrow"), "model.safetensors") != tensors_of(path("of-wide"), "model.safetensors"):
        problems.append("a run with a base in int8 merges into other weights than those of its model")
    if program.read_json(path("narrow-base", "run.json"))["settings"].get("base_format") != "int8":
        problems.append("--adapter changes --base-format")
    plan = json.loads(program.must("plan", "--model", golden(GPT2), "--adapter", adapter(GPT2), *program.SHAPE, "--json").out)
    same = json.loads(program.must("plan", "--model", golden(GPT2), "--lora", 2, "--lora-alpha", 6, "--lora-targets", "attn.c_proj,c_fc",
                                   *program.SHAPE, "--json").out)
    return problems + ([] if plan["frozen"]["parameters"] == same["frozen"]["parameters"] else ["a plan with other adapters"])


def adapters_of_experts_are_told_as_peft_reads_them():
    """PEFT takes their scale from alpha / rank, and has no dropout; it joins the adapters of all experts, or cannot."""
    scaled = exported("scaled", golden(MIXTRAL), "--adapter", changed("of experts", MIXTRAL, use_rslora=True, lora_dropout=0.1))
    config = program.read_json(os.path.join(scaled, CONFIG))
    problems = [] if abs(config["lora_alpha"] - 3 * math.sqrt(2)) < 1e-12 and not config.get("use_rslora") else [f"{config}"]
    problems += [] if config["lora_dropout"] == 0 else ["an export with dropout"]
    for targets, warns in (("experts", False), ("w2,v_proj", False), ("w1,w2", True), ("*.experts.[013].*", True)):
        name = f"warns {len(targets)}"
        program.must("train", "--model", golden(MIXTRAL), "--data", data(MIXTRAL), "--run", path(name), "--steps", 1, *program.SHAPE,
                     "--lora", 2, "--lora-targets", targets)
        done = program.run("export", path(name), path(name + " out"))
        if done.code != 0 or ("transformers 4 only" in " ".join(done.err.split())) != warns:
            problems.append(f"{targets}: {done.code}, {done.err}")
    return problems + program.refused("dropout", train("never", MIXTRAL, "--adapter", path("wrong", "of experts")), "without dropout",
                                      watched=[SCRATCH])


def other_flags_are_refused():
    rows = [(flag, from_peft("never", GPT2, flag, *value), flag, "adapter") for flag, *value in
            (("--lora", 4), ("--lora-alpha", 3), ("--rslora",), ("--lora-targets", "all"), ("--lora-dropout", 0.5),
             ("--modules-to-save", "lm_head"))]
    problems = program.refused_each(rows, watched=[SCRATCH])
    problems += program.refused("--freeze", from_peft("never", GPT2, "--freeze", "embedding"), "--freeze", status=2, watched=[SCRATCH])
    merge = "--merge"
    problems += program.refused_each([
        ("nothing to merge", ["export", golden(GPT2), path("never"), merge], "no adapters", merge),
        ("an adapter and a run", ["eval", run_of(GPT2), "--adapter", adapter(GPT2), "--data", data(GPT2)], "--adapter", "a run"),
        ("a run as adapter", ["export", golden(GPT2), path("never"), "--adapter", run_of(GPT2)], CONFIG),
        ("no folder", ["export", golden(GPT2), path("never"), "--adapter", path("nowhere")], "nowhere"),
        ("another model's", ["export", golden("llama-a"), path("never"), "--adapter", adapter(QWEN2)], "another model"),
        ("another family's", ["export", golden("llama-a"), path("never"), "--adapter", adapter(GPT2)], "of this model")],
        watched=[SCRATCH])
    return problems


def changed(name, base=GPT2, config=None, weights=None, add=None, **fields):
    """A copy of a golden adapter with other fields, and its weights as a function of their dictionary makes them."""
    folder = path("wrong", name)
    os.makedirs(path("wrong"), exist_ok=True)
    shutil.copytree(adapter(base), folder)
    described = {**program.read_json(os.path.join(folder, CONFIG)), **fields}
    program.write(os.path.join(folder, CONFIG), config if config is not None else
                  json.dumps({key: value for key, value in described.items() if value is not ...}))
    found = {key: (shape, list(floats(content))) for key, (_, shape, content) in tensors_of(adapter(base)).items()}
    found.update(add or {})
    if weights is not None:
        weights(found)
    program.write(os.path.join(folder, WEIGHTS), hf_folder.safetensors(found))
    return folder


FIRST = PREFIX + "transformer.h.0.attn.c_proj.lora_"
DOWN = PREFIX + "model.layers.1.mlp.experts.lora_"  # PEFT wraps it around that of gate and up
UP = DOWN.replace(".lora_", ".base_layer.lora_")


def spoil(name, change):
    """A copy with one of its files changed by a function of its path."""
    folder = changed(name)
    change(folder)
    return folder


def cut(file):
    return lambda folder: os.truncate(os.path.join(folder, file), os.path.getsize(os.path.join(folder, file)) - 3)


def pickled(folder):
    os.remove(os.path.join(folder, WEIGHTS))
    program.write(os.path.join(folder, "adapter_model.bin"), b"\x80")


def fifo(file):
    def change(folder):
        os.remove(os.path.join(folder, file))
        os.mkfifo(os.path.join(folder, file))
    return change


def drop(*names):
    return lambda found: [found.pop(name) for name in names]


def reshape(name, shape):
    return lambda found: found.update({name: (shape, [0.5] * hf_folder.count(shape))})


def put_nan(name):
    return lambda found: found[name][1].__setitem__(5, math.nan)


def dropout_is_taken_over():
    """From a folder to a run, and from the run to its exports."""
    folder = changed("dropped", lora_dropout=0.25)
    program.must(*train("dropped", GPT2, "--adapter", folder, steps=3))
    program.must(*from_peft("all-kept", GPT2, steps=3))
    found = program.read_json(os.path.join(exported("dropped-out", path("dropped")), CONFIG))["lora_dropout"]
    problems = [] if found == 0.25 else [f"the export's rate is {found}"]
    same = program.numbers_of(path("dropped")) == program.numbers_of(path("all-kept"))
    return problems + (["the numbers are those without dropout"] if same else [])


def wrong_adapters_are_refused():
    """In a sentence that names the field, the tensor or the file, and before anything is written."""
    one = ([1], [0.0])
    fields = [("peft_type", "IA3", "LORA"), ("peft_type", ..., "no 'peft_type'"), ("task_type", "SEQ_CLS", "CAUSAL_LM"),
              ("bias", "all", "bias"), ("use_dora", True, "true"), ("use_qalora", True, "true"), ("lora_bias", True, "true"),
              ("target_parameters", ["experts"], "experts"), ("layer_replication", [[0, 2]], "[[0"),
              ("trainable_token_indices", [5], "[5"), ("alora_invocation_tokens", [5], "[5"), ("use_bdlora", {"nblocks": 2}, "nblocks"),
              ("megatron_config", {"a": 1}, "megatron"), ("a_field_of_tomorrow", "on", "on"), ("init_lora_weights", "pissa", "pissa"),
              ("init_lora_weights", 3, "3"), ("rank_pattern", {"c_fc": 4}, "one rank"), ("rank_pattern", [4], "object"),
              ("alpha_pattern", {"c_fc": 9}, "one alpha"), ("r", 0, "from 1 to 1024"), ("r", 1025, "from 1 to 1024"), ("r", 2.5, "2.5"),
              ("r", ..., "no 'r'"), ("lora_alpha", 0, "above 0"), ("lora_alpha", "8", "above 0"), ("lora_alpha", 2e6, "1e6"), ("lora_alpha", ..., "no 'lora_alpha'"),
              ("use_rslora", 1, "true or false"), ("lora_dropout", 1, "below 1"), ("lora_dropout", "0.1", "below 1"),
              ("target_modules", [3], "list of names"), ("modules_to_save", {"a": 1}, "list of names")]
    table = [(f"{name} is {value}", changed(f"field {number}", **{name: value}), name, word)
             for number, (name, value, word) in enumerate(fields)]
    table += [("another rank", changed("rank", r=3), FIRST + "A.weight", "[2, 48]", "[3, 48]"),
              ("A alone", changed("no B", weights=drop(FIRST + "B.weight")), FIRST + "B.weight", "has no tensor"),
              ("B alone", changed("no A", weights=drop(FIRST + "A.weight")), FIRST + "A.weight", "has no tensor"),
              ("a module less", changed("neither", weights=drop(FIRST + "A.weight", FIRST + "B.weight")), FIRST + "A.weight",
               "target_modules"),
              ("a module less, told as an old PEFT does",
               changed("old", weights=drop(FIRST + "A.weight", FIRST + "B.weight"), exclude_modules=..., layers_to_transform=...),
               FIRST + "A.weight", "target_modules"),
              ("a wide A", changed("wide", weights=reshape(FIRST + "A.weight", [2, 49])), FIRST + "A.weight", "[2, 49]", "[2, 48]"),
              ("a long B", changed("long", weights=reshape(FIRST + "B.weight", [49, 2])), FIRST + "B.weight", "[49, 2]"),
              ("a vector", changed("vector", weights=reshape(FIRST + "A.weight", [96])), FIRST + "A.weight", "[96]"),
              ("an unknown tensor", changed("unknown", add={"other": one}), "'other'"),
              ("an adapter of the table", changed("table", add={PREFIX + "transformer.wte.lora_embedding_A": one}), "wte.lora_embedding_A"),
              ("a layer more", changed("layer", add={FIRST.replace(".0.", ".2.") + "A.weight": one}), ".2.", "of this model"),
              ("a magnitude", changed("dora", add={FIRST + "magnitude_vector": one}), "magnitude_vector"),
              ("a wrong norm", changed("norm", QWEN2, add={PREFIX + "model.norm.weight": ([47], [0.5] * 47)}), "model.norm", "[47]"),
              ("no tensor at all", changed("none", weights=dict.clear, target_modules=None), "no tensor"),
              ("NaN", changed("nan", weights=put_nan(FIRST + "B.weight")), FIRST + "B.weight", "not finite", "element 5"),
              ("experts without down", changed("no down", GPTOSS, weights=drop(DOWN + "A.weight", DOWN + "B.weight")), "target_parameters"),
              ("experts without B", changed("no up B", GPTOSS, weights=drop(UP + "B.weight")), UP + "B.weight", "has no tensor"),
              ("experts with a short A", changed("short up", GPTOSS, weights=reshape(UP + "A.weight", [8, 32])), UP, "[8, 32]", "[10, 32]"),
              ("experts with NaN", changed("nan up", GPTOSS, weights=put_nan(UP + "B.weight")), UP + "B.weight", "not finite", "element 5"),
              ("no configuration", spoil("no config", lambda folder: os.remove(os.path.join(folder, CONFIG))), "no " + CONFIG),
              ("no weights", spoil("no weights", lambda folder: os.remove(os.path.join(folder, WEIGHTS))), "no " + WEIGHTS, "download"),
              ("pickled weights", spoil("pickled", pickled), "adapter_model.bin", "save_pretrained"),
              ("cut weights", spoil("cut", cut(WEIGHTS)), WEIGHTS, "truncated"), ("a cut configuration", spoil("cut config", cut(CONFIG)), CONFIG, "JSON"),
              ("a list", changed("list", config="[]"), CONFIG, "object"), ("a FIFO of weights", spoil("fifo", fifo(WEIGHTS)), WEIGHTS, "regular"),
              ("a FIFO of fields", spoil("fifo config", fifo(CONFIG)), CONFIG, "regular")]
    rows = []
    for what, folder, *words in table:
        base = QWEN2 if what == "a wrong norm" else GPTOSS if what.startswith("experts") else GPT2
        rows.append((what, ["export", golden(base), path("never"), "--merge", "--adapter", folder], *words))
    rows += [(what + ", train", train("never", GPT2, "--adapter", folder), *words) for what, folder, *words in table[-3:]]
    return program.refused_each(rows, watched=[SCRATCH])


def inspect_prints_what_an_adapter_changes():
    """The model may be a folder or a run of it."""
    problems = []
    for base, words in ((GPT2, ("rank 2", "alpha 6,", "scale 3\n", "modules: attn.c_proj,c_fc\n", "of gpt2-a", "parameters: 1344\n")),
                        (QWEN2, ("rank 3", "(rank-stabilized), scale 2.31\n", "trained whole: model.norm\n",
                                 "model.layers.2.self_attn.v_proj"))):
        for model in (golden(base), run_of(base)):
            out = program.must("inspect", adapter(base), "--model", model).out
            problems += [f"{base}: no {word!r} in {out!r}" for word in words if word not in out]
    started = program.must(*from_peft("said", QWEN2, steps=1)).err
    return problems + ([] if "rank 3, scale 2.31" in started else ["the start of a run does not describe its adapters"])


def harmless_fields():
    """Fields of other versions that are off, and lists of layers, change nothing."""
    folder = changed("harmless", a_field_of_tomorrow=None, another={}, use_dora=False, layers_to_transform=[0, 1], lora_bias=False,
                     rank_pattern={"c_fc": 2}, alpha_pattern={"c_fc": 6.0}, init_lora_weights="gaussian", peft_version="99")
    exported("harmless-out", golden(GPT2), "--adapter", folder)
    return [] if tensors_of(path("harmless-out")) == tensors_of(adapter(GPT2)) else ["other tensors"]


script_test.run(trains_as_peft_does, groups_train_as_peft_does, what_goes_in_comes_out, merged_weights_are_sums, exports_on_the_way_are_adapters,
                flags_that_agree_with_the_adapter, adapters_of_experts_are_told_as_peft_reads_them, other_flags_are_refused, dropout_is_taken_over,
                inspect_prints_what_an_adapter_changes, wrong_adapters_are_refused, harmless_fields)
