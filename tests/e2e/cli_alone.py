"""From a downloaded chat model and conversations to a reply, with nothing but the program: it runs in a root folder that
has its own shared libraries and no Python, no shell and no other file."""

import json
import os
import random
import re
import shutil
import subprocess

import hf_folder
import program
from program import script_test

ROOT = program.scratch_folder()
VOCABULARY, POSITIONS = 258, 128
CAPITALS = {"France": "Paris", "Greece": "Athens", "Japan": "Tokyo", "Norway": "Oslo", "Peru": "Lima", "Egypt": "Cairo"}
CONVERSATIONS = 10000
TRAIN = ("train", "--model", "model", "--data", "chat.jsonl", "--val", "2%", "--run", "run", "--steps", 250, "--lr", "4e-3",
         "--seq", 128, "--batch-tokens", 1024, "--place", "optimizer=nvme")
ENTER = f"""cd '{ROOT}' && mount -t proc proc proc && mount --bind /sys sys && mount --bind /dev dev && exec chroot . "$@"
"""


def copy_program():
    """Copies the program and the libraries that the dynamic linker names, each to the path that it has here."""
    libraries = subprocess.run(["ldd", program.PROGRAM], capture_output=True, text=True, check=True).stdout
    os.makedirs(os.path.join(ROOT, "bin"))
    shutil.copy(program.PROGRAM, os.path.join(ROOT, "bin", "spillway"))
    for library in re.findall(r"(/\S+) \(0x", libraries):
        os.makedirs(ROOT + os.path.dirname(library), exist_ok=True)
        shutil.copy(library, ROOT + library)


def write_model(folder):
    os.makedirs(folder)
    shapes = hf_folder.shapes(VOCABULARY, positions=POSITIONS)
    weights = {name: (shape, hf_folder.random_values(name, shape, 3)) for name, shape in shapes.items()}
    described = hf_folder.config(vocab_size=VOCABULARY, n_positions=POSITIONS, eos_token_id=VOCABULARY - 1)
    program.write(os.path.join(folder, "config.json"), json.dumps(described))
    program.write(os.path.join(folder, "model.safetensors"), hf_folder.safetensors(weights))
    hf_folder.write_chat_tokenizer(folder, first=VOCABULARY - 2)


def conversation(draw):
    first, second = draw.sample(sorted(CAPITALS), 2)
    return hf_folder.chat(f"Capital of {first}?", f"{CAPITALS[first]}.", f"And of {second}?", f"{CAPITALS[second]}.")


def prepare():
    for name in ("proc", "sys", "dev", "tmp", "home"):
        os.makedirs(os.path.join(ROOT, name))
    copy_program()
    write_model(os.path.join(ROOT, "model"))
    draw = random.Random(5)
    program.write(os.path.join(ROOT, "chat.jsonl"), "".join(conversation(draw) for _ in range(CONVERSATIONS)))


def alone(*arguments, stdin=""):
    """Runs the program in the root folder and a mount namespace of its own."""
    words = ["/bin/spillway", *map(str, arguments)]
    environment = {"HOME": "/home", "PATH": os.environ["PATH"]}
    done = program.limits.run(["unshare", "--mount", "sh", "-c", ENTER, "sh", *words], input=stdin, capture_output=True,
                          text=True, check=False, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"spillway {' '.join(words[1:])}: status {done.returncode}: {done.stderr[-500:]}")
    return done


def chat_data_to_a_reply():
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode != 0:
        raise script_test.Skip("no mount namespaces")
    prepare()
    problems = []
    said = alone(*TRAIN).stderr
    if f"tokens of {CONVERSATIONS} documents" not in said:
        problems.append(f"train does not say that it took {CONVERSATIONS} conversations: {said[:500]}")
    replies = alone("generate", "run", "--chat", "--temperature", 0, stdin="Capital of Japan?\nAnd of Peru?\n").stdout
    if replies.split() != ["Tokyo.", "Lima."]:
        problems.append(f"the replies are {replies!r}")
    alone("report", "run", "--out", "report.html")
    with open(os.path.join(ROOT, "report.html"), encoding="utf-8") as file:
        problems += [] if file.read(100).startswith("<!doctype html>") else ["the report is no page"]
    alone("export", "run", "out")
    wanted = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    return problems + [f"the export lacks {name}" for name in sorted(wanted - set(os.listdir(os.path.join(ROOT, "out"))))]


script_test.run(chat_data_to_a_reply)
