"""The surroundings of the process: closed descriptors, terminals that take no escapes, and folders with limits in their names, no home."""

import fcntl
import glob
import json
import os
import pty
import re
import struct
import subprocess
import termios
import unicodedata

import hf_folder
import program
from program import script_test

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(9, 4000))


def path(*names):
    return os.path.join(SCRATCH, *names)


def train(run, *more):
    return ("train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", path(run), "--steps", 2, "--precision", "fp32",
            *program.SHAPE, *more)


def closed_descriptors_get_no_messages():
    """A file that the program opens must not become standard error."""
    problems = []
    for number, closed in enumerate(("2>&-", ">&- 2>&-", "<&- >&- 2>&-")):
        run = f"closed-{number}"
        words = [str(word) for word in program.command(*train(run))]
        done = subprocess.run(["bash", "-c", f'"$@" {closed}', "bash", *words], check=False)
        files = program.tree(path(run))
        if done.returncode != 0 or not files:
            problems.append(f"{closed}: status {done.returncode}")
        for folder, _, names in os.walk(path(run)):
            for name in names:
                with open(os.path.join(folder, name), "rb") as file:
                    if b"all steps are done" in file.read():
                        problems.append(f"{closed}: {name} has the messages of the run")
    return problems


def shown_on_terminal(words, columns=0, stream="stderr", **environment):
    """Returns what a command writes to a terminal as its standard error or output."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    variables = {name: value for name, value in {**os.environ, "TERM": "xterm", **environment}.items() if value is not None}
    variables.pop("NO_COLOR", None) if "NO_COLOR" not in environment else None
    with subprocess.Popen(program.command(*words), env=variables,
                          **{"stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, stream: inner}) as started:
        os.close(inner)
        shown = b""
        while True:
            try:
                part = os.read(outer, 65536)
            except OSError:  # The program has closed its side.
                break
            shown += part
            if not part:
                break
        started.wait()
    os.close(outer)
    return shown


def escapes_go_to_terminals_that_take_them():
    problems = [] if b"\033[" in shown_on_terminal(train("plain")) else ["a terminal gets no line that is replaced"]
    for number, (what, variables) in enumerate((("NO_COLOR=1", {"NO_COLOR": "1"}), ("TERM=dumb", {"TERM": "dumb"}),
                                                ("no TERM", {"TERM": None}), ("TERM empty", {"TERM": ""}))):
        shown = shown_on_terminal(train(f"terminal-{number}"), **variables)
        if b"\033" in shown or b"\rstep" in shown or b"step 2/2" not in shown:
            problems.append(f"{what}: {shown[-300:]!r}")
    return problems


def errors_are_broken_between_words_on_terminals():
    """Further lines are indented by two blanks; the words stay as they are elsewhere, on one line."""
    problems = []
    for words in (("plan", "--model", "gpt2-tiny", "--epochs", 2), ("trian",), ("bench", "oi"),
                  ("train", "--model", "gpt2-tiny", "--data", "nowhere.txt", "--run", path("none"), "--epochs", 2, "--steps", 3)):
        whole = program.run(*words).err
        if whole.count("\n") != 1 or not whole.endswith("\n"):
            problems.append(f"{words}: standard error is not one line: {whole!r}")
        for columns, named, width in ((60, None, 60), (20, None, 40), (0, None, 80), (60, "72", 72), (60, "none", 60)):
            shown = shown_on_terminal(words, columns, COLUMNS=named).decode().replace("\r\n", "\n")
            lines = shown.splitlines()
            if " ".join(line.strip() for line in lines) + "\n" != whole or any(len(line) > width for line in lines) \
                    or not all(line.startswith("  ") and line[2] != " " for line in lines[1:]) \
                    or (len(whole) > width + 1) != (len(lines) > 1) or max(map(len, lines)) <= width // 2:
                problems.append(f"{words}, {columns} columns, COLUMNS={named}: {shown!r}")
    return problems


def text_and_tables_follow_the_terminal():
    """Lines fill a terminal of 40 to 120 columns, words stay whole, and 80 columns look as a pipe gets it."""
    problems = []
    for words in (("--help",), ("train", "--help"), ("bench", "io", "--help"),
                  ("plan", "--model", "gpt2-tiny", "--machine", "rtx4090", "--explain")):
        whole = program.run(*words).out
        for columns, named, width in ((40, None, 40), (60, None, 60), (80, None, 80), (100, None, 100), (200, None, 120), (200, "50", 50)):
            shown = shown_on_terminal(words, columns, "stdout", COLUMNS=named).decode().replace("\r\n", "\n")
            long = [line for line in shown.splitlines() if len(line) > width and " " in line.strip()]
            examples = shown.partition("\nExamples:\n")[0] if width >= 80 else shown
            if long or shown.split() != whole.split() or (width == max(80, *map(len, whole.splitlines())) and shown != whole) \
                    or (words[1:] == ("--help",) and width > 80 and max(map(len, examples.splitlines())) <= 80):
                problems.append(f"{words}, {columns} columns, COLUMNS={named}: {long[:3]} {shown[:400]!r}")
    found = json.loads(shown_on_terminal(("plan", "--model", "gpt2-tiny", "--machine", "rtx4090", "--json"), 40, "stdout"))
    return problems + ([] if found["model"] == "gpt2-tiny" else ["JSON is not whole on a narrow terminal"])


def limits_of_folders_that_are_no_size():
    os.mkdir(path("nv"))
    os.mkdir(path("odd:3QQ"))
    problems = []
    for limit, words in (("20XB", ("20XB", "not a size")), ("", ("no size behind its colon",)), ("0", ("nothing",)),
                         ("-1", ("below 0",)), ("1e9", ("1e9", "not a size")), ("99999999TB", ("too large",))):
        problems += program.refused(f"--nvme DIR:{limit}", train("limits", "--nvme", f"{path('nv')}:{limit}"), *words, status=2)
    program.must(*train("decimal", "--place", "optimizer=nvme", "--nvme", path("nv") + ":20GB"))
    program.must(*train("name", "--place", "optimizer=nvme", "--nvme", path("odd:3QQ")))
    return problems


def no_home_to_write_to():
    """Chats become tokens in a temporary folder of the user's; one line says so. A folder there that others may write to
    is not used."""
    model, data, temporary = path("model"), path("chats.jsonl"), path("temporary")
    hf_folder.make(model, hf_folder.config(), hf_folder.safetensors(hf_folder.tensors(1)))
    hf_folder.write_chat_tokenizer(model)
    program.write(data, "".join(hf_folder.chat(f"question {i}", f"answer {i}") for i in range(20)))
    os.mkdir(temporary)
    problems, folder = [], os.path.join(temporary, f"spillway-{os.geteuid()}")
    for number, home in enumerate(("/nonexistent", "", "/proc")):
        surroundings = {**os.environ, "HOME": home, "XDG_CACHE_HOME": "", "TMPDIR": temporary}
        for words in (("train", "--model", model, "--data", data, "--run", path(f"homeless-{number}"), "--steps", 2, *program.SHAPE),
                      ("eval", model, "--data", data)):
            ended = program.run(*words, env=surroundings)
            # Later commands find the tokens there, and need not make them.
            if ended.code != 0 or ("set XDG_CACHE_HOME to keep them" in ended.err) != (number == 0 and words[0] == "train"):
                problems.append(f"HOME={home!r}: {words[0]}: status {ended.code}: {ended.err}")
    if not os.path.isdir(folder) or os.stat(folder).st_mode & 0o077:
        problems.append("the temporary cache is not there, or not private")
    os.mkdir(path("home"))
    surroundings = {**os.environ, "HOME": path("home"), "XDG_CACHE_HOME": "", "TMPDIR": temporary}
    ended = program.run("eval", model, "--data", data, env=surroundings)
    if ended.code != 0:
        problems.append(f"a new home: status {ended.code}: {ended.err}")
    if not glob.glob(path("home", ".cache", "spillway", "tokens-*.bin")):
        problems.append("a home without a cache yet is passed over for the temporary one")
    os.chmod(folder, 0o777)
    surroundings = {**os.environ, "HOME": "", "XDG_CACHE_HOME": "", "TMPDIR": temporary}
    ended = program.run("eval", model, "--data", data, env=surroundings)
    if ended.code == 0 or "set XDG_CACHE_HOME" not in ended.err:
        problems.append(f"a folder that all may write to: status {ended.code}: {ended.err}")
    os.chmod(folder, 0o700)
    surroundings = {**os.environ, "HOME": "/proc", "XDG_CACHE_HOME": "", "TMPDIR": "/proc"}
    program.write(data, "".join(hf_folder.chat(f"another {os.getpid()} {i}", f"answer {i}") for i in range(20)))
    ended = program.run("eval", model, "--data", data, env=surroundings)
    made = re.search(r" are in (\S+/tokens-[0-9a-f]+)\.bin and may go", ended.err)
    if ended.code != 0 or made is None:
        problems.append(f"a temporary folder that cannot be written: status {ended.code}: {ended.err}")
    for name in glob.glob(made[1] + "*") if made else ():
        os.unlink(name)
    for mode, link in ((0o777, False), (0o770, True), (0o700, True)):
        shared, target = path(f"shared-{mode:o}"), path(f"shared-{mode:o}", "spillway")
        os.mkdir(shared)
        if link:
            target = path(f"target-{mode:o}")
            os.symlink(target, os.path.join(shared, "spillway"))
        os.mkdir(target)
        os.chmod(target, mode)
        ended = program.run("eval", model, "--data", data, env={**os.environ, "XDG_CACHE_HOME": shared, "TMPDIR": temporary})
        used = bool(os.listdir(target))
        if ended.code != 0 or used != (mode == 0o700):
            problems.append(f"a cache of mode {mode:o}: status {ended.code}, used: {used}: {ended.err}")
    return problems


def other_controls(shown):
    """Returns the control characters in what a terminal was sent, as Unicode and as bytes, without colours of ours."""
    text = re.sub(r"\033\[(32|0)m", "", shown.decode(errors="surrogateescape"))
    return sorted({f"U+{ord(c):04X}" for c in text if c not in "\r\n\t" and unicodedata.category(c) in ("Cc", "Cf", "Cs")})


def foreign_text_does_not_rule_the_terminal():
    """A model's type, its end token, file names, JSON, documents and what a model writes: each is shown, and none is obeyed."""
    evil = "\033]52;c;ZWNobw==\a\033]0;x\a\033[2J\x9b2J\x9d0;y\x9c\u202etxt.exe\u2066\x7f"
    rules = {"special": True, "normalized": False, "single_word": False, "lstrip": False, "rstrip": False}
    tokenizer = hf_folder.byte_tokenizer(added_tokens=[{"id": 1, "content": "<" + evil + ">", **rules}])
    hf_folder.make(path("evil-type"), hf_folder.config(model_type=evil), None)
    hf_folder.make(path("evil"), hf_folder.config(eos_token_id=1), None)
    program.write(path("evil", "tokenizer.json"), tokenizer)
    named = program.write(path("evil \033]0;x\a \udc9b2J\nerror.jsonl"), b'{"text": \033]0;x\a\x9b2J}\n')
    told = program.write(path("evil.txt"), evil.encode() + b" \x9b2J\n")
    program.write(path("told.txt"), evil)
    program.must(*train("bytes"))
    problems = []
    for words in (("plan", "--model", path("evil-type")), ("tokenize", "--model", path("evil"), "--data", told, "--out", path("no.bin")),
                  ("inspect", named, "--model", path("evil")), ("inspect", path("told.txt"), "--model", path("evil")),
                  ("inspect", path("told.txt"), "--model", path("evil"), "--lossy"), ("plan", "--model", evil), (evil,),
                  ("generate", path("bytes"), "--prompt", "a", "--max-tokens", 60, "--temperature", 5), ("report", path("bytes"), evil),
                  ("plan", "--model", "gpt2-tiny", "--" + evil), ("eval", path("bytes"), "--data", named)):
        for stream in ("stdout", "stderr"):
            shown = shown_on_terminal(words, 80, stream)
            if other_controls(shown):
                problems.append(f"{words[:3]}, {stream}: {other_controls(shown)}: {shown[:300]!r}")
    for words in (("plan", "--model", path("evil-type")), ("inspect", named, "--model", path("evil"))):
        err = subprocess.run(program.command(*words), capture_output=True, check=False).stderr
        if other_controls(err) or b"\\u001b]" not in err or err.count(b"\n") != 1:
            problems.append(f"{words[:2]}, piped: {err[:300]!r}")
    shown = shown_on_terminal(("inspect", path("told.txt"), "--model", path("evil")), 80, "stdout")
    if b"\033[32m" not in shown or b"\\u001b[2J" not in shown or b"\\u009b2J" not in shown or b"\\u202etxt.exe" not in shown:
        problems.append(f"inspect shows {shown!r}")
    piped = program.must("inspect", path("told.txt"), "--model", path("evil")).out
    return problems + ([] if "\033[2J" in piped else [f"text for a program is changed: {piped!r}"])


script_test.run(closed_descriptors_get_no_messages, escapes_go_to_terminals_that_take_them,
                errors_are_broken_between_words_on_terminals, text_and_tables_follow_the_terminal,
                foreign_text_does_not_rule_the_terminal, limits_of_folders_that_are_no_size, no_home_to_write_to)
