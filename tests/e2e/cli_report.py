"""spillway report: the page's data against the log, what it must not fetch or overwrite, and bad or long logs."""

import getpass
import html.parser
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import urllib.parse

import program
from program import script_test

SCRATCH = program.scratch_folder()
os.environ["XDG_CACHE_HOME"] = os.path.join(SCRATCH, "cache")  # without a profile of this machine: nothing is predicted
STEPS = 12
MOST_BYTES = 2_000_000
POINTS, RUNS, WIDE_RUNS = 800, 10, 3  # with more than WIDE_RUNS, half of the points
SAMPLES = 240
MOST_KIB = 100_000  # the log of a million lines has twice as much
LANES = ("compute", "upload", "download", "read", "write", "update", "comm")


def path(*names):
    return os.path.join(SCRATCH, *names)


def train(run, *more, steps=STEPS):
    data = program.write(path("data.txt"), program.text(3, 20000))
    program.must("train", "--model", "gpt2-tiny", "--init", "--data", data, "--val", "10%", "--eval-every", 4, "--run",
                 path(run), "--steps", steps, *program.SHAPE, *more)
    return path(run)


TRAINED = train("trained", "--place", "optimizer=nvme", "--clip", "2")


def page_of(*runs, out="report.html"):
    program.must("report", *runs, "--out", path(out))
    with open(path(out), encoding="ascii") as file:
        return file.read()


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


def copy(name, log):
    """A run of which only the log differs."""
    os.makedirs(path(name), exist_ok=True)
    shutil.copy(os.path.join(TRAINED, "run.json"), path(name, "run.json"))
    program.write(path(name, "log.jsonl"), log)
    return path(name)


def read_log():
    with open(os.path.join(TRAINED, "log.jsonl"), encoding="utf-8") as file:
        return file.read()


def line(step, **more):
    return json.dumps({"step": step, "loss": 4.0, "grad_norm": 1.0, "lr": 1e-3, "tokens": 8, "seconds": 0.5,
                       "tokens_per_second": 16.0, "lanes": {"compute": 0.25}, **more}) + "\n"


def sample(step, prompt, text):
    return json.dumps({"step": step, "sample": {"prompt": prompt, "text": text}, "sample_seconds": 0.1}) + "\n"


def near(a, b):
    return a == b or (a is not None and b is not None and abs(a - b) <= 1e-5 * abs(b))


def data_is_the_log():
    """With one step a point, each number is the log's, to the digits that the page keeps."""
    problems, steps = [], program.steps_of(TRAINED)
    run = data_of(page_of(TRAINED))["runs"][0]
    wanted = {name: [step[name] for step in steps] for name in ("step", "loss", "grad_norm", "lr", "tokens_per_second")}
    wanted["clipped"] = [float(step["grad_norm"] > 2) for step in steps]
    wanted["loss_most"] = wanted["loss"]
    found = {name: run["columns"][name] for name in wanted}
    for lane in LANES:
        wanted[lane] = [float(f"{step['lanes'][lane] / step['seconds']:.4g}") for step in steps]
        found[lane] = run["lanes"][lane]
    for name, values in wanted.items():
        if len(values) != len(found[name]) or not all(map(near, found[name], values)):
            problems.append(f"{name}: {found[name]} instead of {values}")
    evaluations = [[one["step"], one["val_loss"]] for one in program.log_lines(TRAINED) if "val_loss" in one]
    if not all(near(a[1], b[1]) and a[0] == b[0] for a, b in zip(run["evaluations"], evaluations, strict=True)):
        problems.append(f"evaluations {run['evaluations']} instead of {evaluations}")
    totals = {"tokens": sum(step["tokens"] for step in steps), "steps": STEPS,
              "clipped": sum(wanted["clipped"]), "saved": sum(step["saved"] for step in steps)}
    problems += [f"{name}: {run[name]} instead of {value}" for name, value in totals.items() if run[name] != value]
    if run["bytes"]["nvme_write"] != sum(step["bytes"]["nvme_write"] for step in steps):
        problems.append(f"bytes {run['bytes']}")
    if run["settings"] != program.read_json(os.path.join(TRAINED, "run.json"))["settings"]:
        problems.append("the settings are not those of run.json")
    return problems


class References(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found += [f"{tag} {name}={value}" for name, value in attrs if name in ("src", "href", "srcset", "action")]


def page_needs_nothing_else():
    page = page_of(TRAINED, TRAINED)
    parser = References()
    parser.feed(page)
    problems = [f"the page refers to {found}" for found in parser.found]
    problems += [f"the page holds {word}" for word in ("http:", "https:", "@import", "url(", "fetch(") if word in page]
    return problems + ([] if len(page) < MOST_BYTES else [f"the page has {len(page)} bytes"])


def hostile_texts():
    """Names end no script, and are data to the last byte."""
    name = "</script><script>alert(1)</script><!-- & \u2028 é"
    folder = copy(name.replace("/", "|"), read_log())
    settings = program.read_json(os.path.join(folder, "run.json"))
    settings["settings"]["model"] = name
    program.write(os.path.join(folder, "run.json"), json.dumps(settings))
    page = page_of(folder)
    run = data_of(page)["runs"][0]
    problems = [] if run["settings"]["model"] == name else [f"the model is called {run['settings']['model']!r}"]
    if page.count("<script") != 2 or page.count("</script>") != 2 or "alert(1)<" in page:
        problems.append("a name has made an element")
    odd = data_of(page_of(copy(os.fsdecode(b"odd-\xff"), read_log())))["runs"][0]["folder"]
    return problems + ([] if odd.endswith("odd-?") else [f"a folder without UTF-8 is called {odd!r}"])


def bad_logs():
    """A torn end is what a run that writes looks like; other damage is refused by its line."""
    problems, whole = [], read_log()
    count = len(whole.splitlines())
    good = {"torn": whole + '{"step":13,"lo', "torn zeros": whole + "\0" * 700, "empty": "", "later": line(1, more={"a": [1, {}]})}
    for name, log in good.items():
        run = data_of(page_of(copy(name, log)))["runs"][0]
        if run["steps"] != (STEPS if name.startswith("torn") else log.count("\n")):
            problems.append(f"{name}: {run['steps']} steps")
    bad = {
        "no JSON": whole + "{'step': 1}\n", "cut": whole + '{"step":13,"lo\n', "zeros": whole + "\0\0\n",
        "no step": whole + '{"loss":1}\n', "twice": whole + line(STEPS), "a text": whole + line(13, loss="4.0"),
        "more behind": whole + line(13).strip() + "}\n", "long": whole + line(13, x="a" * 1_100_000),
        "deep": whole + line(13, x=json.loads("[" * 50 + "]" * 50)), "hex": whole + line(13).replace("4.0", "0x4"),
        "below one": whole + line(0), "nan": whole + line(13, loss=float("nan")),
    }
    for name, log in bad.items():
        problems += program.refused(name, ["report", copy("bad", log), "--out", path("bad.html")], "log.jsonl",
                                    f"line {count + 1}", watched=(path("bad"),))
    return problems + (["a refused log left a page"] if os.path.exists(path("bad.html")) else [])


def huge_numbers_are_missing():
    """Numbers whose sums would leave the range of double are shown as missing, and the rest as ever."""
    numbers = ("1e308", "1.7e308", "-1e308", "1e999", "9" * 400, "1e101")
    log = [line(i + 1, loss="?", seconds="?", bytes={"upload": "?"}, lanes={"read": "?"}).replace('"?"', number)
           for i, number in enumerate(numbers)]
    run = data_of(page_of(copy("huge", "".join(log) + line(9) + line(10))))["runs"][0]
    found = [run["columns"]["loss"], run["seconds"], run["bytes"]["upload"], run["lane_seconds"]["read"]]
    return [] if found == [[None] * len(numbers) + [4.0] * 2, 1.0, 0, 0] else [f"{found}"]


def refusals():
    problems = []
    notes = program.write(path("notes.html"), "<!doctype html>\nmine")
    os.makedirs(path("nothing"), exist_ok=True)
    os.symlink(path("away.html"), path("link.html"))
    broken = copy("broken", "")
    program.write(os.path.join(broken, "run.json"), "{}")
    for what, arguments, words in (
            ("a file of somebody", ["report", TRAINED, "--out", notes], ("notes.html", "--out")),
            ("a link", ["report", TRAINED, "--out", path("link.html")], ("link.html", "--out")),
            ("a folder", ["report", TRAINED, "--out", SCRATCH], (SCRATCH, "--out")),
            ("no run", ["report", path("nothing")], ("run.json",)),
            ("no settings", ["report", broken], ("run.json", "settings")),
            ("no folder to write to", ["report", TRAINED, "--out", path("none", "a.html")], ("none",))):
        problems += program.refused(what, arguments, *words, watched=(SCRATCH,))
    problems += program.refused("too many runs", ["report", *[TRAINED] * (RUNS + 1)], str(RUNS), status=2)
    return problems


def runs_stay_as_they_are():
    """Twice into the same file; nothing of the run changes, not even in a folder that cannot be written."""
    before, problems = program.tree(TRAINED), []
    os.chmod(TRAINED, 0o500)
    page_of(TRAINED)
    page_of(TRAINED)
    os.chmod(TRAINED, 0o700)
    problems += [f"{name} changed" for name in program.differences(before, program.tree(TRAINED))]
    return problems + [f"{name} was left" for name in os.listdir(SCRATCH) if name.endswith(".partial")]


def long_logs():
    """Points are bounded; the least and the most of their steps stay, and so do totals. Evaluations are thinned."""
    problems, steps = [], 50_000
    folder = copy("long", "".join(
        line(step, loss=3.0 + (step == 777) - (step == 40_001) * 0.5) + json.dumps(
            {"step": step, "val_loss": 2.5 - (step == 12_345), "val_tokens": 5}) + "\n" for step in range(1, steps + 1)))
    for count in (WIDE_RUNS, RUNS):
        page, most = page_of(*[folder] * count), POINTS if count == WIDE_RUNS else POINTS // 2
        run = data_of(page)["runs"][0]
        points = len(run["columns"]["step"])
        wanted = {"width": 64 * POINTS // most, "steps": steps, "tokens": 8 * steps, "seconds": steps / 2, "best": [12_345, 1.5],
                  "last_evaluation": [steps, 2.5]}
        problems += [f"{name}: {run[name]} instead of {value}" for name, value in wanted.items() if run[name] != value]
        if points > most or len(run["evaluations"]) > most or run["columns"]["step"][-1] != steps:
            problems.append(f"{points} points, {len(run['evaluations'])} evaluations")
        if max(run["columns"]["loss_most"]) != 4.0 or min(run["columns"]["loss_least"]) != 2.5:
            problems.append("a spike is lost")
        problems += [] if len(page) < MOST_BYTES else [f"{count} runs make {len(page)} bytes"]
    return problems


def largest_page():
    """As many runs, points, digits, samples and spans as there can be."""
    draw = random.Random(5).random
    names = program.steps_of(TRAINED)[0]
    log = "".join(json.dumps({"step": step, **{name: draw() * 1e-3 for name in ("loss", "grad_norm", "lr", "seconds", "mfu")},
                              "tokens": 10 ** 9, "tokens_per_second": draw() * 1e-3,
                              **{group: {name: draw() * 1e10 for name in names[group]} for group in ("lanes", "bytes", "peak")}}) +
                  "\n" + json.dumps({"step": step, "val_loss": draw() * 1e-3}) + "\n" + sample(step, "a", "<\u4e2d>" * 3000)
                  for step in range(10 ** 9, 10 ** 9 + POINTS))
    spans = [[draw() * 1e8, draw() * 1e5, "activations", 100, 101, 9999, 10 ** 11] for _ in range(220)]
    timeline = {"seconds": 1.0, "ops": 10 ** 6, "units": 102, "lanes": {lane: spans for lane in LANES}}
    problems, folder = [], copy("dense", log)
    program.write(path("dense", "timeline.json"), json.dumps({"step": 10, "predicted": timeline, "measured": timeline}))
    for count in (1, WIDE_RUNS, WIDE_RUNS + 1, RUNS):
        page, most = page_of(*[folder] * count), POINTS if count <= WIDE_RUNS else POINTS // 2
        run = data_of(page)["runs"][-1]
        counts = {len(run["evaluations"]), len(run["columns"]["step"])}
        if len(page) > MOST_BYTES or counts != {most} or (run["timeline"] == "left out") == (count == 1):
            problems.append(f"{count} runs: {len(page)} bytes, {counts} points, timeline {str(run['timeline'])[:20]}")
    return problems


def samples_are_kept():
    """A page keeps some of many samples, evenly over the steps, the newest among them; texts are data whatever they hold."""
    texts = ["</script><script>alert(1)</script>", "<b>&amp;<!--", "two\nlines\t\u2028 \u00e9\U0001f600 \0 end", ""]
    log = read_log() + "".join(sample(step, prompt, texts[step % 4]) for step in range(1, 1001) for prompt in ("The ", "<i>"))
    folder = copy("sampled", log + sample(1000, "bad", "@").replace("@", "\\ud800") + '{"step":1000,"sample":{"prompt":1}}\n')
    page = page_of(folder)
    run, problems = data_of(page)["runs"][0], []
    steps = sorted({step for step, _, _ in run["samples"]})
    gaps = {b - a for a, b in zip(steps[:-2], steps[1:-1])}
    if not SAMPLES / 3 < len(run["samples"]) <= SAMPLES or steps[0] != 1 or steps[-1] != 1000 or len(gaps) != 1:
        problems.append(f"{len(run['samples'])} samples of the steps {steps}")
    if any(text != texts[step % 4] for step, _, text in run["samples"]) or (run["samples_seen"], run["samples_unreadable"]) != (2002, 2):
        problems.append(f"{run['samples_seen']} samples, {run['samples_unreadable']} unreadable, {run['samples'][:4]}")
    if page.count("<script") != 2 or page.count("</script>") != 2 or run["steps"] != STEPS:
        problems.append(f"a text has made an element, or a step: {run['steps']}")
    long = data_of(page_of(copy("long sample", sample(5, "p", "\u00e9" * 100_000))))["runs"][0]["samples"]
    return problems + ([] if long == [[5, "p", "\u00e9" * 1000 + " [...]"]] else [f"a long sample: {str(long)[:200]}"])


def prediction_beside_the_steps():
    """The medians are of the steps after the first of the start that made the plan; older runs have no prediction."""
    log = "".join(line(step, seconds=100.0 if step <= 5 else step / 10, lanes={"compute": step / 20}) for step in range(1, 16))
    folder = copy("predicted", log)
    found = program.read_json(os.path.join(folder, "run.json"))
    found["prediction"].update(first_step=5, step_seconds=0.9, lanes={"compute": 0.7})
    program.write(os.path.join(folder, "run.json"), json.dumps(found))
    run, problems = data_of(page_of(folder))["runs"][0], []
    measured = run["measured"]
    if (measured["steps"], measured["step_seconds"], measured["lanes"]["compute"], measured["lanes"]["read"]) != (10, 1.05, 0.525, None):
        problems.append(f"measured {measured}")
    if run["prediction"] != found["prediction"] or run["machine"] != found["machine"] or run["timeline"] is not None:
        problems.append(f"prediction {run['prediction']}, machine {run['machine']}")
    del found["prediction"], found["machine"]
    program.write(os.path.join(folder, "run.json"), json.dumps(found))
    run = data_of(page_of(folder))["runs"][0]
    return problems + ([] if run["prediction"] is None and run["machine"] is None else ["an old run has a prediction"])


def million_lines():
    """In memory that does not grow with the log."""
    folder = copy("million", "")
    text = line(0).replace('"step": 0', '"step": @')
    with open(os.path.join(folder, "log.jsonl"), "w", encoding="utf-8") as file:
        for begin in range(1, 1_000_001, 1000):
            file.write("".join(text.replace("@", str(step)) for step in range(begin, begin + 1000)))
    with subprocess.Popen(program.command("report", folder, "--out", path("million.html"), "--quiet")) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
    os.unlink(os.path.join(folder, "log.jsonl"))
    return [] if status == 0 and usage.ru_maxrss < MOST_KIB else [f"status {status}, {usage.ru_maxrss} KiB"]



# --- The run's own files ---------------------------------------------------------------------------------------------


def start_is_described():
    """Each start describes its machine and plan; the plan's bytes are those of the log. A step's timeline fits them."""
    run = train("described", "--place", "optimizer=nvme")
    program.must("resume", run, "--steps", STEPS + 12, "--place", "optimizer=host")
    found, problems = program.read_json(os.path.join(run, "run.json")), []
    text, last = json.dumps(found["machine"]), program.steps_of(run)[-1]
    private = {socket.gethostname(), getpass.getuser(), os.path.basename(SCRATCH)}
    problems += [f"the machine's description holds {name!r}" for name in private if re.search(rf"\b{re.escape(name)}\b", text)]
    if found["machine"]["cores"] < 1 or found["machine"]["gpu"] is not None or len(found["machine"]["store"]) != 1:
        problems.append(f"machine {text}")
    made = found["prediction"]
    problems += [f"{name}: {made[name]} before a step" for name in ("step_seconds", "tokens_per_second", "lanes") if made[name] is not None]
    if made["first_step"] != STEPS + 1 or made["bytes"] != last["bytes"]:
        problems.append(f"prediction {made}, last step {last}")
    problems += [f"peak {tier}" for tier in ("device", "host") if made["peak"][tier] != last["peak"][tier]]
    timeline = program.read_json(os.path.join(run, "timeline.json"))
    moved = sum(span[6] for span in timeline["measured"]["lanes"]["upload"])
    if timeline["step"] != STEPS + 10 or timeline["predicted"] is not None or moved != last["bytes"]["upload"]:
        problems.append(f"timeline of step {timeline['step']}, {moved} bytes up")
    return problems


def timeline_beside_a_trace():
    """--trace is as ever, and a run of one step, which is like no other, keeps no timeline."""
    traced, single = train("traced", "--trace", path("trace.json")), train("single", steps=1)
    steps = {event["args"]["step"] for event in program.read_json(path("trace.json"))["traceEvents"] if event["ph"] == "X"}
    problems = [] if steps == set(range(1, STEPS + 1)) else [f"the trace has the steps {sorted(steps)}"]
    step = program.read_json(os.path.join(traced, "timeline.json"))["step"]
    problems += [] if step == 10 else [f"the timeline is of step {step}"]
    return problems + (["one step has a timeline"] if os.path.exists(os.path.join(single, "timeline.json")) else [])


# --- A real browser --------------------------------------------------------------------------------------------------


class Drawn(html.parser.HTMLParser):
    """Returns the results of the page's script: curves by the headings of their charts, list items, and all text."""

    def __init__(self):
        super().__init__()
        self.curves, self.findings, self.text, self.scripts, self.bars, self.inside = {}, 0, [], 0, 0, []
        self.heading = ""

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.inside.append(tag)
        self.heading = "" if tag == "h3" else self.heading
        self.findings += tag == "li"
        self.scripts += tag == "script"
        self.bars += tag == "rect"
        if tag == "path" and "curve" in given.get("class", "").split():
            self.curves.setdefault(self.heading.split("  ")[0].strip(), []).append(given["d"])

    def handle_endtag(self, tag):
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, text):
        if "script" in self.inside or "style" in self.inside:
            return
        if self.inside[-1:] == ["h3"]:
            self.heading += text
        self.text.append(text)


def browser(page, *more):
    """The document after the page's script has run."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise script_test.Skip("no chromium")
    done = program.limits.run([chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", *more,
                           "--user-data-dir=" + path("browser"), "--virtual-time-budget=2000", "--dump-dom",
                           "file://" + page], capture_output=True, check=True)
    return done.stdout.decode()


def browser_draws_it():
    """Every chart has its curves, also of a run without steps, with one step and with numbers that are not known."""
    problems = []
    hostile = copy("<b>&|", read_log() + line(13, loss=None, grad_norm=None, seconds=None, tokens_per_second=None, lr=None) +
                   sample(13, "<i>The", "</script><script>document.title='owned'</script>"))
    runs = [TRAINED, hostile, copy("empty", ""), copy("one", line(5)), path("long")]
    if not os.path.exists(path("long", "log.jsonl")):
        runs.pop()
    page_of(*runs)
    made = Drawn()
    made.feed(browser(path("report.html")))
    text = " ".join(made.text)
    for chart in ("Loss", "Gradient norm", "Steps clipped", "Learning rate", "Throughput", "Busy share of lanes", "Bytes moved"):
        curves = made.curves.get(chart, [])
        if sum(len(d) > 60 for d in curves) < (1 if chart in ("Busy share of lanes", "Bytes moved") else 2):
            problems.append(f"{chart} has the curves {[d[:40] for d in curves]}")
    drawn = [d for curves in made.curves.values() for d in curves]
    problems += [f"the page says {word}" for word in ("NaN", "undefined", "Infinity", "null")
                 if re.search(rf"\b{word}\b", text) or any(word in d for d in drawn)]
    if text.count("is not a finite number") != 1:
        problems.append("a loss that is not known is not told")
    if "<b>&|" not in text or made.scripts != 2 or made.findings < len(runs) - 1:
        problems.append(f"{made.scripts} scripts, {made.findings} findings, {text[:300]!r}")
    problems += [f"the page lacks {words!r}" for words in ("</script><script>document.title='owned'</script>", "<i>The", "not predicted",
                                                           "Machine", "Step 10.", "There are too few steps to judge.", "; it last was at step 12.",
                                                           "What was found of each run") if words not in text]
    return problems + ([] if made.bars > 5 else [f"the timeline has {made.bars} bars"])


def browser_keeps_the_view():
    """The reader's choice is in the address, so a page that reloads itself keeps it; a broken address is as good as none."""
    folder, problems = copy("slid", read_log() + "".join(sample(step, "The", f" text {step}") for step in (4, 8, 12))), []
    page_of(folder)
    for view, chosen in (({"slides": {"0 0": 8}}, "step 8"), ({"slides": {"0 0": 9}}, "step 12"), ({"slides": 5, "open": None, "sampled": 7}, "step 12")):
        made = Drawn()
        made.feed(browser(path("report.html") + "#" + urllib.parse.quote(json.dumps(view))))
        problems += [] if [text for text in made.text if re.fullmatch(r"step \d+", text)] == [chosen] else [f"{view}: {made.text}"]
    return problems


def browser_draws_odd_files():
    """Files that are JSON of another shape cost their section, and no more."""
    folder, problems = copy("odd files", read_log()), []
    found = program.read_json(os.path.join(folder, "run.json"))
    for machine, prediction, timeline in ((7, [], {"step": 1}), ({"store": 3}, {"first_step": 1, "peak": "a"}, {"measured": {"lanes": 5}}),
                                          ("a", "b", ["c"])):
        program.write(os.path.join(folder, "run.json"), json.dumps({**found, "machine": machine, "prediction": prediction}))
        program.write(os.path.join(folder, "timeline.json"), json.dumps(timeline))
        page_of(folder)
        made = Drawn()
        made.feed(browser(path("report.html")))
        text = " ".join(made.text)
        if len(made.curves.get("Loss", [])) < 2 or "--batch-tokens" not in text:
            problems.append(f"{machine}: {text[:300]!r}, {sorted(made.curves)}")
    return problems


# --- --watch ---------------------------------------------------------------------------------------------------------


watched_paths = {}  # of a port's page


def watching(*runs):
    process = program.start("report", *runs, "--watch", "--quiet")
    said = process.stderr.readline()
    found = re.search(r"http://127\.0\.0\.1:(\d+)(/[0-9a-f]{32}/) ", said)
    watched_paths[int(found[1])] = found[2]
    return process, int(found[1])


def answer_of(port, method="GET", target=None, host=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=program.limits.STILL_S)
    connection.request(method, target or watched_paths[port], headers={"Host": host or f"127.0.0.1:{port}"})
    answer = connection.getresponse()
    if "frame-ancestors 'none'" not in answer.getheader("Content-Security-Policy", ""):
        raise RuntimeError(f"other pages may frame {answer.getheaders()}")
    return answer.status, answer.read().decode()


def watch_follows_the_run():
    problems, folder = [], copy("followed", read_log())
    process, port = watching(folder)
    status, page = answer_of(port)
    if status != 200 or data_of(page)["runs"][0]["steps"] != STEPS or data_of(page)["reload_s"] < 1:
        problems.append(f"status {status}: {page[:200]}")
    copy("followed", read_log() + line(13))
    if data_of(answer_of(port, host=f"localhost:{port}")[1])["runs"][0]["steps"] != STEPS + 1:
        problems.append("a new step is not shown")
    copy("followed", "broken\n")
    status, page = answer_of(port)
    if status != 500 or "line 1" not in page:
        problems.append(f"a broken log: status {status}: {page[:200]}")
    busy = program.run("report", TRAINED, "--watch", "--port", port)
    problems += program.wrong_refusal("a port in use", busy, 1, ("--port", str(port), "in use", "leave --port out"), ["report"])
    process.send_signal(signal.SIGINT)
    code = program.limits.wait(process)
    return problems + ([] if code == 0 else [f"Ctrl-C ends it with {code}"])


def watch_answers_this_machine_alone():
    problems = []
    process, port = watching(TRAINED)
    for what, wanted, arguments in (
            ("another host", 403, {"host": "evil.example"}), ("no port", 403, {"host": "localhost"}),
            ("a host that begins alike", 403, {"host": f"127.0.0.1:{port}.evil.example"}),
            ("another path", 404, {"target": "/run.json"}), ("no secret", 404, {"target": "/"}),
            ("half a secret", 404, {"target": watched_paths[port][:20] + "/"}), ("another secret", 404, {"target": "/" + "0" * 32 + "/"}),
            ("more than the secret", 404, {"target": watched_paths[port] + "x"}), ("a path up", 404, {"target": "/../run.json"}),
            ("POST", 405, {"method": "POST"})):
        status, page = answer_of(port, **arguments)
        if status != wanted or TRAINED in page:
            problems.append(f"{what}: status {status} instead of {wanted}: {page[:100]}")
    for what, request in (("no request", b""), ("noise", b"\0\xff\r\n\r\n"), ("no end", b"GET / HTTP/1.1\r\n" + b"a" * 20000)):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            try:
                connection.sendall(request)
                connection.shutdown(socket.SHUT_WR)
                if b"200 OK" in connection.recv(4096):
                    problems.append(f"{what} is answered")
            except OSError:
                pass
    with open(f"/proc/{process.pid}/net/tcp", encoding="ascii") as file:
        listening = [words[1] for words in map(str.split, file) if words[1].endswith(f":{port:04X}") and words[3] == "0A"]
    if listening != [f"0100007F:{port:04X}"]:
        problems.append(f"listens on {listening}")
    if answer_of(port)[0] != 200:
        problems.append("has stopped to answer")
    process.send_signal(signal.SIGTERM)
    program.limits.wait(process)
    for what, arguments in (("--port alone", ["--port", 8000]), ("--out", ["--watch", "--out", path("w.html")])):
        problems += program.refused(what, ["report", TRAINED, *arguments], "--watch", status=2)
    return problems


def open_of(connections):
    """How many of these connections the other end has not closed."""
    count = 0
    for each in connections:
        each.settimeout(0)
        try:
            count += each.recv(1) != b""
        except BlockingIOError:
            count += 1
        except OSError:
            pass
    return count


def hold_as_another_user(port, count):
    """Makes connections as the user nobody and holds them until the process that is returned gets a signal."""
    there, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
        os.write(tell, b"1")
        signal.pause()
        os._exit(len(held) > 0)
    os.close(tell)
    os.read(there, 1)
    return child


def one_user_takes_no_more_than_half():
    """A user holds 16 of 32 connections at most. Those of another user, whom only root can play, take none away."""
    process, port = watching(TRAINED)
    problems, own = [], [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]
    if os.geteuid() == 0:
        other = hold_as_another_user(port, 40)
        status, _ = answer_of(port)
        problems += [] if (status, open_of(own)) == (200, 8) else [f"beside another user: status {status}, {open_of(own)} of 8 are open"]
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)
    own += [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    status, page = answer_of(port)
    if status != 200 or "</html>" not in page or open_of(own) not in (15, 16):
        problems.append(f"beside 28 connections: status {status}, {open_of(own)} of them are open")
    process.send_signal(signal.SIGTERM)
    program.limits.wait(process)
    return problems


def silent_connections_hold_up_nobody():
    """Connections that send nothing, or never the end of it, are more than the program keeps, and the page comes all the same."""
    process, port = watching(TRAINED)
    silent = []
    for count in (8, 100):
        silent += [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
        for each in silent[::2]:
            try:
                each.sendall(b"GET /")
            except OSError:  # It has made room.
                pass
        status, page = answer_of(port)
        open_still = open_of(silent[:8])
        # The page came before the time of the first ones was over, thus did not wait for it.
        if status != 200 or "</html>" not in page or (count == 8 and open_still != 8):
            return [f"beside {count} silent connections: status {status}, {open_still} of the first are open"]
    for each in silent:
        each.close()
    process.send_signal(signal.SIGTERM)
    program.limits.wait(process)
    return []


script_test.run(start_is_described, timeline_beside_a_trace, data_is_the_log, page_needs_nothing_else, hostile_texts, bad_logs, huge_numbers_are_missing, refusals, runs_stay_as_they_are,
                long_logs, largest_page, samples_are_kept, prediction_beside_the_steps, million_lines, browser_draws_it, browser_keeps_the_view, browser_draws_odd_files, watch_follows_the_run, watch_answers_this_machine_alone,
                silent_connections_hold_up_nobody, one_user_takes_no_more_than_half)
