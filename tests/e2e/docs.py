"""The documentation is right: its commands run, its flags exist, its links and paths lead somewhere."""

import array
import glob
import os
import re
import shlex

import hf_folder
import program
import script_test

ROOT = os.path.dirname(os.path.dirname(program.HERE))
PAGES = [os.path.join(ROOT, name) for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted(glob.glob(os.path.join(ROOT, "docs", "**", "*.md"), recursive=True))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]*))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.M)
PATH = re.compile(r"`((?:core|io|kernels|offload|library|text|model|report|job|run|cli|bench|tests|tools|docs)/[\w./-]*)`")
STEPS, SPEED = re.compile(r"(--steps) (\d+)"), re.compile(r"(--largest) (\d+)")
# Runs are as long as a reader's; a test's are shorter by this. Its largest models are smaller, as they are to be faster by this.
SHORTER, FASTER = 250, 2000
# Batches that only plans have, and those of trainings whose command leaves them to the default.
BATCH, SMALL_BATCH, SHARED_BATCH, DEFAULT_BATCH = (f"--batch-tokens {tokens}" for tokens in (131072, 8192, 16384, 2048))
HAVE_MPI = os.environ.get("SW_HAVE_MPI") == "1"


def read(page):
    with open(page, encoding="utf-8") as file:
        return file.read()


def name_of(page):
    return os.path.relpath(page, ROOT)


def commands_of(page, language=None):
    """The words of each command of the page's fenced blocks, those of one language or of all."""
    for found in FENCE.finditer(read(page)):
        if language is None or found[1] == language:
            for line in found[2].replace("\\\n", " ").splitlines():
                words = shlex.split(line.removeprefix("$ "), comments=True) if line.count("'") % 2 == 0 else []
                if words:
                    yield words


def anchors_of(page):
    """The anchors that GitHub makes from a page's headings."""
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(FENCE.sub("", read(page)))}


def links_and_paths_lead_somewhere():
    problems = []
    for page in PAGES:
        for target, anchor in LINK.findall(read(page)):
            path = os.path.join(os.path.dirname(page), target) if target else page
            if not os.path.exists(path):
                problems.append(f"{name_of(page)}: no {target}")
            elif anchor and anchor not in anchors_of(path):
                problems.append(f"{name_of(page)}: no {target}#{anchor}")
        for target in PATH.findall(read(page)):
            if not glob.glob(os.path.join(ROOT, target.rstrip("/")) + "*"):
                problems.append(f"{name_of(page)}: no {target}")
    return problems


def flags_exist():
    problems, help_of = [], {}
    for page in PAGES:
        for words in commands_of(page):
            if words[0] == "mpirun" and "spillway" in words:
                words = words[words.index("spillway"):]
            if words[0] != "spillway" or len(words) < 2:
                continue
            command = words[1:3] if words[1] == "bench" else words[1:2]
            key = " ".join(command)
            if key not in help_of:
                ended = program.run(*command, "--help")
                help_of[key] = ended.out + ended.err if ended.code == 0 else ""
            problems += [f"{name_of(page)}: {key} has no {word}" for word in words
                         if word.startswith("--") and not re.search(rf"{word}\b", help_of[key])]
    return problems


def prepare(folder):
    """Makes the files that the pages call model, pairs.jsonl, text.txt, text.bin, held-out.txt, held-out.bin and prompt.bin, and the
    way to the machines of bench."""
    os.symlink(os.path.join(ROOT, "bench"), os.path.join(folder, "bench"))
    model = os.path.join(folder, "model")
    os.mkdir(model)
    program.write(os.path.join(model, "config.json"), program.json.dumps(hf_folder.config()))
    program.write(os.path.join(model, "model.safetensors"), hf_folder.safetensors(hf_folder.tensors(1)))
    hf_folder.write_chat_tokenizer(model)
    program.write(os.path.join(folder, "chat.jsonl"), hf_folder.chat("What?", "That.") * 200)
    program.write(os.path.join(folder, "pairs.jsonl"), '{"prompt": "What?", "chosen": "That.", "rejected": "This."}\n' * 100)
    program.write(os.path.join(folder, "docs.jsonl"), "".join(f'{{"text": "line {i}"}}\n' for i in range(100)))
    for name, length in (("text", 20000), ("held-out", 2000), ("prompt", 40)):
        words = program.text(7, length)
        program.write(os.path.join(folder, name + ".txt"), words)
        program.write(os.path.join(folder, name + ".bin"), array.array("H", list(words.encode())).tobytes())


def shortened(words):
    shorter = STEPS.sub(lambda found: f"{found[1]} {max(1, int(found[2]) // SHORTER)}", shlex.join(words))
    shorter = shorter.replace(BATCH, SHARED_BATCH if "--ranks" in words else SMALL_BATCH)
    words = shlex.split(SPEED.sub(lambda found: f"{found[1]} {int(found[2]) * FASTER}", shorter))
    trains = "train" in words[:1] and not {"--batch-tokens", "--recipe"} & set(words)
    return [*words, *DEFAULT_BATCH.split()] if trains else words


def run_ranks(words, shorter, folder):
    """Runs a command that mpirun starts, where there is MPI, with its arguments made shorter."""
    if not HAVE_MPI:
        return []
    at = words.index("spillway")
    # A plan by several ranks measures the same for a small model, and compares fewer plans.
    command = ["gpt2-tiny" if words[at + 1] == "plan" and word == "gpt2-124m" else word for word in words[at + 1:]]
    done = program.limits.run(["mpirun", "--allow-run-as-root", "--oversubscribe", *words[1:at], program.PROGRAM,
                                   *shorter(command)], cwd=folder, stdin=program.subprocess.DEVNULL,
                                  capture_output=True, check=False)
    return [] if done.returncode == 0 else [f"{shlex.join(words)}: {done.stderr[-800:]}"]


def run_page(page):
    problems, folder = [], program.scratch_folder()
    prepare(folder)
    for words in commands_of(page, "sh"):
        if words[0] == "mpirun":
            problems += [f"{name_of(page)}: {problem}" for problem in run_ranks(words, shortened, folder)]
        elif words[0] == "spillway":
            ended = program.run(*shortened(words[1:]), cwd=folder)
            problems += [] if ended.code == 0 else [f"{name_of(page)}: {shlex.join(words)}: {ended.err[-800:]}"]
        elif not os.path.exists(os.path.join(ROOT, words[0])):
            problems.append(f"{name_of(page)}: there is no {words[0]}")
    return problems


def commands_run():
    problems = []
    for page in PAGES:
        problems += run_page(page)
    return problems


def examples_of(*command):
    """The words of each example that a command's --help ends with."""
    text = program.run(*command, "--help").out.partition("\nExamples:\n")[2].replace("\\\n", " ")
    return [shlex.split(line) for line in text.splitlines()]


def examples_of_help_run():
    """Examples of the commands run one after the other in one folder."""
    problems, folder = [], program.scratch_folder()
    prepare(folder)
    for command in ("tokenize", "inspect", "doctor", "plan", "train", "resume", "eval", "generate", "export", "tensors", "verify",
                    "report"):
        examples = examples_of(command)
        problems += [] if len(examples) == 3 else [f"{command} --help has {len(examples)} examples"]
        for words in examples:
            more = ["--steps", "2"] if command == "train" and "--steps" not in words else []
            ended = program.run(*shortened(words[1:]), *more, cwd=folder)
            problems += [] if ended.code == 0 else [f"{shlex.join(words)}: {ended.err[-800:]}"]
    return problems


def quick_bench(words):
    """The arguments of a bench with one round of a small model or size, where the bench has them."""
    quick = {"comm": ("--rounds 1", "--size 64KiB"), "copy": ("--rounds 1", "--size 64KiB"),
             "experts": ("--rounds 1", "--tokens 64", "--experts 8", "--chosen 2", "--hidden 256", "--inner 512"), "load": ("--rounds 1", "--model gpt2-tiny"),
             "update": ("--rounds 1",), "zero": ("--model gpt2-tiny",),
             "step": ("--rounds 1", "--steps 1", "--model gpt2-tiny", "--batch-tokens 256", "--micro-batch 1")}
    if words[1] in ("comm", "copy"):
        words = [re.sub(r"^(\d+)MiB$", lambda found: f"{int(found[1]) * 64}KiB", word) for word in words]
    for setting in quick.get(words[1], ("--rounds 1", "--model gpt2-tiny")):
        flag, value = setting.split()
        if flag not in words:
            words = [*words, flag, value]
        elif flag in ("--rounds", "--steps") or words[words.index(flag) + 1] == "gpt2-124m":
            at = words.index(flag)
            words = [*words[:at + 1], value, *words[at + 2:]]
    return words


def examples_of_benches_run():
    """Examples of `bench io`, which take longer than this test, are only parsed: cli_bench_io runs it."""
    problems, folder = [], program.scratch_folder()
    prepare(folder)
    program.must("plan", "--model", "gpt2-tiny", "--batch-tokens", 256, "--micro-batch", 1, "--rates", os.path.join(folder, "rates.json"))
    for line in program.run("bench", "--help").out.splitlines():
        for words in examples_of("bench", line.split()[0]) if line.startswith("  ") else []:
            if words[0] == "mpirun":
                problems += run_ranks(words, quick_bench, folder)
                continue
            arguments = [*words[1:], "--help"] if words[2] == "io" else quick_bench(words[1:])
            ended = program.run(*arguments, cwd=folder)
            problems += [] if ended.code == 0 else [f"{shlex.join(words)}: {ended.err[-800:]}"]
    return problems


script_test.run(links_and_paths_lead_somewhere, flags_exist, commands_run, examples_of_help_run,
                examples_of_benches_run)
