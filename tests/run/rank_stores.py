"""Stores of several ranks: the same state on any number of them, whatever cuts a change short."""

import json
import os
import random
import shutil
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "core"))
import jobs  # noqa: E402
from jobs import script_test  # noqa: E402

COUNTS = [1, 2, 3, 4, 8]
STEP = 5
DEATHS = int(os.environ.get("SW_TEST_ROUNDS", 6))
MOST_CALLS, MOST_NAMES = 90, 10
# A start makes fewer calls and names than a take-over.
MOST_BEGIN_CALLS, MOST_BEGIN_NAMES = 16, 4
LOST = "refused"


def folder():
    return tempfile.TemporaryDirectory(prefix="spillway-stores-", dir=os.environ.get("TMPDIR"))


def job(ranks, what, path, *arguments, nvme=None, death=None, whole=False, previous=False, tensor=None, model=None,
        experts=None, joined=False):
    """Status, standard output, standard error. The names are relative, as a user may give them."""
    wanted = {"SW_TEST_NVME": nvme, "SW_TEST_DEATH": death, "SW_TEST_WHOLE": "1" if whole else None,
              "SW_TEST_PREVIOUS": "1" if previous else None, "SW_TEST_TENSOR": tensor and str(tensor), "SW_TEST_MODEL": model,
              "SW_TEST_EXPERTS": experts and str(experts), "SW_TEST_JOINED": "1" if joined else None}
    for name, value in wanted.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    # Ranks that are processes outlive the one that is killed for a while.
    if death is not None and ranks > 1:
        return jobs.run(ranks, what, path, *arguments)
    words = jobs.command(ranks, what, path, *arguments, launcher=jobs.THREADS)
    done = jobs.limits.run(words, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def expect(ended, step, what):
    code, out, err = ended
    said = [f'step {step}: {{"step": {step}}}', "ok"] if step is not None else ["ok"]
    if code == 0 and out.splitlines() == said:
        return []
    return [f"{what}: status {code}, {out!r} instead of {said}, seed {jobs.SEED}: {err[-800:]}"]


def refused(ended, words, what):
    code, _, err = ended
    told = [line for line in err.splitlines() if line.startswith(LOST)]
    if code not in (0, None) and len(told) == 1 and words in told[0]:
        return []
    return [f"{what}: status {code}, wanted one refusal with {words!r}: {err[-800:]}"]


def stores_in(path):
    """Where store files and folders of ranks are."""
    return sorted(os.path.relpath(where, path) for where, _, files in os.walk(path)
                  if "store.spillway" in files or os.path.basename(where).startswith("rank-"))


def expected_in(path, ranks, suffix=""):
    wanted = ["."] if ranks == 1 else sorted(f"rank-{r}-of-{ranks}{suffix}" for r in range(ranks))
    found = stores_in(path)
    return [] if found == wanted else [f"{ranks} ranks: stores in {found} instead of {wanted}"]


def tour(counts):
    """Every change from one number of ranks to another, each beginning where the one before ended."""
    left = {a: [b for b in counts if b != a] for a in counts}
    stack, path = [counts[0]], []
    while stack:
        if left[stack[-1]]:
            stack.append(left[stack[-1]].pop(0))
        else:
            path.append(stack.pop())
    return path[::-1]


def every_number_of_ranks_takes_over_from_every_other():
    problems = []
    with folder() as top:
        path = os.path.join(top, "run")
        os.mkdir(path)
        stops = tour(COUNTS)
        problems += expect(job(stops[0], "begin", path, STEP), None, "create")
        for before, after in zip(stops, stops[1:]):
            problems += expect(job(after, "resume", path), STEP, f"{before} to {after}")
            problems += expected_in(path, after)
            if before == 1:
                problems += expect(job(after, "resume", path), STEP, f"{after} again")
                problems += expect(job(1, "read", path, STEP), None, f"reading of {after}")
            if problems:
                break
    return problems


def whole_stores_are_shared_out_and_back():
    problems = []
    with folder() as path:
        problems += expect(job(3, "begin", path, STEP, whole=True), None, "create")
        problems += expected_in(path, 3, "-whole")
        for ranks, whole in ((3, False), (2, True), (2, False), (3, True), (1, False), (2, True)):
            problems += expect(job(ranks, "resume", path, whole=whole), STEP, f"{ranks}, whole {whole}")
            problems += expected_in(path, ranks, "-whole" if whole else "")
            problems += expect(job(1, "read", path, STEP), None, f"reading of {ranks}, whole {whole}")
    return problems


def models(top):
    """Tables that are tied or not, joined and single projections, sizes that no group divides, and key-value heads that four ranks
    share."""
    sizes = {"vocab_size": 259, "max_position_embeddings": 37, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,
             "num_key_value_heads": 4, "intermediate_size": 176, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu"}
    configs = {
        "gpt2": {"model_type": "gpt2", "vocab_size": 259, "n_positions": 37, "n_embd": 64, "n_layer": 2, "n_head": 4},
        "llama": {"model_type": "llama", **sizes, "tie_word_embeddings": False},
        "qwen2": {"model_type": "qwen2", **sizes, "num_key_value_heads": 2, "tie_word_embeddings": True},
    }
    for name, config in configs.items():
        os.mkdir(os.path.join(top, name))
        with open(os.path.join(top, name, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
    return [os.path.join(top, name) for name in configs]


# Ranks, ranks of a tensor group, and whether each store has the whole optimizer.
GROUPS = [(4, 1, False), (4, 1, True), (4, 2, False), (4, 2, True), (4, 4, False), (2, 1, False), (2, 2, False), (1, 1, False)]


def suffix_of(group):
    _, tensor, whole = group
    return (f"-tensor-{tensor}" if tensor > 1 else "") + ("-whole" if whole else "")


def resumed(path, group, what, **more):
    ranks, tensor, whole = group
    ended = expect(job(ranks, "resume", path, tensor=tensor, whole=whole, **more), STEP, what)
    return ended + expected_in(path, ranks, suffix_of(group))


def every_tensor_group_takes_over_from_every_other():
    """Every pair of groups, and with each model some of them. Each group is read by tensors once, and the largest
    with each model."""
    problems, draw, read = [], random.Random(jobs.SEED), set()
    with folder() as top:
        for number, model in enumerate(models(top)):
            path = os.path.join(top, f"run-{number}")
            os.mkdir(path)
            stops = tour(GROUPS) if number == 0 else draw.sample(GROUPS, len(GROUPS))
            ranks, tensor, whole = stops[0]
            problems += expect(job(ranks, "begin", path, STEP, tensor=tensor, whole=whole, model=model), None, "create")
            for before, after in zip(stops, stops[1:]):
                what = f"{os.path.basename(model)}: {before} to {after}"
                problems += resumed(path, after, what)
                if (number == 0 or after[1] == 4) and (model, after) not in read:
                    problems += expect(job(1, "read", path, STEP, tensor=1), None, f"reading by tensors after {what}")
                read.add((model, after))
                if problems:
                    return problems
    return problems


def a_death_while_groups_change_loses_nothing():
    problems, draw = [], random.Random(jobs.SEED)
    with folder() as top:
        model = models(top)[0]
        for number in range(DEATHS):
            before, during, after = draw.sample(GROUPS, 3)
            call = f"{draw.randrange(1, MOST_NAMES)}n" if number % 2 else draw.randrange(1, MOST_CALLS)
            death = f"{draw.randrange(during[0])}:{call}"
            what, path = f"{before} to {during}, killed at {death}, then {after}", os.path.join(top, f"run-{number}")
            os.mkdir(path)
            problems += expect(job(before[0], "begin", path, STEP, tensor=before[1], whole=before[2], model=model), None, what)
            code, _, err = job(during[0], "resume", path, death=death, tensor=during[1], whole=during[2])
            problems += [f"{what}: hangs: {err[-500:]}"] if code is None else []
            problems += resumed(path, after, what)
    return problems


def goes_back_to_what_all_ranks_have():
    problems = []
    with folder() as path:
        problems += expect(job(3, "begin", path, STEP), None, "create")
        problems += expect(job(3, "commit", path, 1), STEP, "one commits")
        problems += expect(job(1, "read", path, STEP), None, "reading")
        problems += expect(job(3, "resume", path), STEP, "back")
        problems += expect(job(3, "commit", path, 3), STEP, "all commit")
        problems += expect(job(3, "commit", path, 2), STEP + 1, "two commit")
        problems += expect(job(2, "resume", path), STEP + 1, "back, on two")
        problems += expect(job(2, "commit", path, 2), STEP + 1, "all commit")
        problems += expect(job(2, "resume", path), STEP + 2, "on")
    return problems


def refuses_what_does_not_belong_together():
    problems = []
    with folder() as top:
        path, other, kept = (os.path.join(top, name) for name in ("run", "other", "kept"))
        os.mkdir(path)
        os.mkdir(other)
        problems += expect(job(2, "begin", path, STEP), None, "create")
        problems += expect(job(2, "begin", other, STEP), None, "create another")
        mine, foreign = (os.path.join(at, "rank-1-of-2") for at in (path, other))

        def with_store(source, words, what):
            os.rename(mine, kept)
            if source is not None:
                shutil.copytree(source, mine)
            found = refused(job(2, "resume", path), words, what)
            if source == foreign:
                found += refused(job(3, "resume", path), words, what + ", on three")
            shutil.rmtree(mine, ignore_errors=True)
            os.rename(kept, mine)
            return found

        problems += with_store(foreign, "is another run's", "the store of another run")
        problems += with_store(os.path.join(path, "rank-0-of-2"), "is that of rank 0, not of rank 1", "a rank's copy")
        problems += with_store(None, "rank-1-of-2", "a store that is missing")
        shutil.copytree(mine, os.path.join(top, "old"))
        for step in (STEP, STEP + 1):
            problems += expect(job(2, "commit", path, 2), step, "all commit")
        problems += with_store(os.path.join(top, "old"), "no commit up to step 5: its last one is step 7", "two behind")
        problems += expect(job(2, "resume", path), STEP + 2, "as it was")
    return problems


def keeps_ranks_apart_by_names():
    problems = []
    with folder() as top:
        path = os.path.join(top, "run")
        for name in ("run", "shared", *(f"drive{r}" for r in range(3))):
            os.mkdir(os.path.join(top, name))
        own, shared = os.path.join(top, "drive{local_rank}"), os.path.join(top, "shared")
        problems += refused(job(2, "begin", path, STEP, nvme=f"{own},{shared}"), "shared", "a folder of two lists")
        problems += [f"left: {left}" for left in stores_in(top)]
        problems += expect(job(2, "begin", path, STEP, nvme=f"{own}:64MiB"), None, "create")
        wanted = [f"drive{r}/rank-{r}-of-2" for r in range(2)]
        problems += [] if stores_in(top) == wanted else [f"stores in {stores_in(top)}"]
        problems += expect(job(3, "resume", path), STEP, "on three")
        problems += expect(job(1, "read", path, STEP), None, "reading")
        problems += expect(job(2, "resume", path, nvme=shared), STEP, "in one folder")
        wanted = [f"shared/rank-{r}-of-2" for r in range(2)]
        problems += [] if stores_in(top) == wanted else [f"stores in {stores_in(top)}"]
        # Names that lead to one folder, of ranks that are not the first.
        names = [os.path.join(top, f"{name}{r}") for name in ("one", "two") for r in range(3)]
        for name in names[:2] + names[3:]:
            os.mkdir(name)
        os.symlink(names[1], names[2])
        begun = os.path.join(top, "begun")
        os.mkdir(begun)
        both = f"{top}/one{{local_rank}},{top}/two{{local_rank}}"
        problems += refused(job(3, "begin", begun, STEP, nvme=both), "of rank 1 too", "a folder by another name")
        # A run folder of somebody else's must not lead to another one.
        os.symlink(own.format(local_rank=0), os.path.join(shared, "rank-0-of-3"))
        problems += refused(job(3, "resume", path), "rank-0-of-3 is not a folder", "a link to a folder")
        problems += [] if stores_in(top) == wanted else [f"stores in {stores_in(top)}"]
    return problems


def stores_that_were_moved_change_ranks_at_once():
    """One --nvme says where the old stores are now and the new ones go."""
    problems = []
    with folder() as top:
        path, drive, moved = (os.path.join(top, name) for name in ("run", "drive", "moved"))
        for name in (path, drive):
            os.mkdir(name)
        problems += expect(job(2, "begin", path, STEP, nvme=drive), None, "create")
        for ranks in (3, 1, 2):
            os.rename(drive, moved)
            if ranks == 1:
                problems += refused(job(ranks, "resume", path), "is not an existing directory", "not said where to")
            problems += expect(job(ranks, "resume", path, nvme=moved), STEP, f"moved, on {ranks}")
            problems += expected_in(moved, ranks)
            problems += expect(job(1, "read", path, STEP), None, "reading")
            drive, moved = moved, drive
        os.mkdir(moved)
        problems += expect(job(3, "resume", path, nvme=moved), STEP, "to another drive")
        problems += [f"left: {left}" for left in stores_in(drive)]
        os.rename(moved, os.path.join(top, "away"))
        problems += refused(job(1, "resume", path, nvme=drive), "is not an existing directory", "moved elsewhere")
    return problems


def a_death_leaves_the_old_stores_or_the_new():
    problems, draws = [], random.Random(jobs.SEED)
    for number in range(DEATHS):
        before, during, after = (draws.choice([1, 2, 3]) for _ in range(3))
        during = during if during != before else before % 3 + 1
        # In turn at any change of what is on the drives, and at one of names, which are few.
        call = f"{draws.randrange(1, MOST_NAMES)}n" if number % 2 else draws.randrange(1, MOST_CALLS)
        death = f"{draws.randrange(during)}:{call}"
        what = f"{before} to {during}, killed at {death}, then {after}"
        with folder() as path:
            problems += expect(job(before, "begin", path, STEP), None, what)
            code, _, err = job(during, "resume", path, death=death)
            if code is None:
                problems += [f"{what}: hangs: {err[-500:]}"]
            problems += expect(job(after, "resume", path), STEP, what)
            problems += expected_in(path, after)
    return problems


def read_run(path):
    """The checksum is left out, as by who edits the file."""
    with open(os.path.join(path, "run.json"), encoding="utf-8") as file:
        return {name: value for name, value in json.load(file).items() if name != "checksum"}


def write_run(path, run):
    with open(os.path.join(path, "run.json"), "w", encoding="utf-8") as file:
        json.dump(run, file)


def what_is_left_moves_with_its_folder():
    """A change that is killed leaves a list of stores to remove, by their names in the run's folder."""
    problems, lists = [], 0
    for call in range(1, MOST_NAMES):
        with folder() as top:
            path, moved = os.path.join(top, "run"), os.path.join(top, "moved")
            os.mkdir(path)
            problems += expect(job(2, "begin", path, STEP), None, "create")
            job(1, "resume", path, death=f"0:{call}n")
            lists += read_run(path)["left"] != []
            os.rename(path, moved)
            problems += expect(job(1, "resume", moved), STEP, f"killed before name {call}, and moved")
            problems += expected_in(moved, 1)
    return problems if lists > 0 else ["no kill left a list"]


def a_refused_change_is_taken_back():
    """An announced store is no longer the run's to remove: another run may have its store there by then."""
    problems = []
    with folder() as top:
        path, other, drive = (os.path.join(top, name) for name in ("run", "other", "drive"))
        for name in (path, other, drive):
            os.mkdir(name)
        problems += expect(job(2, "begin", path, STEP, nvme=drive), None, "create")
        before = stores_in(drive)
        for ranks in (1, 3):
            problems += refused(job(ranks, "resume", path, nvme=drive + ":64KiB"), "may have 64.00 KiB", f"on {ranks}")
            problems += [] if read_run(path)["left"] == [] else [f"on {ranks}: {read_run(path)['left']} is announced"]
            problems += [] if stores_in(drive) == before else [f"on {ranks}: stores in {stores_in(drive)}"]
        problems += expect(job(1, "begin", other, STEP, nvme=drive), None, "another run")
        problems += expect(job(2, "resume", path), STEP, "the run")
        problems += expect(job(1, "resume", other), STEP, "the other run")
    return problems


def an_older_run_json_removes_nothing():
    """It lists as left what has become the run's store since, without the store that it was of, and with that."""
    problems = []
    with folder() as top:
        path, old = os.path.join(top, "run"), os.path.join(top, "old.spillway")
        os.mkdir(path)
        problems += expect(job(1, "begin", path, STEP), None, "create")
        shutil.copy(os.path.join(path, "store.spillway"), old)
        older = read_run(path)
        problems += expect(job(2, "resume", path), STEP, "on two")
        newer = read_run(path)
        older["left"] = [{"id": store["id"], "last_step": STEP, "places": [f"rank-{rank}-of-2"]}
                         for rank, store in enumerate(newer["stores"])]
        write_run(path, older)
        problems += refused(job(1, "resume", path), "store.spillway", "without its store")
        write_run(path, newer)
        problems += expect(job(2, "commit", path, 2), STEP, "all commit")
        write_run(path, older)
        shutil.copy(old, os.path.join(path, "store.spillway"))
        code, _, err = job(1, "resume", path)
        problems += [] if code == 0 and f"holds step {STEP + 1}" in err else [f"with its store: {code}, {err[-800:]}"]
        older["left"] = ["rank-0-of-2", "rank-1-of-2"]
        write_run(path, older)
        code, _, err = job(1, "resume", path)
        problems += [] if code == 0 and "not the id of its store" in err else [f"paths alone: {code}, {err[-800:]}"]
        write_run(path, newer)
        problems += expect(job(2, "resume", path), STEP + 1, "the stores that it listed")
    return problems


def mixture(path):
    """A folder with the configuration of a model of eight experts, whose units have some grains."""
    os.mkdir(path)
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as file:
        json.dump({"model_type": "mixtral", "vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                   "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                   "hidden_act": "silu", "tie_word_embeddings": False, "intermediate_size": 80, "num_local_experts": 8,
                   "num_experts_per_tok": 2}, file)
    return path


def as_an_older_version_left_it(path):
    """Names the folders of ranks as versions did whose groups had experts in one unit with their block, and says nothing of it."""
    for name in stores_in(path):
        os.rename(os.path.join(path, name), os.path.join(path, name.replace("-experts-of-", "-experts-")))
    with open(os.path.join(path, "run.json"), encoding="utf-8") as file:
        run = json.load(file)
    del run["checksum"], run["experts_apart"]
    with open(os.path.join(path, "run.json"), "w", encoding="utf-8") as file:
        json.dump(run, file)


def every_expert_group_takes_over_from_every_other():
    """And from whole layers, tensor groups, and the groups of older versions. Each element is compared."""
    problems = []
    with folder() as top:
        model = mixture(os.path.join(top, "model"))
        layouts = [(ranks, {"experts": size}) for ranks, size in ((2, 2), (4, 2), (4, 4), (8, 2), (6, 2))]
        layouts += [(1, {"tensor": 1}), (3, {"tensor": 1}), (4, {"tensor": 2}), (4, {"experts": 2, "whole": True})]
        draw = random.Random(jobs.SEED + 2)
        for begun, (ranks, how) in enumerate(((4, {"experts": 2}), (4, {"experts": 2, "joined": True}), (2, {"experts": 2, "joined": True}))):
            path = os.path.join(top, f"run-{begun}")
            os.mkdir(path)
            problems += expect(job(ranks, "begin", path, STEP, model=model, **how), None, f"create {how}")
            if "joined" in how:
                as_an_older_version_left_it(path)
                problems += expect(job(1, "read", path, STEP, tensor=1), None, "reading what an older version left")
                problems += expect(job(ranks, "resume", path, experts=2), STEP, f"{ranks} ranks take over from an older version")
            for count, groups in draw.sample(layouts, 4):
                problems += expect(job(count, "resume", path, **groups), STEP, f"{count} ranks with {groups}")
                problems += expect(job(1, "read", path, STEP, tensor=1), None, f"reading by tensors after {count} ranks with {groups}")
            problems += expected_in(path, count, ("-experts-of-" + str(groups["experts"]) if "experts" in groups else
                                                  "-tensor-2" if groups.get("tensor") == 2 else "") + ("-whole" if "whole" in groups else ""))
    return problems


def what_cannot_be_removed_stays_listed():
    """A store that holds a later step than the one that was taken over from it."""
    problems = []
    with folder() as path:
        problems += expect(job(1, "begin", path, STEP), None, "create")
        shutil.copytree(path, os.path.join(path, "kept"))
        problems += expect(job(2, "resume", path), STEP, "on two")
        once = read_run(os.path.join(path, "kept"))["stores"][0]["id"]
        left = [{"id": once, "last_step": STEP - 1, "places": ["kept"]}]
        write_run(path, {**read_run(path), "left": left})
        for ranks in (2, 3):
            code, _, err = job(ranks, "resume", path)
            problems += [] if code == 0 and f"holds step {STEP}" in err else [f"on {ranks}: {code}, {err[-800:]}"]
            problems += [] if read_run(path)["left"] == left else [f"on {ranks}: {read_run(path)['left']} is left"]
    return problems


def content(path):
    with open(path, "rb") as file:
        return file.read()


def flip(path, generation=0):
    """A byte of a generation, near the end of the first, or of the store; a first commit is of the first."""
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) // (2 - generation) - (1 << 17))
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 255]))


def what_is_left_stays_where_the_own_store_is_damaged():
    """It may be the last whole copy."""
    problems = []
    with folder() as path:
        problems += expect(job(1, "begin", path, STEP), None, "create")
        shutil.copytree(path, os.path.join(path, "kept"))
        problems += expect(job(2, "resume", path), STEP, "on two")
        run, once = read_run(path), read_run(os.path.join(path, "kept"))
        run["left"] = [{"id": once["stores"][0]["id"], "last_step": STEP, "places": ["kept"]}]
        write_run(path, run)
        damaged = os.path.join(path, "rank-1-of-2", "store.spillway")
        flip(damaged)
        for ranks in (1, 2, 3):
            problems += refused(job(ranks, "resume", path), "is kept", f"damaged, on {ranks}")
            problems += [] if os.path.exists(os.path.join(path, "kept", "store.spillway")) else ["it is gone"]
        flip(damaged)
        problems += expect(job(2, "resume", path), STEP, "mended")
        problems += ["it is still there"] if os.path.exists(os.path.join(path, "kept", "store.spillway")) else []
    return problems


def the_commit_before_on_every_rank():
    """A damaged last commit is given up on all ranks, where all have the one before whole; else nothing changes."""
    problems = []
    with folder() as path:
        problems += expect(job(3, "begin", path, STEP), None, "create")
        problems += expect(job(3, "commit", path, 3), STEP, "all commit")
        problems += expect(job(3, "commit", path, 3), STEP + 1, "all commit again")
        # The last commit is of the first generation again.
        flip(os.path.join(path, "rank-1-of-3", "store.spillway"))
        kept = os.path.join(path, "kept")
        shutil.copytree(os.path.join(path, "rank-2-of-3"), kept)
        problems += refused(job(2, "resume", path, previous=True), "own 3 ranks", "on fewer ranks")
        problems += expect(job(3, "resume", path, previous=True), STEP + 1, "the one before")
        problems += expect(job(3, "resume", path), STEP + 1, "it stays so")
        problems += refused(job(3, "resume", path, previous=True), f"before step {STEP + 1}", "there is no other one")
        # One rank, of which the rest knows nothing, still has the commit that was given up: it is removed there too.
        shutil.rmtree(os.path.join(path, "rank-2-of-3"))
        os.rename(kept, os.path.join(path, "rank-2-of-3"))
        problems += expect(job(3, "resume", path), STEP + 1, "a rank ahead")
        problems += expect(job(3, "commit", path, 3), STEP + 1, "and on")
        flip(os.path.join(path, "rank-0-of-3", "store.spillway"))
        flip(os.path.join(path, "rank-0-of-3", "store.spillway"), 1)
        problems += refused(job(3, "resume", path, previous=True), f"step {STEP + 1} is not whole", "neither is whole")
    return problems


def no_rank_drops_a_commit_before_all_are_verified():
    """The rank that is behind has its newest commit damaged: those that are ahead keep theirs until it is whole again."""
    problems = []
    with folder() as path:
        problems += expect(job(3, "begin", path, STEP), None, "create")
        problems += expect(job(3, "commit", path, 2), STEP, "two commit")
        behind = os.path.join(path, "rank-2-of-3", "store.spillway")
        ahead = [os.path.join(path, f"rank-{rank}-of-3", "store.spillway") for rank in range(2)]
        before = [content(store) for store in ahead]
        flip(behind)
        problems += refused(job(3, "resume", path), f"step {STEP} is not whole", "damaged where it is behind")
        problems += [f"{store} was changed" for store, was in zip(ahead, before) if content(store) != was]
        flip(behind)
        problems += expect(job(3, "resume", path), STEP, "mended")
    return problems


def tear_record(path, step):
    """Leaves of a step's commit record its first page, as a failing power may."""
    with open(path, "r+b") as file:
        content = file.read()
        at = content.find(b"SWCOMMIT")
        while int.from_bytes(content[at + 56:at + 64], "little") != step:
            at = content.index(b"SWCOMMIT", at + 1)
        file.seek(at + 4096)
        file.write(bytes(512))


def a_store_with_an_unfinished_commit_is_removed():
    """It shows a later step than the one that was taken over, and is left behind all the same."""
    problems = []
    with folder() as path:
        problems += expect(job(2, "begin", path, STEP), None, "create")
        problems += expect(job(2, "commit", path, 1), STEP, "one commits")
        tear_record(os.path.join(path, "rank-0-of-2", "store.spillway"), STEP + 1)
        problems += expect(job(1, "resume", path), STEP, "on one")
        problems += expected_in(path, 1)
        problems += [] if read_run(path)["left"] == [] else [f"{read_run(path)['left']} is left"]
    return problems


def begin_until_there(draw, path, drive, deaths):
    """Begins a run, with deaths; returns what is wrong and what was left behind by each."""
    problems, left = [], []
    for _ in range(deaths):
        ranks = draw.choice([1, 2, 3])
        call = f"{draw.randrange(1, MOST_BEGIN_NAMES)}n" if draw.random() < 0.4 else draw.randrange(1, MOST_BEGIN_CALLS)
        death = f"{draw.randrange(ranks)}:{call}"
        code, _, err = job(ranks, "begin", path, nvme=drive, death=death)
        left.append(f"{ranks} ranks, killed at {death}: {sorted(os.listdir(path))} and {stores_in(path)}")
        if code == 0 or (code is None) or LOST in err:
            problems += [] if code == 0 else [f"{left}: status {code}: {err[-800:]}"]
            break
        if "starting.json" not in os.listdir(path) and "run.json" in os.listdir(path):
            break
    return problems, left


def a_start_that_is_cut_off_is_begun_again():
    """Wherever its stores lie, on whatever number of ranks; and nothing of it is left."""
    problems, draw = [], random.Random(jobs.SEED + 1)
    for number in range(DEATHS // 2):
        with folder() as top:
            path, drive = os.path.join(top, "run"), os.path.join(top, "drive") if number % 2 else None
            os.mkdir(path)
            if drive is not None:
                os.mkdir(drive)
            found, left = begin_until_there(draw, path, drive, 2)
            problems += found
            if os.path.exists(os.path.join(path, "run.json")) and "starting.json" not in os.listdir(path):
                continue
            ranks = draw.choice([1, 2, 3])
            what = f"{left}, then {ranks} ranks"
            problems += expect(job(ranks, "begin", path, nvme=drive), None, what)
            problems += expected_in(drive or path, ranks)
            strange = set(os.listdir(path)) - {"run.json", "store.spillway", *(f"rank-{r}-of-{ranks}" for r in range(3))}
            problems += [f"{what}: {strange} left"] if strange else []
            problems += expect(job(ranks, "resume", path), 0, what)
    return problems


def a_folder_with_more_than_a_start_is_refused():
    problems = []
    with folder() as top:
        path, drive = os.path.join(top, "run"), os.path.join(top, "drive")
        os.mkdir(path)
        os.mkdir(drive)
        job(1, "begin", path, nvme=drive, death="0:8")
        if not os.path.exists(os.path.join(path, "starting.json")):
            return [f"no start was cut off: {os.listdir(path)}"]
        for name, make in (("mine.txt", lambda at: open(at, "w").close()), ("rank-0-of-2", os.mkdir)):
            at = os.path.join(path, name)
            make(at)
            problems += refused(job(1, "begin", path, nvme=drive), name, f"{name} beside it")
            problems += [] if os.path.exists(at) else [f"{name} was removed"]
            shutil.rmtree(at) if os.path.isdir(at) else os.unlink(at)
        # Another run's store has come to lie where that of the start was.
        store, other = os.path.join(drive, "store.spillway"), os.path.join(top, "other")
        if os.path.exists(store):
            os.unlink(store)
        os.mkdir(other)
        problems += expect(job(1, "begin", other, nvme=drive), None, "another run")
        problems += refused(job(1, "begin", path, nvme=drive), "store.spillway exists already", "a store of another")
        problems += expect(job(1, "resume", other), 0, "the other run")
        # A folder of a rank has nothing but a store.
        path = os.path.join(top, "ranks")
        os.mkdir(path)
        job(2, "begin", path, death="0:8")
        mine = os.path.join(path, "rank-1-of-2", "mine.txt")
        os.makedirs(os.path.dirname(mine), exist_ok=True)
        open(mine, "w").close()
        problems += refused(job(2, "begin", path), "mine.txt", "a file within a rank's folder")
        problems += [] if os.path.exists(mine) else ["mine.txt was removed"]
    return problems


script_test.run(every_number_of_ranks_takes_over_from_every_other, whole_stores_are_shared_out_and_back,
                every_tensor_group_takes_over_from_every_other, every_expert_group_takes_over_from_every_other, a_death_while_groups_change_loses_nothing,
                goes_back_to_what_all_ranks_have, refuses_what_does_not_belong_together, keeps_ranks_apart_by_names,
                stores_that_were_moved_change_ranks_at_once, what_is_left_moves_with_its_folder,
                a_refused_change_is_taken_back,
                a_store_with_an_unfinished_commit_is_removed, an_older_run_json_removes_nothing,
                what_cannot_be_removed_stays_listed,
                what_is_left_stays_where_the_own_store_is_damaged, no_rank_drops_a_commit_before_all_are_verified,
                the_commit_before_on_every_rank,
                a_death_leaves_the_old_stores_or_the_new, a_start_that_is_cut_off_is_begun_again,
                a_folder_with_more_than_a_start_is_refused)
