"""Folders that transformers made, one of each family, through the program: trained, resumed, exported, written from."""

import json
import os
import re
import shutil

import hf_folder
import program
from program import script_test

GOLDEN = os.path.join(os.path.dirname(program.HERE), "data")
SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(8, 20000))
FAMILIES = ("llama-a", "mistral-a", "qwen2-a", "qwen3-a", "phi3-a", "mixtral-a", "qwen3-moe-a", "olmoe-a",
            "qwen2-moe-a", "gptoss-a", "gemma3-a", "bloom-a")
EXPERTS = {"mixtral-a": 4, "qwen3-moe-a": 7, "olmoe-a": 5, "qwen2-moe-a": 5}
STEPS, HALF = 6, 3


def path(*names):
    return os.path.join(SCRATCH, *names)


def train(family, run, steps, place, *more, rate="2e-3"):
    program.must("train", "--model", os.path.join(GOLDEN, family), "--data", DATA, "--run", path(run), "--steps", steps,
                 "--schedule-steps", STEPS, "--lr", rate, *program.SHAPE, "--place", place, *more)


def tensors_of(folder):
    """Names to types, shapes and bytes."""
    with open(os.path.join(folder, "model.safetensors"), "rb") as file:
        header, data = hf_folder.split(file.read())
    return {name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
            for name, entry in header.items() if name != "__metadata__"}


def a_resumed_run_has_the_same_numbers():
    problems = []
    for family in FAMILIES:
        train(family, f"{family}-whole", STEPS, "grads=device,optimizer=host")
        train(family, f"{family}-parts", HALF, "weights=nvme,grads=nvme,optimizer=nvme,acts=nvme")
        program.must("resume", path(f"{family}-parts"), "--steps", STEPS, "--place", "optimizer=nvme")
        whole, parts = (program.numbers_of(path(f"{family}-{run}")) for run in ("whole", "parts"))
        if len(whole) != STEPS or whole != parts:
            problems.append(f"{family}: {whole} at once and {parts} in parts")
    return problems


def what_is_not_trained_stays():
    """At a rate of 0 the export holds the bytes that came."""
    problems = []
    for family in FAMILIES:
        train(family, f"{family}-still", 1, "optimizer=nvme", "--precision", "fp32", rate=0)
        program.must("export", path(f"{family}-still"), path(f"{family}-out"))
        # BLOOM's own files have names without the model's.
        wanted, found = ({name.removeprefix("transformer."): tensor for name, tensor in tensors_of(folder).items()}
                         for folder in (os.path.join(GOLDEN, family), path(f"{family}-out")))
        problems += [f"{family}: {name} differs" for name in program.differences(wanted, found)]
    return problems


def an_export_is_a_model():
    problems = []
    for family in FAMILIES:
        program.must("export", path(f"{family}-whole"), path(f"{family}-end"))
        texts = [program.must("generate", path(source), "--prompt", "a", "--max-tokens", 20, "--temperature", 0,
                              "--precision", "fp32").out for source in (f"{family}-whole", f"{family}-end")]
        if texts[0] != texts[1] or len(texts[0]) < 20:
            problems.append(f"{family}: the run writes {texts[0]!r}, its export {texts[1]!r}")
    return problems


def join_experts(family, folder, experts=None):
    """Writes the family's folder with the experts of a layer in two tensors, as transformers does on request."""
    joined = {}
    for name, (kind, shape, data) in tensors_of(os.path.join(GOLDEN, family)).items():
        name = name.replace("block_sparse_moe", "mlp")
        before, _, expert = name.partition(".experts.")
        number, _, matrix = expert.partition(".")
        if not expert:
            joined[name] = (kind, shape, data)
        elif experts is None or int(number) < experts:
            down = matrix in ("w2.weight", "down_proj.weight")
            parts = joined.setdefault(f"{before}.experts.{'down_proj' if down else 'gate_up_proj'}", (kind, [shape], {}))
            parts[2][int(number), matrix in ("w3.weight", "up_proj.weight")] = data
    header, pieces, end = {}, [], 0
    for name, (kind, shape, data) in joined.items():
        if isinstance(data, dict):
            rows, cols = shape[0]
            count = 1 + max(number for number, _ in data)
            shape, data = [count, len(data) // count * rows, cols], b"".join(data[part] for part in sorted(data))
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [end, end + len(data)]}
        pieces.append(data)
        end += len(data)
    os.makedirs(folder)
    shutil.copy(os.path.join(GOLDEN, family, "config.json"), folder)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(hf_folder.join(header, b"".join(pieces)))


def joined_experts_are_read():
    """The export has the bytes of the folder whose experts are separate, which the joined ones were made of."""
    problems = []
    for family in EXPERTS:
        for more in ((),) if family != "mixtral-a" else ((), ("--freeze", "*.experts.[13].*")):
            run = f"{family}-joined{len(more)}"
            join_experts(family, path(f"{run}-in"))
            program.must("train", "--model", path(f"{run}-in"), "--data", DATA, "--run", path(run), "--steps", 1, "--lr", 0,
                         *program.SHAPE, "--precision", "fp32", "--place", "weights=nvme,optimizer=nvme", *more)
            program.must("export", path(run), path(f"{run}-out"))
            wanted, found = tensors_of(os.path.join(GOLDEN, family)), tensors_of(path(f"{run}-out"))
            problems += [f"{run}: {name} differs" for name in program.differences(wanted, found)]
    join_experts("mixtral-a", path("few-in"), experts=2)
    done = program.run("train", "--model", path("few-in"), "--data", DATA, "--run", path("few"), "--steps", 1, *program.SHAPE)
    if done.code == 0 or "experts.gate_up_proj' in" not in done.err or "by config.json it is" not in done.err:
        problems.append(f"too few experts: {done.code}, {done.err!r}")
    return problems


def frozen_experts_stay_and_the_others_train_alike():
    """In one step without clipping, what is trained moves by the same bits whether some experts are frozen or not."""
    problems = []
    for family in EXPERTS:
        for run, more in (("all", ()), ("some", ("--freeze", "*.experts.[13].*"))):
            train(family, f"{family}-{run}", 1, "optimizer=nvme", "--precision", "fp32", "--clip", 0, *more)
            program.must("export", path(f"{family}-{run}"), path(f"{family}-{run}-out"))
        before = tensors_of(os.path.join(GOLDEN, family))
        moved, some = (tensors_of(path(f"{family}-{run}-out")) for run in ("all", "some"))
        frozen = {name for name in before if ".experts.1." in name or ".experts.3." in name}
        wanted = {name: (before if name in frozen else moved)[name] for name in before}
        problems += [f"{family}: {name} differs" for name in program.differences(wanted, some)]
        problems += [f"{family}: {name} did not move" for name in before if moved[name] == before[name]]
        if len(frozen) != 2 * 2 * 3:
            problems.append(f"{family}: frozen are {frozen}")
    return problems


def experts_that_are_units_train_as_blocks_do():
    """To the same bits where nothing is clipped: a sum of squares has another order. Wherever they live, and resumed."""
    problems = []
    for family in EXPERTS:
        train(family, f"{family}-units-0", STEPS, "optimizer=nvme", "--precision", "fp32", "--clip", 0)
        program.must("export", path(f"{family}-units-0"), path(f"{family}-units-0-out"))
        wanted = tensors_of(path(f"{family}-units-0-out"))
        losses = [line["loss"] for line in program.steps_of(path(f"{family}-units-0"))]
        for size, place, steps in ((1, "weights=nvme,grads=nvme,optimizer=nvme,acts=nvme", HALF),
                                   (EXPERTS[family], "weights=host,grads=host,optimizer=nvme", STEPS)):
            run = f"{family}-units-{size}"
            train(family, run, steps, place, "--precision", "fp32", "--clip", 0, "--expert-group", size)
            if steps < STEPS:
                program.must("resume", path(run), "--steps", STEPS, "--place", "weights=host,optimizer=nvme")
            program.must("verify", path(run))
            program.must("export", path(run), path(f"{run}-out"))
            problems += [f"{run}: {name} differs" for name in program.differences(wanted, tensors_of(path(f"{run}-out")))]
            if [line["loss"] for line in program.steps_of(path(run))] != losses:
                problems.append(f"{run}: other losses than {losses}")
        texts = [program.must("generate", path(f"{family}-units-{size}"), "--prompt", "a", "--max-tokens", 20,
                              "--temperature", 0, "--precision", "fp32").out for size in (0, 1)]
        if len(set(texts)) > 1:
            problems.append(f"{family}: units write {texts}")
    return problems


def a_step_reads_each_expert_once():
    """However many micro-batches it has, as long as their block inputs fit the device."""
    read = {}
    for micros in (1, 8):
        run = f"once-{micros}"
        program.must("train", "--model", os.path.join(GOLDEN, "qwen3-moe-a"), "--data", DATA, "--run", path(run), "--steps", 3,
                     "--batch-tokens", 64 * micros, "--seq", 32, "--micro-batch", 2, "--order", "layer", "--expert-group", 1,
                     "--place", "weights=nvme,grads=host,optimizer=host")
        read[micros] = program.steps_of(path(run))[-1]["bytes"]["nvme_read"]
    return [] if read[1] == read[8] > 0 else [f"bytes read by micro-batches: {read}"]


def load_of_experts_is_in_log_and_report():
    """The counts are those of all tokens, and the losses of routers have fields of their own."""
    layers, chosen, run = 2, 2, path("load")
    program.must("train", "--model", os.path.join(GOLDEN, "mixtral-balanced"), "--data", DATA, "--run", run, "--steps", 2,
                 *program.SHAPE, "--router-z-loss", 0.01)
    with open(os.path.join(run, "log.jsonl"), encoding="utf-8") as file:
        log = [json.loads(line) for line in file]
    steps, loads = ([line for line in log if key in line] for key in ("experts", "expert_tokens"))
    counts = [line["expert_tokens"] for line in loads]
    wanted = [chosen * sum(line["tokens"] for line in steps)] * layers
    problems = []
    if [sum(of_layer) for of_layer in counts] != wanted or [line["layer"] for line in loads] != [*range(layers)]:
        problems.append(f"{loads}, not {wanted} tokens")
    if any(line["expert_steps"] != 2 or line["step"] != 2 for line in loads) or len(steps) != 2:
        problems.append(f"{loads} of {steps}")
    for line in steps:
        experts = line["experts"]
        # With even shares the balance is `chosen`.
        if not (1 <= experts["load"] <= 6 and 0.9 * chosen < experts["aux_loss"] < 6 * chosen and experts["z_loss"] > 0):
            problems.append(f"{experts}")
    program.must("report", run, "--out", path("load.html"))
    with open(path("load.html"), encoding="ascii") as file:
        data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', file.read(), re.S)[1])
    page = data["runs"][0]
    if page["load"] != {"step": 2, "steps": 2, "layers": counts, "end": 0} or len(page["routing"]["aux_loss"]) != 2:
        problems.append(f"the page has {page['load']} and {page['routing']}")
    return problems


def make_sparse():
    """Writes a config.json of four blocks of 32 experts, of which a token chooses two."""
    os.makedirs(path("sparse"), exist_ok=True)
    with open(os.path.join(GOLDEN, "qwen3-moe-a", "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    config.pop("num_local_experts", None)
    config.update(vocab_size=256, hidden_size=64, num_hidden_layers=4, num_experts=32, num_experts_per_tok=2,
                  moe_intermediate_size=256)
    program.write(path("sparse", "config.json"), json.dumps(config))


def units_of_experts_that_were_chosen_stay():
    """A run keeps what --expert-group auto chose, in run.json and its recipe, and a resume with more memory obeys it."""
    make_sparse()
    run = path("chosen")
    said = program.must("train", "--model", path("sparse"), "--init", "--data", DATA, "--run", run, "--steps", 2, *program.SHAPE,
                        "--device-memory", "8MiB", "--expert-group", "auto").err
    chosen = re.search(r"--expert-group auto is --expert-group (\d+): .*; no plan with 0\b", " ".join(said.split()))
    if not chosen or chosen[1] == "0":
        return [f"nothing was chosen: {said}"]
    program.must("resume", run, "--steps", 3, "--device-memory", "256MiB")
    program.must("verify", run)
    with open(os.path.join(run, "run.json"), encoding="utf-8") as file:
        kept = json.load(file)["settings"]["expert_group"]
    with open(os.path.join(run, "recipe.yaml"), encoding="utf-8") as file:
        recipe = file.read()
    return [] if str(kept) == chosen[1] and f"expert-group: {kept}\n" in recipe else [f"{chosen[0]}, but {kept} and {recipe}"]


def a_token_fetches_only_its_experts():
    """In memory, from the host and from a drive, with the same text."""
    make_sparse()
    program.must("train", "--model", path("sparse"), "--init", "--data", DATA, "--run", path("sparse-run"), "--steps", 2,
                 *program.SHAPE)
    problems, texts = [], []
    for flags in ((), ("--device-memory", "3MiB", "--host-memory", "40MiB"),
                  ("--device-memory", "4MiB", "--host-memory", "9MiB", "--scratch", path("sparse"))):
        done = program.must("generate", path("sparse-run"), "--prompt", "a", "--max-tokens", 30, "--seed", 3, "--precision",
                            "fp32", *flags)
        texts.append(done.out)
        fetched = re.search(r"each of these tokens fetched ([0-9.]+) MiB", done.err)
        # Two experts of 192 KiB in each block take 1.5 MiB; memory holds some of them, and the rest of the blocks is small.
        if bool(flags) != bool(fetched) or (fetched and not 1 <= float(fetched[1]) <= 2):
            problems.append(f"{flags}: {done.err}")
    return problems + ([] if len(set(texts)) == 1 else [f"other texts: {texts}"])


def a_quantized_base_has_the_same_text_with_little_memory():
    """Its grains are those of whole blocks, so experts do not become units of their own."""
    program.must("train", "--model", path("sparse"), "--init", "--data", DATA, "--run", path("sparse-base"), "--steps", 1,
                 *program.SHAPE, "--lora", 2, "--lora-targets", "attention", "--base-format", "nf4")
    texts = [program.must("generate", path("sparse-base"), "--prompt", "a", "--max-tokens", 30, "--seed", 3, *flags).out
             for flags in ((), ("--device-memory", "5MiB", "--host-memory", "40MiB"))]
    return [] if texts[0] == texts[1] else [f"other texts: {texts}"]


def what_experts_lack_is_refused_by_name():
    problems = []
    model = ("--model", os.path.join(GOLDEN, "mixtral-a"), "--data", DATA, "--run", path("refused"), *program.SHAPE)
    for flags, words in ((("--precision", "fp8", "--optimizer-state", "bf16"), "--precision fp8 is not supported for mixtral"),
                         (("--tiles", 2), "--tiles 2 is not supported for mixtral, whose blocks have experts"),
                         (("--expert-group", 3), "--expert-group 3 must divide the model's 4 experts; the nearest that does is 2"),
                         (("--expert-group", 8), "--expert-group 8 must divide the model's 4 experts; the nearest that does is 4"),
                         (("--lora", 4, "--lora-dropout", 0.1), "adapters of experts are trained without dropout"),
                         (("--lora", 4, "--lora-targets", "all-linear"), "'all-linear' in --lora-targets is PEFT's word; give all")):
        done = program.run("train", *model, "--steps", 1, *flags)
        if done.code == 0 or words not in " ".join(done.err.split()):
            problems.append(f"{flags}: {done.code}, {done.err!r}")
    return problems + program.refused("dense", ["plan", "--model", "gpt2-tiny", "--expert-group", 2], "--expert-group 2", "gpt2",
                                      "no experts")


def losses_of_routers_need_routers():
    done = program.run("train", "--model", os.path.join(GOLDEN, "qwen3-a"), "--data", DATA, "--run", path("refused"),
                       *program.SHAPE, "--steps", 1, "--router-z-loss", 0.1)
    words = "--router-aux-loss and --router-z-loss are for mixtures of experts, and a qwen3 model has no router"
    return [] if done.code != 0 and words in " ".join(done.err.split()) else [f"{done.code}: {done.err!r}"]


script_test.run(a_resumed_run_has_the_same_numbers, what_is_not_trained_stays, an_export_is_a_model, joined_experts_are_read,
                frozen_experts_stay_and_the_others_train_alike, experts_that_are_units_train_as_blocks_do,
                a_step_reads_each_expert_once, units_of_experts_that_were_chosen_stay, a_token_fetches_only_its_experts,
                a_quantized_base_has_the_same_text_with_little_memory, load_of_experts_is_in_log_and_report,
                losses_of_routers_need_routers, what_experts_lack_is_refused_by_name)
