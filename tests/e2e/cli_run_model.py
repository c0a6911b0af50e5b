"""A run keeps the tokenizer, the chat template and the configuration that it was made with: a run that was moved, and
whose model's folder was changed or removed, goes on, talks, evaluates and exports as before. No file is copied to which
a link leads out of the model's folder."""

import json
import os
import shutil
import subprocess

import hf_folder
import program
from program import script_test
from ranks_jobs import threads
from token_files import START, cache_of_its_own, cached, expect, path

KEPT = ("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json", "special_tokens_map.json",
        "vocab.json", "merges.txt", "tokenizer.model", "added_tokens.json", "chat_template.json")
VOCAB = 300
CHATS = "".join(hf_folder.chat(f"question {i}", f"answer {i * 7}") for i in range(60))
LATER = program.text(3, 3000)


def model_folder(name, template=hf_folder.CHATML):
    """A model with weights and all small files, and one that no run needs."""
    model = hf_folder.make(path(name), hf_folder.config(vocab_size=VOCAB, eos_token_id=0, transformers_version="4.0"),
                           hf_folder.safetensors(hf_folder.tensors(3, VOCAB)))
    hf_folder.write_chat_tokenizer(model, template, first=START)
    for file in set(KEPT) - set(os.listdir(model)):
        program.write(os.path.join(model, file), json.dumps({"of": file}))
    program.write(os.path.join(model, "README.md"), "read me")
    return model


def kept_in(run):
    """Names of the copies of a run."""
    return sorted({*KEPT} & {*os.listdir(run)})


def lose_copies(run):
    for name in kept_in(run):
        os.unlink(os.path.join(run, name))


def train(run, model, *more):
    data = program.write(path("chats.jsonl"), CHATS)
    return ("train", "--model", model, "--data", data, "--run", run, "--steps", 2, "--sample-every", 2, "--lr", "1e-3",
            "--sample-prompt", "question 3", *program.SHAPE, *more)


def read(*names):
    with open(os.path.join(*names), "rb") as file:
        return file.read()


def must(problems, what, *arguments, env=None):
    ended = program.run(*arguments, env=env)
    expect(problems, what, (ended.code, ended.err[-400:] if ended.code else ""), (0, ""))
    return ended


def answers(problems, what, run, env):
    """Texts that a run writes, and its losses on others."""
    text = program.write(path("later.txt"), LATER)
    commands = (("generate", run, "--prompt", "answer", "--max-tokens", 8, "--temperature", 0),
                ("generate", run, "--chat", "--prompt", "question 5", "--max-tokens", 8, "--temperature", 0),
                ("eval", run, "--data", path("chats.jsonl"), "--seq", 64, "--json"),
                ("eval", run, "--data", text, "--seq", 64, "--json"))
    said = []
    for command in commands:
        ended = must(problems, f"{what}: {command[0]}", *command, env=env)
        is_measured = command[0] == "eval" and ended.code == 0
        said.append([json.loads(ended.out)[name] for name in ("loss", "bits_per_byte")] if is_measured else ended.out)
    return said


def a_moved_run_goes_on():
    problems, env = [], cache_of_its_own("moved-cache")
    model, run, moved = model_folder("model"), path("run"), path("elsewhere", "moved")
    dry = must(problems, "dry run", *train(run, model, "--dry-run"), env=env)
    expect(problems, "a dry run makes nothing", ("nothing was written" in dry.err, os.path.exists(run)), (True, False))
    must(problems, "train", *train(run, model, "--export-every", 2), env=env)
    expect(problems, "files that are kept", kept_in(run), sorted(KEPT))
    for name in KEPT:
        expect(problems, name, read(run, name), read(model, name))
    modes = {name: os.stat(os.path.join(run, name)).st_mode & 0o777 for name in (".", *KEPT)}
    expect(problems, "modes", modes, {".": 0o700, **{name: 0o600 for name in KEPT}})
    must(problems, "export", "export", run, path("before"), env=env)
    before = answers(problems, "before", run, env)

    shutil.rmtree(model)
    shutil.rmtree(os.path.join(env["XDG_CACHE_HOME"], "spillway"), ignore_errors=True)
    os.mkdir(path("elsewhere"))
    shutil.move(run, moved)
    ended = must(problems, "export of the moved run", "export", moved, path("after"), env=env)
    expect(problems, "it lacks nothing", "without" in ended.err, False)
    expect(problems, "files of the export", sorted(program.tree(path("before"))), sorted([*KEPT, "model.safetensors"]))
    expect(problems, "exports that differ", program.differences(program.tree(path("before")), program.tree(path("after"))), [])
    expect(problems, "what it says", answers(problems, "moved", moved, env), before)
    shutil.rmtree(os.path.join(env["XDG_CACHE_HOME"], "spillway"), ignore_errors=True)
    ended = must(problems, "resume", "resume", moved, "--steps", 4, env=env)
    expect(problems, "tokens are made again", "is made again" in ended.err, True)
    if problems:
        return problems
    samples = [line["sample"]["prompt"] for line in program.log_lines(moved) if "sample" in line]
    expect(problems, "samples go on", samples, ["question 3"] * 2)
    for name in KEPT:
        expect(problems, f"an export as it trains: {name}", read(moved, "exports", "step-4", name), read(path("before"), name))
    return problems


def a_run_keeps_its_own_tokenizer():
    """Another tokenizer in the model's folder is none of the run's business, nor of the cache of its tokens."""
    problems, env = [], cache_of_its_own("own-cache")
    model, run = model_folder("replaced"), path("own")
    must(problems, "train", *train(run, model), env=env)
    tokens = cached(env)
    before = answers(problems, "before", run, env)
    hf_folder.write_chat_tokenizer(model, hf_folder.CHATML.replace("im_start", "im_end"), first=7)
    program.write(os.path.join(model, "chat_template.jinja"), "{{ 'x' }}")
    for name in cached(env):
        os.unlink(os.path.join(env["XDG_CACHE_HOME"], "spillway", name))
    expect(problems, "what it says", answers(problems, "after", run, env), before)
    must(problems, "resume", "resume", run, "--steps", 3, env=env)
    expect(problems, "its tokens", set(tokens) <= set(cached(env)), True)
    must(problems, "export", "export", run, path("own-export"), env=env)
    expect(problems, "its template", os.path.exists(path("own-export", "chat_template.jinja")), False)
    expect(problems, "its tokenizer", read(path("own-export"), "tokenizer.json"), read(run, "tokenizer.json"))
    return problems


def damaged_copies_are_found():
    """By verify, and of a run that has none it says nothing."""
    problems, env = [], cache_of_its_own("damage-cache")
    run = path("damaged")
    must(problems, "train", *train(run, model_folder("whole")), env=env)
    digests = program.read_json(os.path.join(run, "run.json"))["model_files"]
    expect(problems, "digests", sorted(digests), sorted(KEPT))
    must(problems, "resume", "resume", run, "--steps", 3, env=env)
    expect(problems, "digests after a resume", program.read_json(os.path.join(run, "run.json"))["model_files"], digests)
    expect(problems, "whole", json.loads(must(problems, "verify", "verify", run, "--json").out)["bad_files"], [])
    changed, lost, odd = (os.path.join(run, name) for name in ("tokenizer.json", "merges.txt", "vocab.json"))
    program.write(changed, read(changed).replace(b"1.0", b"1.1"))
    os.unlink(lost)
    os.unlink(odd)
    os.mkfifo(odd)
    found = json.loads(program.run("verify", run, "--json").out)["bad_files"]
    reasons = {changed: "wrong checksum", lost: "missing", odd: "no regular file"}
    expect(problems, "damage", {bad["file"]: bad["reason"] for bad in found}, reasons)
    problems += program.refused("verify", ["verify", run], changed, "wrong checksum", "others", "any copy of the run")
    ended = must(problems, "export", "export", run, path("damaged-export"), env=env)
    last = ended.err.strip().split("\n")[-1]
    expect(problems, last, "without vocab.json, merges.txt: restore what the run's folder lacks" in last, True)
    lose_copies(run)
    expect(problems, "all are lost", len(json.loads(program.run("verify", run, "--json").out)["bad_files"]), len(KEPT))
    older = program.read_json(os.path.join(run, "run.json"))
    del older["model_files"]
    program.write(os.path.join(run, "run.json"), json.dumps(older))
    must(problems, "an older run", "verify", run)
    return problems


def text_is_looked_at_by_way_of_a_run():
    """inspect and tokenize take a run for its tokenizer."""
    problems, env = [], cache_of_its_own("looked-cache")
    model, run = model_folder("looked"), path("looked-run")
    must(problems, "train", *train(run, model), env=env)
    made = {}
    for what, folder in (("model", model), ("run", run)):
        made[what] = must(problems, "inspect", "inspect", path("chats.jsonl"), "--model", folder, env=env).out
        must(problems, "tokenize", "tokenize", "--model", folder, "--data", path("chats.jsonl"), "--out", path(f"{what}.bin"), env=env)
        shutil.rmtree(model, ignore_errors=True)
    expect(problems, "inspect", made["run"], made["model"])
    expect(problems, "tokenize", read(path("run.bin")), read(path("model.bin")))
    problems += program.refused("a run to train from", train(path("new"), run), f"spillway export {run}")
    lose_copies(run)
    problems += program.refused("a run without", ["inspect", path("chats.jsonl"), "--model", run], "keeps no tokenizer", model)
    return problems


def what_an_export_lacks_is_said():
    """Also of runs that older versions made, which read the model's folder as long as it is there."""
    problems, env = [], cache_of_its_own("lacking-cache")
    model, run, data = model_folder("gone"), path("older"), program.write(path("bytes.txt"), LATER)
    must(problems, "train", *train(run, model), env=env)
    lose_copies(run)
    older = program.read_json(os.path.join(run, "run.json"))
    del older["model_files"]
    program.write(os.path.join(run, "run.json"), json.dumps(older))
    must(problems, "resume", "resume", run, "--steps", 3, env=env)
    expect(problems, "an older run keeps nothing", kept_in(run), [])
    ended = must(problems, "export", "export", run, path("older-export"), env=env)
    expect(problems, "export", ("without" in ended.err, read(path("older-export"), "vocab.json")), (False, read(model, "vocab.json")))
    shutil.rmtree(model)
    shutil.rmtree(os.path.join(env["XDG_CACHE_HOME"], "spillway"))
    ended = program.run("resume", run, "--steps", 4, env=env)
    last = ended.err.strip().split("\n")[-1]
    expect(problems, last, ended.code == 1 and all(word in last for word in ("tokens", model, "cannot be made again")), True)
    ended = must(problems, "export without the folder", "export", run, path("older-lacking"), env=env)
    said = ended.err.strip().split("\n")[-1]
    expect(problems, said, all(word in said for word in ("wrote ", "without tokenizer.json", model, "gone")), True)
    preset = path("preset")
    must(problems, "train a preset", "train", "--model", "gpt2-tiny", "--init", "--data", data, "--run", preset, "--steps", 1,
         *program.SHAPE, env=env)
    expect(problems, "a preset has no files", kept_in(preset), [])
    ended = must(problems, "export of a preset", "export", preset, path("preset-export"), env=env)
    expect(problems, ended.err, "without tokenizer.json: gpt2-tiny has none" in ended.err, True)
    described = program.write(path("described.json"), json.dumps(hf_folder.config()))
    must(problems, "train by a config.json", "train", "--model", described, "--init", "--data", data, "--run", path("by-config"),
         "--steps", 1, *program.SHAPE, env=env)
    ended = must(problems, "export of a config.json", "export", path("by-config"), path("by-config-export"), env=env)
    expect(problems, ended.err, f"without tokenizer.json: {described} has none" in ended.err, True)
    return problems


def linked(name, file, target):
    """A model whose file is a link."""
    model = model_folder(name)
    os.unlink(os.path.join(model, file))
    os.symlink(target, os.path.join(model, file))
    return model


def nothing_from_elsewhere_is_copied():
    """Links out of the folder, FIFOs and huge files are left out by name; links below the folder, and to the model's own
    blobs in a Hugging Face cache, are followed."""
    problems, env = [], cache_of_its_own("link-cache")
    secret = program.write(path("id_rsa"), "secret")
    own, other, no_blob = (os.path.join(path("hub"), *names, "blobs", "0f")
                           for names in (("models--a--b",), ("models--a--private",), ()))
    for blob in (own, other, no_blob):
        os.makedirs(os.path.dirname(blob))
        program.write(blob, "public" if blob == own else "secret")
    snapshots = os.path.join("hub", "models--a--b", "snapshots")
    os.makedirs(path(snapshots))
    os.makedirs(path(snapshots, "nest"))

    def make_fifo(at):
        os.unlink(at)
        os.mkfifo(at)

    cases = (("secret", secret, None), ("climbs", "../id_rsa", None), ("no-blob", no_blob, None), ("nowhere", "missing", None),
             ("blob", own, None), (os.path.join(snapshots, "own"), "../../blobs/0f", b"public"),
             (os.path.join(snapshots, "nest", "own"), own, b"public"), (os.path.join(snapshots, "other"), other, None),
             (os.path.join("hub", "models--a--b", "no-snapshot"), own, None), ("inside", "README.md", b"read me"), ("fifo", make_fifo, None),
             ("huge", lambda at: os.truncate(at, 257 << 20), None))
    for name, target, content in cases:
        model = linked(name, "tokenizer.model", target) if isinstance(target, str) else model_folder(name)
        if not isinstance(target, str):
            target(os.path.join(model, "tokenizer.model"))
        run, export = (path(f"{what}-{name.replace(os.sep, '-')}") for what in ("run", "export"))
        trained = must(problems, name, *train(run, model), env=env)
        exported = must(problems, name, "export", model, export, env=env)
        for what, ended, folder in (("run", trained, run), ("export", exported, export)):
            there = os.path.exists(os.path.join(folder, "tokenizer.model"))
            expect(problems, f"{name}: {what}", read(folder, "tokenizer.model") if there else None, content)
            expect(problems, f"{name}: {what} says so: {ended.err[-300:]}", "tokenizer.model" in ended.err, content is None)
            expect(problems, f"{name}: {what} has the others", sorted({*KEPT} - {*os.listdir(folder)} - {"tokenizer.model"}), [])
    # A part of a tokenizer would be another one.
    shutil.copy(path("secret", "tokenizer.json"), path("elsewhere.json"))
    model = linked("needed", "tokenizer.json", path("elsewhere.json"))
    ended = must(problems, "a tokenizer elsewhere", *train(path("run-needed"), model), env=env)
    expect(problems, ended.err, "the run keeps no copies" in ended.err and "elsewhere.json" in ended.err, True)
    expect(problems, "nothing is kept", kept_in(path("run-needed")), [])
    must(problems, "resume", "resume", path("run-needed"), "--steps", 3, env=env)
    ended = must(problems, "export", "export", path("run-needed"), path("export-needed"), env=env)
    expect(problems, ended.err, "without tokenizer.json: that of" in ended.err, True)
    # A run folder that somebody else made.
    run, text = path("run-inside"), path("chats.jsonl")
    os.unlink(os.path.join(run, "tokenizer.model"))
    os.symlink(secret, os.path.join(run, "tokenizer.model"))
    for command in (("export", run, path("export-robbed")), ("generate", run, "--prompt", "a"), ("eval", run, "--data", text),
                    ("resume", run, "--steps", 3), ("inspect", text, "--model", run)):
        problems += program.refused(f"{command[0]} of a link", command, "tokenizer.model is a link", watched=[run])
    expect(problems, "an export is made", os.path.exists(path("export-robbed")), False)
    return problems


def what_is_private_stays_private():
    problems, env = [], cache_of_its_own("private-cache")
    model = model_folder("private")
    os.chmod(os.path.join(model, "vocab.json"), 0o600)
    before = os.umask(0o022)
    try:
        must(problems, "export", "export", model, path("private-export"), env=env)
    finally:
        os.umask(before)
    modes = [os.stat(path("private-export", name)).st_mode & 0o777 for name in ("vocab.json", "merges.txt")]
    expect(problems, "modes", modes, [0o600, 0o644])
    return problems


def killed_starts_begin_again():
    """A kill while the files are copied, or before or after: the same command begins the run again."""
    problems, env = [], {**os.environ}
    model, run = model_folder("killed"), path("killed-run")
    program.write(os.path.join(model, "vocab.json"), b"x" * (8 << 20))
    caught = 0
    for what in ("tokenizer.json", "vocab.json", "merges.txt", "run.json", "config.json"):
        shutil.rmtree(run, ignore_errors=True)
        process = program.start(*train(run, model))
        while not os.path.exists(os.path.join(run, what)) and process.poll() is None:
            pass
        process.kill()
        process.wait()
        process.stderr.close()
        caught += os.path.exists(os.path.join(run, "starting.json"))
        if os.path.exists(os.path.join(run, "starting.json")):
            again = must(problems, f"killed at {what}", *train(run, model), env=env)
            expect(problems, f"killed at {what}", "is begun again" in again.err, True)
            expect(problems, f"files after {what}", kept_in(run), sorted(KEPT))
            expect(problems, f"content after {what}", read(run, "vocab.json"), read(model, "vocab.json"))
    expect(problems, "starts that were caught", caught > 0, True)
    # A file that the start did not make is not removed.
    stores = program.read_json(os.path.join(run, "run.json"))["stores"]
    program.write(os.path.join(run, "starting.json"),
                  json.dumps({"spillway_start": 1, "ranks": 1, "whole": False, "stores": stores}))
    for name in ("log.jsonl", "timeline.json"):
        os.unlink(os.path.join(run, name))
    mine = program.write(os.path.join(run, "thesis.txt"), "mine")
    problems += program.refused("a foreign file", train(run, model), "thesis.txt", "not empty", watched=[run])
    os.unlink(mine)
    # A link is removed, and nothing of the file that it leads to.
    for name in ("vocab.json", "store.spillway"):
        os.unlink(os.path.join(run, name))
    os.symlink(program.write(path("aside.json"), "mine"), os.path.join(run, "vocab.json"))
    must(problems, "a link instead of a copy", *train(run, model))
    expect(problems, "the file that it led to", read(path("aside.json")), b"mine")
    expect(problems, "the copy", read(run, "vocab.json"), read(model, "vocab.json"))
    return problems


def ranks_keep_one_copy():
    problems, env = [], cache_of_its_own("ranks-cache")
    model, run, moved = model_folder("shared"), path("ranks-run"), path("ranks-moved")
    done = subprocess.run(threads(2, program.command(*train(run, model))), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, check=False, env=env)
    if done.returncode != 0:
        return [f"two ranks: status {done.returncode}, {done.stderr[-500:]}"]
    expect(problems, "files", kept_in(run), sorted(KEPT))
    shutil.rmtree(model)
    shutil.rmtree(os.path.join(env["XDG_CACHE_HOME"], "spillway"), ignore_errors=True)
    shutil.move(run, moved)
    done = subprocess.run(threads(2, program.command("resume", moved, "--steps", 4)), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, check=False, env=env)
    expect(problems, "resume", (done.returncode, done.stderr[-400:] if done.returncode else ""), (0, ""))
    answers(problems, "moved", moved, env)
    return problems


script_test.run(a_moved_run_goes_on, a_run_keeps_its_own_tokenizer, damaged_copies_are_found,
                text_is_looked_at_by_way_of_a_run, what_an_export_lacks_is_said, nothing_from_elsewhere_is_copied,
                what_is_private_stays_private, killed_starts_begin_again, ranks_keep_one_copy)
