"""Models that cannot be trained are refused before anything is written, and the message says what is wrong."""

import math
import os

import hf_folder
import program
from program import script_test

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(1, 20000))
GOOD = hf_folder.tensors(1)
WEIGHTS = hf_folder.safetensors(GOOD)
WTE = "transformer.wte.weight"
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:12ab\nsize 1234567\n"


def folder(name, described, weights=WEIGHTS):
    return hf_folder.make(os.path.join(SCRATCH, name.replace(" ", "-")), described, weights)


def train(model, *more):
    return ["train", "--model", model, "--data", DATA, "--run", os.path.join(SCRATCH, "run"), "--steps", 1,
            *program.SHAPE, *more]


def refused_as(table):
    return program.refused_each([(what, train(model), *words) for what, model, *words in table], watched=[SCRATCH])


def good_folders_train():
    """The model from which the wrong ones differ is right; prefixes, buffers and a second tied table change nothing."""
    plain = {name.removeprefix("transformer."): tensor for name, tensor in GOOD.items()}
    plain["h.0.attn.bias"] = ([1, 1, 64, 64], [1.0] * 64 * 64)
    prefixed = {**GOOD, "lm_head.weight": GOOD[WTE]}
    losses = []
    for name, weights in (("good-plain", plain), ("good-prefixed", prefixed)):
        run = os.path.join(SCRATCH, name + "-run")
        program.must("train", "--model", folder(name, hf_folder.config(), hf_folder.safetensors(weights)), "--data",
                     DATA, "--run", run, "--steps", 2, *program.SHAPE)
        losses.append(program.numbers_of(run))
    return [] if losses[0] == losses[1] else [f"the same weights gave {losses[0]} and {losses[1]}"]


def wrapped_weights_train():
    """Prefixes of wrappers are left out and said, and the weights are the same."""
    plain = "transformer."
    wrapped = {"module": {"module." + name: tensor for name, tensor in GOOD.items()},
               "two": {"module._orig_mod." + name: tensor for name, tensor in GOOD.items()},
               "doubled": {"model." + name: tensor for name, tensor in GOOD.items()},
               "inner": {name.replace("h.1.", "h.1._fsdp_wrapped_module."): tensor for name, tensor in GOOD.items()},
               "bare": {name.removeprefix(plain): tensor for name, tensor in GOOD.items()}}
    said = {"module": "'module.'", "two": "'module._orig_mod.'", "doubled": "'model.'", "inner": "", "bare": ""}
    problems = []
    for name, weights in wrapped.items():
        out = os.path.join(SCRATCH, "wrapped-" + name + "-out")
        made = folder("wrapped " + name, hf_folder.config(), hf_folder.safetensors(weights))
        ended = program.run("export", made, out)
        if ended.code != 0 or said[name] not in ended.err:
            problems.append(f"{name}: status {ended.code}, {ended.err!r}")
            continue
        header, data = hf_folder.split(open(os.path.join(out, "model.safetensors"), "rb").read())
        first, last = header[WTE]["data_offsets"]
        if data[first:last] != hf_folder.safetensors({WTE: GOOD[WTE]})[-(last - first):]:
            problems.append(f"{name}: other values of {WTE}")
    return problems


def weights_that_are_no_plain_ones():
    """Adapters, quantized weights and the like are named as what they are."""
    layer = "transformer.h.0.attn.c_attn."
    one = ([1], [0.0])

    def with_tensors(name, **more):
        return folder(name, hf_folder.config(), hf_folder.safetensors({**GOOD, **more}))
    some = {("module." if ".h.0." in name else "") + name: tensor for name, tensor in GOOD.items()}
    table = [("an adapter inside", with_tensors("lora", **{layer + "lora_A.default.weight": one}), "adapter",
              "merge_and_unload"),
             ("weights of GPTQ", with_tensors("gptq", **{layer + "qweight": one}), "quantized", "GPTQ"),
             ("weights of bitsandbytes", with_tensors("bnb", **{layer + "weight.absmax": one}), "quantized",
              "bitsandbytes"),
             ("weights of fp8", with_tensors("fp8", **{layer + "weight_scale_inv": one}), "quantized", "fp8"),
             ("weights of MXFP4", with_tensors("mxfp4", **{layer + "weight_blocks": one}), "quantized", "MXFP4"),
             ("a vision tower", with_tensors("vision", **{"vision_tower.weight": one}), "multimodal", "vision_tower"),
             ("a value head", with_tensors("value", **{"v_head.summary.weight": one}), "value head"),
             ("a prefix of some", folder("mixture", hf_folder.config(), hf_folder.safetensors(some)), "mixture",
              "12 of 28", "'module.'"),
             ("one name twice", with_tensors("twice", **{"transformer._orig_mod.wte.weight": GOOD[WTE]}), "twice",
              WTE, "_orig_mod"),
             ("an unknown prefix", folder("foo", hf_folder.config(), hf_folder.safetensors(
                 {"foo." + name: tensor for name, tensor in GOOD.items()})), "all 28 tensors", "'foo.'")]
    return refused_as(table)


def folders_of_something_else():
    """A folder without weights, or without config.json, is described by what it has."""
    table = []
    for number, (file, *words) in enumerate([
            ("pytorch_model-00001-of-00002.bin", "pytorch_model-00001", "save_pretrained"),
            ("model-q4.gguf", "gguf_file='model-q4.gguf'"), ("consolidated.00.pth", "Meta"),
            ("last.pt", "last.pt", "save_file"), ("model-00001-of-00002.safetensors", "index.json"),
            ("weights.safetensors", "rename"), ("adapter_config.json", "adapter", "'org/base'", "--adapter"),
            ("README.md", "README.md", "download"), ("run.json", "folder of a run", "spillway export"), ("training_args.bin", "training_args.bin", "download")]):
        for described in (hf_folder.config(), None):
            made = folder(f"other {number} {described is None}", described, None)
            program.write(os.path.join(made, file), '{"base_model_name_or_path": "org/base"}')
            table.append((f"{file}, {'with' if described else 'without'} config.json", made,
                          "config.json" if described is None else "model.safetensors", *words))
    index = folder("missing shard", hf_folder.config(), None)
    program.write(os.path.join(index, "model.safetensors.index.json"),
                  '{"weight_map": {"%s": "model-00001-of-00001.safetensors"}}' % WTE)
    table += [("nothing at all", folder("nothing", None, None), "is empty"),
              ("a missing shard", index, "missing", "model-00001-of-00001.safetensors", "download"),
              ("a name of the Hub", "Qwen/Qwen2.5-7B", "hf download Qwen/Qwen2.5-7B --local-dir Qwen2.5-7B"),
              ("its address", "https://huggingface.co/Qwen/Qwen2.5-7B", "hf download Qwen/Qwen2.5-7B "),
              ("a page of it", "https://huggingface.co/Qwen/Qwen2.5-7B/tree/main", "hf download Qwen/Qwen2.5-7B "),
              ("its revision", "Qwen/Qwen2.5-7B@main", "hf download Qwen/Qwen2.5-7B "),
              ("its folder", "Qwen/Qwen2.5-7B/", "hf download Qwen/Qwen2.5-7B ")]
    return refused_as(table)


def configurations():
    changed = hf_folder.config
    table = [("no config.json", folder("no config", None), "config.json"),
             ("a cut config.json", folder("cut config", '{"model_type": "gpt2", '), "config.json", "JSON"),
             ("an array", folder("array", "[]"), "object"),
             ("another family", folder("mamba", changed(model_type="mamba")), "'mamba'", "gpt2"),
             ("no family", folder("no type", changed(model_type=...)), "model_type"),
             ("another architecture", folder("sequence", changed(architectures=["GPT2ForSequenceClassification"])),
              "GPT2ForSequenceClassification"),
             ("an unknown field", folder("field", changed(rope_theta=10000.0)), "'rope_theta'"),
             ("heads that do not divide", folder("heads", changed(n_head=5)), "n_head", "5", "32"),
             ("no width", folder("no width", changed(n_embd=...)), "n_embd"),
             ("a width of text", folder("text width", changed(n_embd="32")), "n_embd", "whole number"),
             ("a negative width", folder("negative", changed(n_embd=-32)), "n_embd"),
             ("a width beyond reason", folder("huge", changed(n_embd=1 << 60)), "n_embd"),
             ("layers beyond reason", folder("layers", changed(n_layer=1 << 40)), "n_layer"),
             ("an activation", folder("swish", changed(activation_function="swish")), "swish", "gelu_new"),
             ("scaled by layer", folder("scaled", changed(scale_attn_by_inverse_layer_idx=True)),
              "scale_attn_by_inverse_layer_idx"),
             ("a pointer of git-lfs", folder("lfs config", LFS), "config.json", "git lfs pull"),
             ("unequal contexts", folder("n ctx", changed(n_ctx=32)), "n_ctx", "n_positions")]
    return refused_as(table)


def wrong_offsets(change):
    header, data = hf_folder.split(WEIGHTS)
    header[WTE]["data_offsets"] = change(header[WTE]["data_offsets"])
    return hf_folder.join(header, data)


def safetensors_files():
    header, data = hf_folder.split(WEIGHTS)
    good = hf_folder.config()
    other_type = {**header, WTE: {**header[WTE], "dtype": "I32"}}
    file = "model.safetensors"
    pickled = folder("pickled", good, None)
    program.write(os.path.join(pickled, "pytorch_model.bin"), "not read")
    table = [("no weights", folder("no weights", good, None), file),
             ("weights of PyTorch", pickled, file, "pytorch_model.bin", "save_pretrained"),
             ("a pointer of git-lfs", folder("lfs", good, LFS.encode()), file, "git lfs pull"),
             ("a page of HTML", folder("page", good, b"<!doctype html><title>404</title>"), file, "download failed"),
             ("an empty file", folder("empty", good, b""), file, "0 bytes"),
             ("cut in the length", folder("cut length", good, WEIGHTS[:5]), file, "5 bytes"),
             ("cut in the header", folder("cut header", good, WEIGHTS[:200]), file, "200", "truncated"),
             ("cut in the data", folder("cut data", good, WEIGHTS[:-4]), file),
             ("bytes after the end", folder("longer", good, WEIGHTS + b"more"), file),
             ("a header of rubbish", folder("rubbish", good, hf_folder.join(b"}{" * 20, data)), file, "JSON"),
             ("a header longer than all", folder("long", good, b"\xff" * 8 + WEIGHTS[8:]), file),
             ("offsets beyond the file", folder("beyond", good, wrong_offsets(lambda o: [o[0], o[1] + (1 << 40)])),
              WTE),
             ("offsets backwards", folder("backwards", good, wrong_offsets(lambda o: [o[1], o[0]])), WTE),
             ("offsets below zero", folder("negative offset", good, wrong_offsets(lambda o: [-4, o[1]])), WTE),
             ("offsets that miss the shape", folder("short tensor", good, wrong_offsets(lambda o: [o[0], o[1] - 4])),
              WTE),
             ("a type for integers", folder("integers", good, hf_folder.join(other_type, data)), WTE, "F32")]
    return refused_as(table)


def tensors_that_do_not_match():
    good = hf_folder.config()

    def without(name):
        return {other: tensor for other, tensor in GOOD.items() if other != name}

    def weights(named):
        return hf_folder.safetensors(named)

    missing, bias = "transformer.h.1.mlp.c_fc.weight", "transformer.h.0.ln_1.bias"
    wide, wide_values = GOOD[missing]
    table = [("a missing tensor", folder("missing", good, weights(without(missing))), missing),
             ("a turned tensor", folder("turned", good, weights({**GOOD, missing: (wide[::-1], wide_values)})), missing,
              "[128, 32]", "[32, 128]"),
             ("a shorter tensor", folder("shorter", good, weights({**GOOD, bias: ([31], [0.0] * 31)})), bias, "[31]",
              "[32]"),
             ("an unknown tensor", folder("unknown", good, weights({**GOOD, "transformer.extra": ([1], [0.0])})),
              "transformer.extra"),
             ("fewer layers than tensors", folder("fewer layers", hf_folder.config(n_layer=1)), "h.1.", "fewer layers"),
             ("more layers than tensors", folder("more layers", hf_folder.config(n_layer=3)), "h.2.")]
    return refused_as(table)


def a_second_table_that_differs():
    """A tied model trains one table, so that another one under the name of the output table would be lost."""
    shape, values = GOOD[WTE]
    table = []
    for what, second in (("one value", (shape, [*values[:-1], 7.0])), ("nan", (shape, [*values[:-1], math.nan])),
                         ("another shape", (shape[::-1], values)), ("fewer rows", ([1, shape[1]], values[:shape[1]]))):
        weights = hf_folder.safetensors({**GOOD, "lm_head.weight": second})
        table.append((what, folder("second table " + what, hf_folder.config(), weights), "lm_head.weight",
                      "tie_word_embeddings"))
    return refused_as(table)


def values_that_are_not_finite():
    table = []
    for name, value in (("nan", math.nan), ("infinity", math.inf)):
        wrong = "transformer.h.1.attn.c_proj.weight"
        shape, values = GOOD[wrong]
        weights = hf_folder.safetensors({**GOOD, wrong: (shape, [*values[:77], value, *values[78:]])})
        table.append((name, folder(name, hf_folder.config(), weights), wrong, "77"))
    frozen = [*train(table[0][1]), "--freeze", "blocks:1"]
    return refused_as(table) + program.refused("frozen nan", frozen, wrong, "77", watched=[SCRATCH])


def what_names_no_model():
    return refused_as([("an unknown preset", "gpt3", "gpt3"),
                       ("a missing folder", os.path.join(SCRATCH, "none"), "none"),
                       ("a preset without --init", "gpt2-tiny", "--init"), ("a file", DATA, DATA)])


def other_commands_refuse_them_too():
    """generate, export and plan read the same folders by the same rules."""
    nan = os.path.join(SCRATCH, "nan")
    unknown = os.path.join(SCRATCH, "unknown")
    heads = os.path.join(SCRATCH, "heads")
    out = os.path.join(SCRATCH, "out")
    problems = program.refused("export of NaN", ["export", nan, out], "attn.c_proj.weight", watched=[SCRATCH])
    problems += program.refused("generate from NaN", ["generate", nan, "--prompt", "a"], "attn.c_proj.weight")
    problems += program.refused("generate from an unknown tensor", ["generate", unknown, "--prompt", "a"], "extra")
    problems += program.refused("plan of quantized weights", ["plan", "--model", os.path.join(SCRATCH, "gptq")], "quantized",
                                "GPTQ")
    problems += program.refused("tokenize with a name of the Hub", ["tokenize", "--model", "Qwen/Qwen2.5-7B", "--data", DATA,
                                "--out", "o.bin"], "hf download Qwen/Qwen2.5-7B")
    program.write(os.path.join(heads, "tokenizer.model"), "not read")
    problems += program.refused("tokenize by SentencePiece", ["tokenize", "--model", heads, "--data", DATA, "--out", "o.bin"],
                                "tokenizer.model", "AutoTokenizer")
    return problems + program.refused("plan of wrong heads", ["plan", "--model", heads], "n_head")


def what_has_diverged():
    """Weights that are finite and give logits that are not."""
    norm, shape = "transformer.ln_f.bias", GOOD[WTE][0]
    diverged = folder("diverged", hf_folder.config(), hf_folder.safetensors({
        **GOOD, WTE: (shape, [1e30] * hf_folder.count(shape)), norm: (GOOD[norm][0], [1e30] * len(GOOD[norm][1]))}))
    ended = program.run("generate", diverged, "--prompt", "a")
    return [] if ended.code == 1 and "not finite" in ended.err else [f"status {ended.code}, {ended.err!r}"]


script_test.run(good_folders_train, wrapped_weights_train, weights_that_are_no_plain_ones, folders_of_something_else, configurations, safetensors_files, tensors_that_do_not_match,
                a_second_table_that_differs, values_that_are_not_finite, what_names_no_model, other_commands_refuse_them_too,
                what_has_diverged)
