"""--dpo as a user has it: trl's losses and rewards on all forms of pairs, the same bits for every placement, over kills and
resumes, the same losses for every number of ranks, and a sentence for each pair or file that is wrong."""

import json
import os
import random
import shutil
import struct
import subprocess
import time

import preference_pairs as pairs
import program
from program import script_test
from ranks_jobs import threads

SCRATCH = program.scratch_folder()
GOLDEN = program.read_json(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "dpo.json"))
NEAR, RANKS_NEAR = 1e-5, 1e-5
STEPS, HALF = 6, 3
FILE = "reference.spillway"
REWARDS = ("chosen", "rejected", "margin", "accuracy")
SMALL = ("--threads", 1, "--chunk-grains", 2)


def path(*names):
    return os.path.join(SCRATCH, *names)


MODEL = pairs.model(path("model"))
PLAIN = pairs.write(path("plain.jsonl"), pairs.plain())
CHATS = pairs.write(path("chats.jsonl"), pairs.chats())
SHARED = pairs.write(path("shared.jsonl"), pairs.shared(pairs.chats()))


def many(count):
    """Pairs of several steps, so that their order matters."""
    draw = random.Random(11)
    return [{**draw.choice(pairs.plain()), "prompt": f"{draw.randrange(100)}?"} for _ in range(count)]


MANY, OTHERS = pairs.write(path("many.jsonl"), many(40)), pairs.write(path("others.jsonl"), many(13))


def train(run, data, *more, **changes):
    return [*pairs.flags(data, path(run), **changes), "--model", MODEL, *SMALL, *more]


def rewards_of(run):
    return [{"loss": line["loss"], **{name: line["rewards"][name] for name in REWARDS}} for line in program.steps_of(path(run))]


def numbers_of(run):
    """The numbers that must have the same bits: steps and evaluations, without times and sizes."""
    kept = ("step", "loss", "grad_norm", "rewards", "val_loss", "val_margin", "val_accuracy")
    return [{name: line[name] for name in kept if name in line} for line in program.log_lines(path(run))]


def weights_of(run):
    shutil.rmtree(path("out"), ignore_errors=True)
    program.must("export", path(run), path("out"))
    with open(path("out", "model.safetensors"), "rb") as file:
        return file.read()


def content(*names):
    with open(path(*names), "rb") as file:
        return file.read()


def far(what, found, wanted, near):
    if len(found) != len(wanted):
        return [f"{what}: {len(found)} steps, not {len(wanted)}"]
    return [f"{what}: {name} of step {i + 1} is {a[name]}, and should be {b[name]}"
            for i, (a, b) in enumerate(zip(found, wanted)) for name in b if not abs(a[name] - b[name]) <= near][:3]


def trl_has_the_same_losses():
    """Strings, lists, and lists that share their prompt, which are the same pairs."""
    problems = []
    for name, data, golden in (("plain", PLAIN, "plain"), ("chats", CHATS, "chats"), ("shared", SHARED, "chats")):
        program.must(*train(name, data))
        problems += far(name, rewards_of(name), GOLDEN[golden], NEAR)
        first = program.steps_of(path(name))[0]
        if first["loss"] != 0.6931471805599453 or first["rewards"]["margin"] != 0 or first["loss_tokens"] is not None:
            problems.append(f"{name}: the weights at the start differ from themselves: {first}")
        if first["rewards"]["pairs"] != pairs.PAIRS:
            problems.append(f"{name}: {first['rewards']['pairs']} pairs a step")
    return problems + ([] if numbers_of("chats") == numbers_of("shared") else ["shared: not the bits of chats"])


def tokens_of(file):
    with open(file, "rb") as tokens:
        data = tokens.read()
    return struct.unpack(f"<{len(data) // 2}H", data)


def tokens_and_masks_are_those_of_the_pairs():
    """Two sequences a pair, each with the end that belongs to it, cut off at their length, and padding."""
    program.must("tokenize", "--dpo", "--pack", pairs.SEQ, "--model", MODEL, "--data", PLAIN, "--out", path("plain.bin"))
    tokens, mask, problems = tokens_of(path("plain.bin")), content("plain.bin.mask"), []
    for i, pair in enumerate(pairs.plain()):
        for j, name in enumerate(("chosen", "rejected")):
            at = (2 * i + j) * pairs.SEQ
            prompt, reply = list(pair["prompt"].encode()), [*pair[name].encode(), pairs.END]
            wanted = (prompt + reply)[:pairs.SEQ]
            padding = pairs.SEQ - len(wanted)
            learnt = [b == 1 for b in mask[at:at + pairs.SEQ]]
            if list(tokens[at:at + pairs.SEQ]) != wanted + [pairs.END] * padding:
                problems.append(f"pair {i}: {name} is {tokens[at:at + pairs.SEQ]}")
            if learnt != [False] * len(prompt) + [True] * (len(wanted) - len(prompt)) + [False] * padding:
                problems.append(f"pair {i}: {name} has the mask {mask[at:at + pairs.SEQ]}")
    if len(tokens) != 2 * pairs.PAIRS * pairs.SEQ + 1:
        problems.append(f"{len(tokens)} tokens")
    program.must("tokenize", "--dpo", "--pack", pairs.SEQ, "--model", MODEL, "--data", CHATS, "--out", path("chats.bin"))
    begin = [pairs.START, *b"user\n", *pairs.chats()[0]["prompt"][0]["content"].encode(), pairs.END, pairs.START, *b"assistant\n"]
    reply = [*pairs.chats()[0]["chosen"][0]["content"].encode(), pairs.END]
    tokens, mask = tokens_of(path("chats.bin")), content("chats.bin.mask")
    if list(tokens[:len(begin + reply)]) != begin + reply:
        problems.append(f"the first chat is {tokens[:pairs.SEQ]}")
    if [b == 1 for b in mask[:len(begin + reply)]] != [False] * len(begin) + [True] * len(reply):
        problems.append(f"the first chat has the mask {mask[:pairs.SEQ]}")
    program.must(*train("tokens", path("plain.bin")))
    program.must(*train("text", PLAIN))
    return problems + ([] if numbers_of("tokens") == numbers_of("text") else ["token files train otherwise"])


PLACES = {"nvme": ("--place", "weights=nvme,acts=nvme,grads=nvme,optimizer=nvme"),
          "host": ("--place", "weights=host,grads=host,optimizer=host", "--recompute", "all"),
          "shares": ("--place", "optimizer=host:50%/nvme,weights=host")}
LONG = {"micro_batch": 4, "steps": STEPS}
EVALUATED = ("--val", OTHERS, "--eval-every", 2)


def placements_have_the_same_bits():
    """With several micro-batches a step, more pairs than a step has, and evaluations of a file whose last pass is not full."""
    program.must(*train("device", MANY, *EVALUATED, **LONG))
    problems, lines = [], numbers_of("device")
    if sum("val_margin" in line for line in lines) != STEPS / 2:
        problems.append(f"evaluations without margins: {lines}")
    for name, flags in PLACES.items():
        program.must(*train(name, MANY, *EVALUATED, *flags, **LONG))
        if numbers_of(name) != lines:
            problems.append(f"{name}: other numbers")
        if weights_of(name) != weights_of("device") or content(name, FILE)[:32] != content("device", FILE)[:32]:
            problems.append(f"{name}: other weights")
        if content(name, FILE) != content("device", FILE):
            problems.append(f"{name}: another reference")
    return problems


def adapters_learn_preferences():
    """Their reference is the model without them, which they are at the start; given ones are their own, as trl has it."""
    problems = []
    program.must(*train("adapters", MANY, "--lora", 4))
    for name, more in PLACES.items():
        run = f"adapters-{name}"
        program.must(*train(run, MANY, "--lora", 4, *more))
        problems += [] if numbers_of(run) == numbers_of("adapters") else [f"{run}: other numbers"]
    program.must("export", path("adapters"), path("adapter"))
    program.must(*train("more", MANY, "--adapter", path("adapter")))
    program.must(*train("narrow", MANY, "--lora", 4, "--base-format", "nf4"))
    for run in ("adapters", "more", "narrow"):
        found = rewards_of(run)
        if abs(found[0]["loss"] - 0.6931471805599453) > NEAR or not found[-1]["loss"] < found[0]["loss"] - 0.05:
            problems.append(f"{run}: losses from {found[0]['loss']} to {found[-1]['loss']}")
    return problems


def a_killed_run_goes_on_with_the_same_bits():
    """At any moment: while the reference is computed, or later, when it must not be computed again."""
    whole = train("whole", MANY, *EVALUATED, "--place", "optimizer=nvme", **LONG)
    program.must(*whole)
    problems = []
    for number, wait_for in enumerate((None, FILE, "step")):
        run = f"killed-{number}"
        arguments = train(run, MANY, *EVALUATED, "--place", "optimizer=nvme", **LONG)
        process = program.start(*arguments)
        end = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < end:
            if wait_for is None and os.path.exists(path(run, "run.json")):
                break
            if wait_for == FILE and os.path.exists(path(run, FILE)):
                break
            if wait_for == "step" and os.path.exists(path(run, "log.jsonl")) and b'"step":2' in content(run, "log.jsonl"):
                break
            time.sleep(0.001)
        process.kill()
        process.communicate()
        resumed = program.run("resume", path(run))
        if resumed.code != 0 and "start it again" in resumed.err:
            program.must(*arguments)
        elif resumed.code != 0:
            problems.append(f"{run}: {resumed.err[-300:]}")
            continue
        if numbers_of(run) != numbers_of("whole"):
            problems.append(f"{run}: other numbers")
        if content(run, FILE) != content("whole", FILE):
            problems.append(f"{run}: another reference")
    program.must(*train("stopped", MANY, *EVALUATED, "--place", "optimizer=nvme", "--schedule-steps", STEPS, micro_batch=4,
                        steps=HALF))
    before = os.stat(path("stopped", FILE)).st_mtime_ns
    program.must("resume", path("stopped"), "--steps", STEPS, "--place", "optimizer=host")
    if os.stat(path("stopped", FILE)).st_mtime_ns != before:
        problems.append("a resume computed the reference again")
    if weights_of("stopped") != weights_of("whole"):
        problems.append("stopped: other weights")
    return problems


def a_kill_keeps_what_is_done():
    """A resume goes on where the reference was cut off. The same pair again and again has the same number throughout."""
    count, header = 16000, 48
    data = pairs.write(path("long.jsonl"), [pairs.plain()[2]] * count)
    process = program.start(*train("cut", data, "--schedule-steps", 2, micro_batch=2, steps=2))
    while process.poll() is None and not os.path.exists(path("cut", "reference.unfinished")):
        time.sleep(0.001)
    process.kill()
    process.communicate()
    resumed = program.run("resume", path("cut"))
    problems = [] if resumed.code == 0 and "are kept from an earlier start" in resumed.err else [resumed.err[-300:]]
    found = content("cut", FILE)
    numbers = struct.unpack(f"<{2 * count}d", found[header:header + 16 * count])
    if set(numbers) != {numbers[0], numbers[1]} or numbers != numbers[:2] * count or not numbers[0] < 0:
        problems.append(f"{len(set(numbers))} numbers of two replies")
    if os.path.exists(path("cut", "reference.unfinished")):
        problems.append("the unfinished file stays")
    return problems


def beyond_noise(rewards):
    """Rewards without the accuracy of the first step, whose margins are zero. A tensor group adds up each row in an order that
    depends on the row's place in the micro-batch, so there the sign of such a margin is that of a rounding error."""
    return [{**rewards[0], "accuracy": 0.0}, *rewards[1:]]


def ranks_have_the_same_losses():
    """Each stage of ZeRO on two ranks, and tensor groups, whose references are the same; then runs that go on alone."""
    lora, problems = ("--lora", 4), []
    for run, more in (("alone", ()), ("alone-lora", lora)):
        program.must(*train(run, MANY, *EVALUATED, *more, **LONG))
    table = [(f"ranks-{stage}", 2, "alone", ("--zero", stage)) for stage in range(4)]
    table += [("group", 2, "alone", ("--tensor", 2)), ("groups", 4, "alone", ("--tensor", 2, "--sequence-parallel", "yes")),
              ("group-lora", 2, "alone-lora", (*lora, "--tensor", 2)), ("groups-lora", 4, "alone-lora", (*lora, "--tensor", 2))]
    for run, ranks, alone, more in table:
        command = program.command(*train(run, MANY, *EVALUATED, *more, **LONG))
        ended = program.limits.run(threads(ranks, command), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            problems.append(f"{run}: {ended.stderr[-300:]}")
            continue
        kept = beyond_noise if "--tensor" in more else list
        problems += far(run, kept(rewards_of(run)), kept(rewards_of(alone)), RANKS_NEAR)
        both = [[line["val_loss"] for line in program.log_lines(path(name)) if "val_loss" in line] for name in (run, alone)]
        if len(both[0]) != len(both[1]) or any(abs(a - b) > RANKS_NEAR for a, b in zip(*both)):
            problems.append(f"{run}: validation losses {both}")
    command = program.command(*train("chosen", MANY, *EVALUATED, "--tensor", "auto", **LONG))
    ended = program.limits.run(threads(2, command), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if ended.returncode != 0 or "--tensor auto is --tensor" not in " ".join(ended.stderr.split()):
        return problems + [f"--tensor auto: {ended.stderr[-600:]}"]
    problems += far("chosen", beyond_noise(rewards_of("chosen")), beyond_noise(rewards_of("alone")), RANKS_NEAR)
    for run in ("ranks-2", "group", "group-lora"):
        program.must("resume", path(run), "--steps", STEPS + 1, "--tensor", 1)
    return problems


def edited_pairs_are_said():
    """A resume goes on with the pairs that the run began with, and says in one line that the file has others."""
    data, problems = pairs.write(path("edited.jsonl"), pairs.plain()), []
    program.must(*train("edited", data, steps=1))
    program.must(*train("unedited", PLAIN, steps=3))
    for steps, words in ((2, "it is"), (3, "it IS")):
        text = content("edited.jsonl").decode()
        program.write(path("edited.jsonl"), text.replace("it is", words, 1))
        said = program.must("resume", path("edited"), "--steps", steps).err.count(f"{data} was edited since the run began")
        problems += [] if said == (steps == 3) else [f"step {steps}: said {said} times"]
    return problems + ([] if rewards_of("edited") == rewards_of("unedited") else ["other losses"])


def wrong_pairs_are_refused():
    right = pairs.plain()[0]
    chat = pairs.chats()[0]

    def of(name, *objects):
        return pairs.write(path(name + ".jsonl"), objects)

    def without(name, pair=right):
        return {key: value for key, value in pair.items() if key != name}

    long = {**right, "prompt": "x" * pairs.SEQ}
    table = [
        ("no rejected", of("a", right, without("rejected")), "a.jsonl:2", "has no 'rejected'"),
        ("no chosen", of("b", without("chosen")), "b.jsonl:1", "has no 'chosen'"),
        ("an empty reply", of("c", {**right, "rejected": ""}), "c.jsonl:1", "empty 'rejected'"),
        ("no reply", of("d", {**chat, "chosen": []}), "d.jsonl:1", "empty 'chosen'"),
        ("a prompt of a whole sequence", of("e", right, long), "e.jsonl:2", "leaves no room for 'chosen'", str(pairs.SEQ)),
        ("strings without a prompt", of("f", without("prompt")), "f.jsonl:1", "need a 'prompt'"),
        ("a string and a list", of("g", {**right, "chosen": chat["chosen"]}), "g.jsonl:1", "both strings or both lists"),
        ("nothing shared", of("h", {"chosen": chat["chosen"], "rejected": chat["rejected"]}), "h.jsonl:1", "different messages"),
        ("a chat", of("i", {"messages": chat["prompt"] + chat["chosen"]}), "i.jsonl:1", "has no 'chosen'"),
        ("tools", of("j", {**right, "tools": ["x"]}), "j.jsonl:1", "'tools'"),
        ("plain text", program.write(path("k.txt"), "text\n"), "k.txt is plain text"),
        ("a token file without pairs", program.write(path("l.bin"), bytes(4 * pairs.SEQ + 2)), "l.bin is no file of pairs",
         "--dpo --pack"),
    ]
    problems = program.refused_each([(what, train("refused", data), *words) for what, data, *words in table])
    program.must(*train("skipped", of("m", *pairs.plain(), long, without("chosen")), "--skip-bad"))
    problems += [] if rewards_of("skipped") == rewards_of("plain") else ["--skip-bad kept a wrong pair"]
    problems += program.refused("pairs without --dpo", ["train", "--model", MODEL, "--data", PLAIN, "--run", path("refused")],
                                "--dpo")
    problems += program.refused("an odd micro-batch", train("refused", PLAIN, micro_batch=3), "even", status=2)
    flags = [("--loss all", ("--loss", "all"), "--loss all"),
             ("--field", ("--field", "text"), "--field")]
    problems += program.refused_each([(what, [*train("refused", PLAIN), *given], words) for what, given, words in flags],
                                     status=2)
    return problems + program.refused("tokenize without a length", ["tokenize", "--dpo", "--model", MODEL, "--data", PLAIN,
                                                                   "--out", path("n.bin")], "--pack", status=2)


def long_header(kept):
    """A header with many more sequences."""
    return kept[:24] + struct.pack("<3q", 1 << 36, 0, 1 << 36)


def a_wrong_reference_is_refused():
    """A file that is gone, damaged, or of another run; verify finds it too."""
    problems = []
    for name, data in (("own", MANY), ("foreign", OTHERS)):
        program.must(*train(name, data, micro_batch=4, steps=HALF))
    kept = content("own", FILE)
    damaged = bytearray(kept)
    damaged[50] ^= 1
    for what, found, words in (("damaged", bytes(damaged), "is damaged"), ("foreign", content("foreign", FILE), "another run"),
                               ("cut off", kept[:20], "is cut off"), ("missing", None, "cannot be opened")):
        os.remove(path("own", FILE)) if found is None else program.write(path("own", FILE), found)
        problems += program.refused(what, ["resume", path("own"), "--steps", STEPS], FILE, words)
        problems += program.refused(f"verify: {what}", ["verify", path("own")], FILE, words)
    for what, header, words in (("grown", kept[:48], "is damaged"), ("long", long_header(kept), "another run")):
        program.write(path("own", FILE), header)
        os.truncate(path("own", FILE), 48 + 8 * (1 << 36) + 8)
        problems += program.refused(what, ["resume", path("own"), "--steps", STEPS], FILE, words)
    program.write(path("own", FILE), kept)
    program.must("verify", path("own"))
    program.must("resume", path("own"), "--steps", STEPS)
    return problems


def wait_for(is_there):
    end = time.monotonic() + 60
    while not is_there() and time.monotonic() < end:
        time.sleep(0.01)


def a_removed_reference_is_written_anew():
    """While the run trains, and once more at its end."""
    process = program.start(*train("removed", MANY, "--schedule-steps", STEPS, micro_batch=4, steps=10**6))
    wait_for(lambda: os.path.exists(path("removed", "log.jsonl")) and program.steps_of(path("removed")))
    kept = content("removed", FILE)
    os.remove(path("removed", FILE))
    wait_for(lambda: os.path.exists(path("removed", FILE)))
    problems = [] if content("removed", FILE) == kept else ["another reference is written while the run trains"]
    os.remove(path("removed", FILE))
    process.terminate()
    _, err = process.communicate(timeout=60)
    problems += [] if f"{FILE} was removed" in err and "everything is saved" in err else [err[-300:]]
    if program.run("verify", path("removed")).code != 0 or content("removed", FILE) != kept:
        problems.append("the reference is not there at the end")
    return problems


def plans_and_reports_know_it():
    planned = json.loads(program.must("plan", "--dpo", "--model", MODEL, "--data", MANY, "--epochs", 2, "--seq", pairs.SEQ,
                                      "--batch-tokens", 2 * pairs.PAIRS * pairs.SEQ, "--json").out)
    problems = [] if planned["micro_batch"] % 2 == 0 else [f"planned micro-batches of {planned['micro_batch']}"]
    page = path("page.html")
    program.must(*train("reported", MANY, *EVALUATED, **LONG))
    program.must("report", path("reported"), "--out", page)
    with open(page, encoding="utf-8") as file:
        text = file.read()
    return problems + [f"the report lacks {word}" for word in ("accuracy", "margin") if word not in text.lower()]


script_test.run(trl_has_the_same_losses, tokens_and_masks_are_those_of_the_pairs, placements_have_the_same_bits,
                adapters_learn_preferences, a_killed_run_goes_on_with_the_same_bits, a_kill_keeps_what_is_done,
                ranks_have_the_same_losses, edited_pairs_are_said, wrong_pairs_are_refused, a_wrong_reference_is_refused,
                a_removed_reference_is_written_anew, plans_and_reports_know_it)
