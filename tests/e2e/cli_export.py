"""Hugging Face folders in and out: one file or shards, every type, what is carried over; and shards that are wrong."""

import json
import math
import os
import shutil
import struct

import hf_folder
import program
from program import script_test

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(4, 20000))
GOOD = hf_folder.tensors(7)
INDEX = "model.safetensors.index.json"
# Formatted unlike our own writer's, with fields that training passes over.
CONFIG = json.dumps({**hf_folder.config(), "bos_token_id": 7, "resid_pdrop": 0.1, "layer_norm_epsilon": 1e-5},
                    indent=None) + "\n\n"
BESIDE = {"tokenizer.json": b'{"any":\r\n "bytes \xc3\xa4"}', "generation_config.json": b"{}", "merges.txt": b"\x00\xff",
          "chat_template.jinja": b"{{ x }}"}


def path(*names):
    return os.path.join(SCRATCH, *names)


def source():
    """One file of fp32 with everything beside it, made once."""
    if not os.path.isdir(path("source")):
        hf_folder.make(path("source"), CONFIG, hf_folder.safetensors(GOOD))
        for name, content in BESIDE.items():
            program.write(path("source", name), content)
        program.write(path("source", "notes.txt"), "not part of the model")
    return path("source")


def exported(name, *more, model=None):
    program.must("export", model or source(), path(name), *more)
    return path(name)


def tensors_of(folder):
    """Name to entry without offsets and bytes, of one file or of all shards; and which file each is in."""
    found, places = {}, {}
    for file in sorted(name for name in os.listdir(folder) if name.endswith(".safetensors")):
        with open(os.path.join(folder, file), "rb") as opened:
            header, data = hf_folder.split(opened.read())
        for name, entry in header.items():
            if name != "__metadata__":
                first, end = entry["data_offsets"]
                found[name] = (entry["dtype"], tuple(entry["shape"]), data[first:end])
                places[name] = file
    return found, places


def what_goes_in_comes_out():
    """Tensors, their order aside, and everything beside them, byte by byte; also by way of a run of no step."""
    problems = []
    program.must("train", "--model", source(), "--data", DATA, "--run", path("run"), "--steps", 1, "--lr", 0,
                 "--weight-decay", 0, *program.SHAPE)
    for name, model in (("straight", source()), ("by-a-run", path("run"))):
        folder = exported(name, model=model)
        if tensors_of(folder)[0] != tensors_of(source())[0]:
            problems.append(f"{name}: other tensors")
        for file, content in {**BESIDE, "config.json": CONFIG.encode()}.items():
            if program.tree(folder).get(file) != content:
                problems.append(f"{name}: {file} is not what it was")
        if sorted(os.listdir(folder)) != sorted([*BESIDE, "config.json", "model.safetensors"]):
            problems.append(f"{name}: holds {os.listdir(folder)}")
    return problems


def every_type_comes_back():
    """bf16 and fp16 go in and out without a changed bit, and widen to what they are."""
    problems = []
    for dtype, stored, element in (("bf16", "BF16", 2), ("f16", "F16", 2), ("f32", "F32", 4)):
        first = exported("first-" + dtype, "--dtype", dtype)
        again = exported("again-" + dtype, "--dtype", dtype, model=first)
        wide = exported("wide-" + dtype, model=first)
        narrow = exported("narrow-" + dtype, "--dtype", dtype, model=wide)
        tensors = tensors_of(first)[0]
        if any(kind != stored or len(data) != element * hf_folder.count(shape)
               for kind, shape, data in tensors.values()):
            problems.append(f"{dtype}: not of this type")
        problems += [f"{dtype}: changed on the way through {os.path.basename(folder)}" for folder in (again, narrow)
                     if tensors_of(folder)[0] != tensors]
    name = "transformer.h.0.mlp.c_fc.weight"
    halves = struct.unpack("<8e", tensors_of(path("first-f16"))[0][name][2][:16])
    expected = struct.unpack("<8e", struct.pack("<8e", *GOOD[name][1][:8]))
    return problems + ([] if halves == expected else [f"f16: {halves} instead of {expected}"])


def the_type_in_config_follows():
    problems = []
    for field in ("dtype", "torch_dtype"):
        described = {**hf_folder.config(), field: "float32", "resid_pdrop": 0.1}
        folder = hf_folder.make(path("typed-" + field), described, hf_folder.safetensors(GOOD))
        with open(os.path.join(exported("typed-out-" + field, "--dtype", "bf16", model=folder), "config.json"),
                  encoding="utf-8") as file:
            text = file.read()
        if json.loads(text) != {**described, field: "bfloat16"} or '"resid_pdrop": 0.1\n' not in text:
            problems.append(f"{field}: {text}")
    return problems


def shards():
    """As many as needed, none larger than asked for unless one tensor is, and the same tensors in them."""
    limit, problems = 20 * 1024, []
    folder = exported("shards", "--shard-size", f"{limit // 1024}KiB")
    found, places = tensors_of(folder)
    index = program.read_json(os.path.join(folder, INDEX))
    sizes = {}
    for name, file in places.items():
        sizes.setdefault(file, []).append(len(found[name][2]))
    files = [f"model-{number + 1:05}-of-{len(sizes):05}.safetensors" for number in range(len(sizes))]
    if found != tensors_of(source())[0] or sorted(sizes) != files or len(files) < 5:
        problems.append(f"other tensors, or other files: {sizes}")
    if index["weight_map"] != places or index["metadata"]["total_size"] != sum(map(sum, sizes.values())):
        problems.append("the index does not say what is where")
    problems += [f"{file} has {sum(parts)} bytes" for file, parts in sizes.items()
                 if len(parts) > 1 and sum(parts) > limit]
    if os.path.exists(os.path.join(folder, "model.safetensors")):
        problems.append("shards and a single file")
    whole = sum(map(sum, sizes.values()))
    for size, single in ((whole, True), (whole - 1, False)):
        out = exported(f"limit-{size}", "--shard-size", f"{size}B")
        if os.path.exists(os.path.join(out, "model.safetensors")) != single:
            problems.append(f"--shard-size {size}B of {whole} bytes: {os.listdir(out)}")
    return problems


def shards_train_like_one_file():
    if not os.path.isdir(path("shards")):
        exported("shards", "--shard-size", "20KiB")
    numbers = []
    for name, model in (("of-one", source()), ("of-shards", path("shards"))):
        program.must("train", "--model", model, "--data", DATA, "--run", path(name), "--steps", 2, *program.SHAPE)
        numbers.append(program.numbers_of(path(name)))
    return [] if numbers[0] == numbers[1] else [f"{numbers[0]} and {numbers[1]}"]


def wrong_shards(name, change):
    """A sharded folder, spoilt by a function of its path and of its files' names."""
    folder = exported("wrong-" + name, "--shard-size", "20KiB")
    change(folder, sorted(file for file in os.listdir(folder) if file.startswith("model-")))
    return folder


def change_index(change):
    def spoil(folder, files):
        index = program.read_json(os.path.join(folder, INDEX))
        change(index["weight_map"], files)
        program.write(os.path.join(folder, INDEX), json.dumps(index))
    return spoil


def put_nan(folder, files):
    file = os.path.join(folder, files[-1])
    with open(file, "rb") as opened:
        content = opened.read()
    program.write(file, content[:-4] + struct.pack("<f", math.nan))


def without_second(folder, files):
    os.remove(os.path.join(folder, files[1]))


def cut_second(folder, files):
    os.truncate(os.path.join(folder, files[1]), os.path.getsize(os.path.join(folder, files[1])) - 4)


def wrong_shards_are_refused():
    """Before anything is written, in a sentence that names the file or the tensor."""
    wte, bias = "transformer.wte.weight", "transformer.ln_f.bias"
    second = "model-00002-of-"
    table = [("a missing shard", wrong_shards("missing", without_second), second, INDEX, "download is not complete"),
             ("a truncated shard", wrong_shards("cut", cut_second), second, "truncated"),
             ("NaN in the last shard", wrong_shards("nan", put_nan), bias, "not finite"),
             ("an index to nowhere", wrong_shards("nowhere", change_index(
                 lambda places, files: places.update({wte: "model-9.safetensors"}))), "model-9.safetensors"),
             ("an index out of the folder", wrong_shards("out", change_index(
                 lambda places, files: places.update({wte: "../source/model.safetensors"}))), wte, "no name of a file"),
             ("an index into a folder", wrong_shards("below", change_index(
                 lambda places, files: places.update({wte: "below/model.safetensors"}))), wte, "no name of a file"),
             ("a tensor in another shard", wrong_shards("other", change_index(
                 lambda places, files: places.update({wte: files[-1]}))), wte, "not there"),
             ("a tensor that no shard has", wrong_shards("ghost", change_index(
                 lambda places, files: places.update({"ghost": files[0]}))), "ghost"),
             ("an index of rubbish", wrong_shards("rubbish", lambda folder, files: program.write(
                 os.path.join(folder, INDEX), "{")), INDEX, "JSON"),
             ("an index without a map", wrong_shards("no-map", lambda folder, files: program.write(
                 os.path.join(folder, INDEX), "{}")), INDEX, "weight_map")]
    problems = []
    for what, model, *words in table:
        problems += program.refused(what, ["train", "--model", model, "--data", DATA, "--run", path("never"), "--steps",
                                           1, *program.SHAPE], *words, watched=[SCRATCH])
    return problems


def what_cannot_be_exported():
    large = "transformer.h.1.mlp.c_fc.bias"
    shape, values = GOOD[large]
    wide = hf_folder.make(path("too-wide"), CONFIG, hf_folder.safetensors({**GOOD, large: (shape,
                                                                                         [70000.0, *values[1:]])}))
    problems = program.refused("a value beyond f16", ["export", wide, path("never"), "--dtype", "f16"], large, "70000",
                               watched=[SCRATCH])
    problems += program.refused("a folder that is not empty", ["export", source(), path("source")], "not empty",
                                watched=[SCRATCH])
    problems += program.refused("a file in the way", ["export", source(), DATA], DATA, watched=[SCRATCH])
    problems += program.refused("no such parent", ["export", source(), path("no", "where")], "no/where",
                                watched=[SCRATCH])
    for size in ("0", "-1", "many"):
        problems += program.refused(f"--shard-size {size}", ["export", source(), path("never"), "--shard-size", size],
                                    "--shard-size", status=2, watched=[SCRATCH])
    return problems + program.refused("another type", ["export", source(), path("never"), "--dtype", "f8"], "f8",
                                      status=2, watched=[SCRATCH])


def a_source_that_changed():
    """The run keeps what it began with. A run of an older version has no copy of config.json: one that describes another
    model is not carried over."""
    folder = hf_folder.make(path("moving"), CONFIG, hf_folder.safetensors(GOOD))
    program.must("train", "--model", folder, "--data", DATA, "--run", path("moved-run"), "--steps", 1, *program.SHAPE)
    program.write(os.path.join(folder, "config.json"), json.dumps(hf_folder.config(n_layer=3)))
    problems = []
    for what in ("own", "older"):
        ended = program.must("export", path("moved-run"), path(f"moved-{what}"))
        layers = program.read_json(path(f"moved-{what}", "config.json"))["n_layer"]
        if layers != 2 or ("no longer describes" in ended.err) != (what == "older"):
            problems.append(f"{what}: {layers} layers; {ended.err!r}")
        if what == "own":
            os.unlink(path("moved-run", "config.json"))
    return problems


def only_what_an_unfinished_export_left_goes():
    """From X.partial, which may be anybody's or lead anywhere. Links in it are not followed."""
    problems, mark = [], "spillway.partial"
    os.mkdir(path("mine"))
    program.write(path("mine", "thesis.txt"), "mine")
    os.mkdir(path("one.partial"))
    program.write(path("one.partial", "thesis.txt"), "mine")
    os.symlink(path("mine"), path("two.partial"))
    os.mkdir(path("three.partial"))
    os.symlink(path("mine", "thesis.txt"), path("three.partial", mark))
    for name in ("one", "two", "three"):
        problems += program.refused(name, ["export", source(), path(name)], name + ".partial", watched=[SCRATCH])
    os.mkdir(path("four.partial"))
    program.write(path("four.partial", mark), "")
    program.write(path("four.partial", "model.safetensors"), "half")
    os.symlink(path("mine", "thesis.txt"), path("four.partial", "config.json"))
    if sorted(os.listdir(exported("four"))) != sorted([*BESIDE, "config.json", "model.safetensors"]):
        problems.append(f"over what a kill left: {os.listdir(path('four'))}")
    problems += [] if program.tree(path("mine")) == {"thesis.txt": b"mine"} else ["a link was followed"]
    return problems + [f"{name} is left" for name in os.listdir(SCRATCH) if name == "four.partial"]


def what_is_no_file_is_refused():
    """A FIFO as one of the files is named, and nothing waits for it."""
    problems = []
    for number, name in enumerate(("model.safetensors", INDEX, "config.json")):
        folder = path(f"fifo-{number}")
        hf_folder.make(folder, CONFIG, hf_folder.safetensors(GOOD))
        for there in (name, "model.safetensors") if name == INDEX else (name,):
            if os.path.exists(os.path.join(folder, there)):
                os.remove(os.path.join(folder, there))
        os.mkfifo(os.path.join(folder, name))
        problems += program.refused(f"{name} is a FIFO", ["export", folder, path("out")], name, "regular file")
    return problems


script_test.run(only_what_an_unfinished_export_left_goes, what_is_no_file_is_refused, what_goes_in_comes_out, every_type_comes_back, the_type_in_config_follows, shards,
                shards_train_like_one_file, wrong_shards_are_refused, what_cannot_be_exported, a_source_that_changed)
