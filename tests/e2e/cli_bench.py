"""The benches: their reports have the documented fields and agree with themselves; misuse is refused. No speed is
asserted."""

import json
import math
import os
import re

import program
from program import script_test

SCRATCH = program.scratch_folder()
QUICK = ("--rounds", 1, "--device", "cpu", "--threads", 1, "--json")
FLAGS = {"copy": "--size --device --threads --rounds --json",
         "update": "--precision --chunk-grains --device --threads --rounds --json",
         "load": "--model --nvme --device --threads --rounds --allow-buffered --json",
         "gemm": "--model --seq --micro-batch --precision --device --threads --rounds --json",
         "muon": "--model --seq --device --threads --rounds --json",
         "experts": "--experts --chosen --hidden --inner --tokens --precision --device --threads --rounds --json",
         "attention": "--model --seq --micro-batch --precision --device --threads --rounds --json",
         "compute": "--model --seq --micro-batch --precision --device --threads --rounds --json"}
COPY_FIELDS = {"bench": str, "device": str, "threads": int, "rounds": int, "sizes": list}
SIZE_FIELDS = {"bytes": int, "upload": dict, "download": dict, "both": dict, "memcpy_one_bytes_per_s": float,
               "memcpy_all_bytes_per_s": float}
WAY_FIELDS = {"bytes_per_s": float, "of_memcpy_one": float, "of_memcpy_all": float}
BOTH_FIELDS = {"upload_bytes_per_s": float, "download_bytes_per_s": float, "of_upload": float, "of_download": float}
UPDATE_FIELDS = {"bench": str, "device": str, "isa": str, "threads": int, "rounds": int, "chunk_grains": int,
                 "precisions": list}
PRECISION_FIELDS = {"precision": str, "optimizer_state": str, "bytes_per_parameter": float, "bytes_per_s": float,
                    "parameters_per_s": float, "plain_bytes_per_s": float, "of_plain": float}
NARROW_FIELDS = {**PRECISION_FIELDS, "fp32_parameters_per_s": float, "of_fp32": float}
LOAD_FIELDS = {"bench": str, "device": str, "model": str, "threads": int, "rounds": int, "read_bytes": int,
               "written_bytes": int, "load_bytes_per_s": float, "drive_bytes_per_s": float, "of_drive": float,
               "requests_bytes_per_s": float, "of_requests": float}
GEMM_FIELDS = {"bench": str, "device": str, "isa": str, "model": str, "precision": str, "bound_precision": str,
               "numbers": str, "threads": int, "rounds": int, "micro_batch": int, "seq": int, "products": list,
               "totals": dict}
PRODUCT_FIELDS = {"layer": str, "pass": str, "times": int, "m": int, "n": int, "k": int, "transpose_a": bool,
                  "transpose_b": bool, "bias": bool, "accumulate": bool, "a_stride": int, "c_stride": int,
                  "flops_per_s": float, "same_layouts_flops_per_s": float, "own_layouts_flops_per_s": float, "of_same_layouts": float,
                  "of_own_layouts": float}
TOTAL_FIELDS = {"seconds": float, "flops_per_s": float, "of_same_layouts": float, "of_own_layouts": float}
MUON_FIELDS = {"bench": str, "device": str, "isa": str, "model": str, "threads": int, "rounds": int, "seq": int, "numbers": str,
               "product_precision": str, "matrices": list, "total": dict}
MATRIX_FIELDS = {"outputs": int, "inputs": int, "times": int, "seconds": float, "flops_per_s": float, "product_flops_per_s": float,
                 "of_product": float}
MUON_TOTAL_FIELDS = {"matrices": int, "tokens": int, "seconds": float, "flops": float, "flops_per_s": float, "of_product": float}
ATTENTION_FIELDS = {"bench": str, "device": str, "isa": str, "model": str, "precision": str, "numbers": str,
                    "threads": int, "rounds": int, "micro_batch": int, "seq": int, "forward": dict, "backward": dict,
                    "products_flops_per_s": float}
EXPERTS_FIELDS = {"bench": str, "device": str, "isa": str, "threads": int, "rounds": int, "precision": str, "numbers": str,
                  "experts": int, "chosen": int, "hidden": int, "inner": int, "tokens": int, "products": list}
GROUPED_FIELDS = {"layer": str, "pass": str, "n": int, "k": int, "flops_per_s": float, "dense_flops_per_s": float,
                  "of_dense": float}
PASS_FIELDS = {"seconds": float, "flops_per_s": float, "of_products": float}
COMPUTE_FIELDS = {"bench": str, "device": str, "isa": str, "model": str, "precision": str, "bound_precision": str,
                  "threads": int, "rounds": int, "micro_batch": int, "seq": int, "blocks": int, "totals": dict}
COMPUTE_TOTAL_FIELDS = {"forward_s": float, "backward_s": float, "products_s": float, "products_share": float}
# Parts without a time: the head's backward pass is all of it, and an embedding multiplies nothing.
COMPUTE_NOTHING = {"embedding": ("products_s", "products_share"), "block": (), "head": ("forward_s",), "all": ()}
PASSES = ("forward", "input gradient", "weight gradient")


def wrong_fields(what, found, fields):
    problems = [f"{what}: '{name}' is {found.get(name)!r}" for name, kind in fields.items()
                if not isinstance(found.get(name), kind)]
    problems += [f"{what}: '{name}' is new" for name in found.keys() - fields]
    return problems + [f"{what}: '{name}' is {value}" for name, value in found.items()
                       if isinstance(value, float) and not 0 < value < math.inf]


def unequal(what, found, expected):
    return [] if math.isclose(found, expected, rel_tol=1e-9) else [f"{what} is {found} instead of {expected}"]


def report(*arguments, fields):
    """The one object on standard output, and what is wrong with its own fields."""
    ended = program.run("bench", *arguments, *QUICK)
    if ended.code != 0 or ended.err:
        return None, [f"bench {arguments}: status {ended.code}, {ended.err!r}"]
    found = json.loads(ended.out)
    problems = wrong_fields(arguments[0], found, fields)
    expected = {"bench": arguments[0], "device": "cpu", "threads": 1, "rounds": 1}
    return found, problems + [f"{arguments[0]}: '{name}' is {found.get(name)!r}" for name, value in expected.items()
                              if found.get(name) != value]


def copies():
    found, problems = report("copy", "--size", "64KiB", "4MiB", fields=COPY_FIELDS)
    if problems:
        return problems
    if [size["bytes"] for size in found["sizes"]] != [65536, 4194304]:
        problems.append(f"the sizes are {found['sizes']}")
    for size in found["sizes"]:
        problems += wrong_fields("size", size, SIZE_FIELDS)
        for way in (size["upload"], size["download"]):
            problems += wrong_fields("way", way, WAY_FIELDS)
            rate = way["bytes_per_s"]
            problems += unequal("of_memcpy_one", way["of_memcpy_one"], rate / size["memcpy_one_bytes_per_s"])
            problems += unequal("of_memcpy_all", way["of_memcpy_all"], rate / size["memcpy_all_bytes_per_s"])
        both = size["both"]
        problems += wrong_fields("both", both, BOTH_FIELDS)
        for way in ("upload", "download"):
            problems += unequal(f"of_{way}", both[f"of_{way}"], both[f"{way}_bytes_per_s"] / size[way]["bytes_per_s"])
    return problems


def updates():
    found, problems = report("update", "--chunk-grains", 3, fields=UPDATE_FIELDS)
    if problems:
        return problems
    bytes_of = {one["precision"]: one["bytes_per_parameter"] for one in found["precisions"]}
    if bytes_of != {"bf16": 28, "fp16": 28, "fp32": 32} or found["chunk_grains"] != 3:
        problems.append(f"precisions {bytes_of}, {found['chunk_grains']} grains")
    for one in found["precisions"]:
        problems += wrong_fields(one["precision"], one, PRECISION_FIELDS)
        problems += unequal("of_plain", one["of_plain"], one["bytes_per_s"] / one["plain_bytes_per_s"])
        problems += unequal("a parameter", one["parameters_per_s"] * one["bytes_per_parameter"], one["bytes_per_s"])
    single, more = report("update", "--precision", "fp16", fields=UPDATE_FIELDS)
    if not more and [one["precision"] for one in single["precisions"]] != ["fp16"]:
        more = [f"--precision fp16 gives {single['precisions']}"]
    for form, size in (("bf16", 20), ("8bit", 16.5)):
        narrow, wrong = report("update", "--precision", "bf16", "--optimizer-state", form, fields=UPDATE_FIELDS)
        more += wrong
        for one in [] if wrong else narrow["precisions"]:
            more += wrong_fields(form, one, NARROW_FIELDS)
            more += unequal("of_fp32", one["of_fp32"], one["parameters_per_s"] / one["fp32_parameters_per_s"])
            if (one["optimizer_state"], one["bytes_per_parameter"]) != (form, size):
                more.append(f"--optimizer-state {form} gives {one}")
    return problems + more


def loads():
    """A checkpoint of the bench's own, which goes again, and a user's, which stays."""
    drive, problems = os.path.join(SCRATCH, "drive"), []
    os.mkdir(drive)
    data = program.write(os.path.join(SCRATCH, "data.txt"), program.text(1, 20000))
    program.must("train", "--model", "gpt2-tiny", "--init", "--data", data, "--run", os.path.join(SCRATCH, "run"),
                 "--steps", 1, *program.SHAPE)
    program.must("export", os.path.join(SCRATCH, "run"), os.path.join(drive, "mine"), "--dtype", "bf16")
    before = program.tree(drive)
    for model in ("gpt2-tiny", os.path.join(drive, "mine")):
        found, wrong = report("load", "--model", model, "--nvme", drive, fields=LOAD_FIELDS)
        problems += wrong
        if not wrong:
            problems += unequal("of_drive", found["of_drive"], found["load_bytes_per_s"] / found["drive_bytes_per_s"])
            problems += unequal("of_requests", found["of_requests"],
                                found["load_bytes_per_s"] / found["requests_bytes_per_s"])
            # Masters, weights (bf16, or fp32 where the CPU has no products of bf16) and the commit: four to six times what
            # is read. With moments it would be more than seven times.
            if not 0 < found["read_bytes"] < found["written_bytes"] < 7 * found["read_bytes"]:
                problems.append(f"{found['read_bytes']} bytes read, {found['written_bytes']} written")
        if program.tree(drive) != before:
            problems.append(f"{model}: left {sorted(program.tree(drive))}")
    return problems


def folder_of(name, config):
    """A Hugging Face folder."""
    os.mkdir(os.path.join(SCRATCH, name))
    program.write(os.path.join(SCRATCH, name, "config.json"), json.dumps(config))
    return os.path.join(SCRATCH, name)


def config_of(name, **changed):
    """A model whose head is cut into tiles of different rows."""
    return folder_of(name, {"model_type": "gpt2", "vocab_size": 50000, "n_embd": 32, "n_layer": 3, "n_head": 2,
                            "n_positions": 256, **changed})


def flops(product):
    return 2 * product["m"] * product["n"] * product["k"] * product["times"]


def wrong_totals(found):
    """Every product is weighted by its times; all of them are six operations a parameter and token."""
    problems = []
    for name, total in found["totals"].items():
        problems += wrong_fields(name, total, TOTAL_FIELDS)
        part = [p for p in found["products"] if name == "all" or (p["layer"] == "head") == (name == "head")]
        seconds = {rate: sum(flops(p) / p[rate] for p in part)
                   for rate in ("flops_per_s", "same_layouts_flops_per_s", "own_layouts_flops_per_s")}
        ours = seconds["flops_per_s"]
        problems += unequal(name, total["seconds"], ours)
        problems += unequal(name, total["flops_per_s"], sum(flops(p) for p in part) / ours)
        problems += unequal(name, total["of_same_layouts"], seconds["same_layouts_flops_per_s"] / ours)
        problems += unequal(name, total["of_own_layouts"], seconds["own_layouts_flops_per_s"] / ours)
    if found["totals"].keys() != {"blocks", "head", "all"}:
        problems.append(f"totals of {sorted(found['totals'])}")
    return problems


def wrong_products(found, layers, hidden, vocab, tiles):
    problems = []
    for product in found["products"]:
        problems += wrong_fields(product["layer"], product, PRODUCT_FIELDS)
        problems += unequal("of_same_layouts", product["of_same_layouts"],
                            product["flops_per_s"] / product["same_layouts_flops_per_s"])
        problems += unequal("of_own_layouts", product["of_own_layouts"],
                            product["flops_per_s"] / product["own_layouts_flops_per_s"])
    rows = found["micro_batch"] * found["seq"]
    for name in PASSES:
        done = sum(flops(product) for product in found["products"] if product["pass"] == name)
        expected = 2 * rows * (layers * 12 * hidden**2 + vocab * hidden)
        if done != expected:
            problems.append(f"{name}: {done} operations instead of {expected}")
    heads = [product["m"] for product in found["products"] if (product["layer"], product["pass"]) == ("head", "forward")
             for _ in range(product["times"])]
    if len(heads) != tiles or sum(heads) != rows:
        problems.append(f"tiles of the head: {heads}")
    return problems


def matrix_products():
    tiled = config_of("tiled")
    table = [("whole", (2, 64, 256, 1), "gpt2-tiny", "--seq", 24, "--micro-batch", 3),
             ("tiled", (3, 32, 50000, 2), tiled, "--seq", 200, "--micro-batch", 1, "--precision", "fp32")]
    problems = []
    for what, shape, *arguments in table:
        found, wrong = report("gemm", "--model", *arguments, fields=GEMM_FIELDS)
        if not wrong:
            wrong = wrong_products(found, *shape) + wrong_totals(found)
            if found["model"] != arguments[0] or found["seq"] != arguments[2]:
                wrong.append(f"model {found['model']}, seq {found['seq']}")
        problems += [f"{what}: {problem}" for problem in wrong]
    return problems


def wrong_arithmetic(found):
    """Returns the problems of a report of one round, whose medians are that round's own times."""
    totals, problems = found["totals"], []
    if totals.keys() != COMPUTE_NOTHING.keys():
        return [f"totals of {sorted(totals)}"]
    for name, none in COMPUTE_NOTHING.items():
        part = totals[name]
        fields = {field: kind for field, kind in COMPUTE_TOTAL_FIELDS.items() if field not in none}
        problems += wrong_fields(name, {field: part.get(field) for field in fields}, fields)
        problems += [f"{name}: {field} is {part.get(field)}" for field in none if part.get(field) != 0.0]
    if not problems:
        for field in ("forward_s", "backward_s", "products_s"):
            problems += unequal(f"{field} of all", totals["all"][field],
                                sum(totals[name][field] for name in ("embedding", "block", "head")))
        for name in ("block", "head", "all"):
            part = totals[name]
            problems += unequal(f"share of {name}", part["products_share"],
                                part["products_s"] / (part["forward_s"] + part["backward_s"]))
    return problems


def arithmetic():
    """A model whose head is one product, one whose head is cut into tiles, and a type that may have to be widened."""
    table = [("gpt2-tiny", 2, "--seq", 24, "--micro-batch", 3), ("llama-tiny", 2, "--seq", 16, "--precision", "fp16"),
             (config_of("arithmetic"), 3, "--seq", 200, "--micro-batch", 1, "--precision", "fp32")]
    problems = []
    for model, blocks, *arguments in table:
        found, wrong = report("compute", "--model", model, *arguments, fields=COMPUTE_FIELDS)
        wrong = wrong or wrong_arithmetic(found)
        if not wrong and (found["model"] != model or found["seq"] != arguments[1] or found["blocks"] != blocks):
            wrong = [f"model {found['model']}, seq {found['seq']}, {found['blocks']} blocks"]
        problems += [f"{model}: {problem}" for problem in wrong]
    return problems


def attention_passes():
    """Scores of a triangle, of a window, and of key heads that several query heads share."""
    table = [("gpt2-tiny", 4 * 16, 24 * 25 / 2), ("llama-tiny", 4 * 16, 24 * 25 / 2),
             (folder_of("windowed", {"model_type": "mistral", "vocab_size": 256, "hidden_size": 64,
                                     "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
                                     "intermediate_size": 96, "sliding_window": 8, "max_position_embeddings": 64,
                                     "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu"}),
              64, 8 * 9 / 2 + 16 * 8)]
    problems = []
    for model, wide, scores in table:
        found, wrong = report("attention", "--model", model, "--seq", 24, "--micro-batch", 3, fields=ATTENTION_FIELDS)
        for name, products in (("forward", 2), ("backward", 5)):
            if wrong:
                break
            done = found[name]
            wrong += wrong_fields(name, done, PASS_FIELDS)
            wrong += unequal(name, done["seconds"] * done["flops_per_s"], 2 * products * 3 * wide * scores)
            wrong += unequal(name, done["of_products"], done["flops_per_s"] / found["products_flops_per_s"])
        problems += [f"{model}: {problem}" for problem in wrong]
    return problems


def muon():
    """Matrices of a fused tensor count apart. Squares of n rows take 20 n^3 operations, and 38 n^3 if four times as long."""
    found, problems = report("muon", "--model", "gpt2-tiny", "--seq", 64, fields=MUON_FIELDS)
    if problems:
        return problems
    total, shapes = found["total"], {}
    for one in found["matrices"]:
        problems += wrong_fields("matrix", one, MATRIX_FIELDS)
        problems += unequal("of_product", one["of_product"], one["flops_per_s"] / one["product_flops_per_s"])
        shapes[one["outputs"], one["inputs"]] = (one["times"], round(one["seconds"] * one["flops_per_s"]))
    square, long = 20 * 64 ** 3, 38 * 64 ** 3
    if shapes != {(64, 64): (8, square), (256, 64): (2, long), (64, 256): (2, long)}:
        problems.append(f"matrices {shapes}")
    problems += wrong_fields("total", total, MUON_TOTAL_FIELDS)
    problems += unequal("flops", total["flops"], 8 * square + 4 * long)
    problems += unequal("seconds", total["seconds"], sum(one["times"] * one["seconds"] for one in found["matrices"]))
    return problems + ([] if total["matrices"] == 12 else [f"{total['matrices']} matrices"])


def experts():
    """Both layers have three products each, with the sides that the flags give."""
    sizes = ("--experts", 5, "--chosen", 2, "--hidden", 24, "--inner", 16, "--tokens", 30)
    problems = []
    for precision in ("fp32", "bf16", "fp16"):
        found, wrong = report("experts", *sizes, "--precision", precision, fields=EXPERTS_FIELDS)
        problems += wrong
        if wrong:
            continue
        sides = [(product["layer"], product["pass"], product["n"], product["k"]) for product in found["products"]]
        if sides != [("up", PASSES[0], 32, 24), ("up", PASSES[1], 24, 32), ("up", PASSES[2], 32, 24),
                     ("down", PASSES[0], 24, 16), ("down", PASSES[1], 16, 24), ("down", PASSES[2], 24, 16)]:
            problems.append(f"{precision}: {sides}")
        for product in found["products"]:
            problems += wrong_fields(f"{precision}: a product", product, GROUPED_FIELDS)
            problems += unequal(precision, product["of_dense"], product["flops_per_s"] / product["dense_flops_per_s"])
    return problems


def every_precision():
    """A type that the CPU cannot multiply is measured beside fp32, and the text says so."""
    problems = []
    for precision in ("bf16", "fp16", "fp32"):
        arguments = ("gemm", "--model", "gpt2-tiny", "--seq", 8, "--micro-batch", 1, "--precision", precision)
        found, wrong = report(*arguments, fields=GEMM_FIELDS)
        problems += wrong
        if wrong:
            continue
        if found["precision"] != precision or found["bound_precision"] not in (precision, "fp32"):
            problems.append(f"{precision}: beside {found['bound_precision']}")
        readable = program.run("bench", *arguments, "--rounds", 2, "--device", "cpu").out
        said = f"oneDNN has no {precision} products on this CPU" in readable
        if said != (found["bound_precision"] != precision):
            problems.append(f"{precision} beside {found['bound_precision']}: {readable[:300]!r}")
    return problems


def readable_reports():
    """Every report has its columns, within 80 of the terminal's; what does not fit follows below."""
    tiny = ("--model", "gpt2-tiny", "--seq", 8, "--precision", "fp32")
    table = [(("copy", "--size", "64KiB"), 2 + 2 * 2, "memcpy"), (("update", "--precision", "bf16"), 2 + 2, "Gparam/s"),
             (("gemm", *tiny), 3 + 2 * (1 + 15) + 1 + 1 + 3, "to own"),
             (("muon", "--model", "gpt2-tiny"), 2 + 1 + 3 + 2, "to it"),
             (("experts", "--hidden", 8, "--inner", 8, "--tokens", 4), 2 + 1 + 6, "to dense"),
             (("attention", *tiny), 3 + 1 + 2, "to a head's products"), (("compute", *tiny), 3 + 1 + 4, "products to both"),
             (("load", "--model", "gpt2-tiny", "--nvme", SCRATCH), 3 + 2, "GB/s")]
    problems = []
    for arguments, lines, word in table:
        ended = program.run("bench", *arguments, "--rounds", 1, "--device", "cpu")
        printed = ended.out.splitlines()
        if ended.code != 0 or program.said(ended) or len(printed) != lines or word not in ended.out:
            problems.append(f"{arguments}: status {ended.code}, {ended.err!r}, {ended.out!r}")
        problems += [f"{arguments[0]}: wider than 80 columns: {line!r}" for line in printed if len(line) > 80]
    return problems


def help_explains_every_flag():
    problems = []
    overview = program.run("bench", "--help")
    for name, flags in FLAGS.items():
        ended = program.run("bench", name, "--help")
        if ended.code != 0 or ended.err or f"\n  {name} " not in overview.out:
            problems.append(f"bench {name} --help: status {ended.code}, {ended.err!r}, overview {overview.out!r}")
        problems += [f"bench {name} --help does not explain {flag}" for flag in flags.split()
                     if not re.search(rf"^  {flag}(\.\.\.)?[ \n].*", ended.out, re.MULTILINE)]
    return problems


def misuse():
    wide = config_of("wide", n_embd=256, n_positions=4194304, vocab_size=256)
    huge = ("--seq", 4194304, "--micro-batch", 64)
    table = [("copy", 2, ("--size", "10KiB"), "10KiB", "32KiB"), ("copy", 2, ("--size", "128MiB"), "128MiB", "64MiB"),
             ("copy", 2, ("--size", "much"), "much"), ("copy", 2, ("--rounds", 0), "--rounds"),
             ("copy", 2, ("64KiB",), "64KiB"), ("copy", 2, ("--treads", 1), "--threads"),
             ("update", 2, ("--precision", "bf8"), "bf8"), ("update", 2, ("--chunk-grains", 0), "--chunk-grains"),
             ("update", 2, ("--threads", "-1"), "--threads"), ("gemm", 2, ("--precision", "int8"), "int8"),
             ("gemm", 1, ("--model", "gpt5"), "gpt5", "gpt2-124m"),
             ("gemm", 1, ("--model", "gpt2-tiny", "--seq", 65), "--seq 65", "64"),
             ("gemm", 1, ("--model", wide, *huge), "available", "--micro-batch"),
             ("muon", 1, ("--model", "gpt5"), "gpt5", "gpt2-124m"), ("muon", 2, ("--micro-batch", 1), "--micro-batch"),
             ("experts", 2, ("--chosen", 33), "--chosen"),
             ("experts", 1, ("--experts", 1024, "--hidden", 1048576, "--inner", 1048576), "available", "--experts"),
             ("experts", 1, ("--experts", 4), "--chosen 8 is more than --experts 4"),
             ("attention", 2, ("--device", "tpu"), "--device"), ("attention", 1, ("--model", wide, *huge), "available"),
             ("compute", 2, ("--rounds", 0), "--rounds"), ("compute", 1, ("--model", "gpt5"), "gpt5", "gpt2-124m"),
             ("compute", 1, ("--model", wide, *huge), "available", "--micro-batch")]
    problems = []
    for name, status, arguments, *words in table:
        device = () if "--device" in arguments else ("--device", "cpu")
        ended = program.run("bench", name, *arguments, *device)
        problems += program.wrong_refusal(f"{name} {arguments}", ended, status, words, [f"bench {name}"])
    for arguments, word in (([], "usage"), (["nothing"], "'nothing'")):
        ended = program.run("bench", *arguments)
        if ended.code != 2 or ended.out or word not in ended.err:
            problems.append(f"bench {arguments}: status {ended.code}, {ended.out!r}, {ended.err!r}")
    return problems


script_test.run(copies, updates, loads, matrix_products, arithmetic, attention_passes, muon, experts, every_precision, readable_reports,
                help_explains_every_flag, misuse)
