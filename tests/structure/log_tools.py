"""tools/log_to_tensorboard.py and log_to_wandb.py: what they hand on, by packages that stand in for the real ones."""

import json
import os
import subprocess
import sys
import tempfile

import script_test
import sources

TOOLS = os.path.join(sources.ROOT, "tools")
LOG = ('{"step":1,"time":"2026-01-01T00:00:00Z","loss":5.5,"mfu":null,"skipped":false,"lanes":{"read":0.25}}\n'
       '{"step":1,"val_loss":5.25,"val_tokens":9,"tokens":1e999,"seconds":1e308,"lr":' + "9" * 400 + ',"zero":NaN}\n'
       '{"step":2,"los')
# Each prints what it is given, as lines of JSON.
STAND_INS = {
    "tensorboardX.py": """
import json
class SummaryWriter:
    def __init__(self, folder): print(json.dumps(folder))
    def __enter__(self): return self
    def __exit__(self, *error): pass
    def add_scalar(self, name, value, step): print(json.dumps([name, value, step]))
""",
    "wandb.py": """
import json
class Run:
    def __enter__(self): return self
    def __exit__(self, *error): pass
    def log(self, numbers, step): print(json.dumps([numbers, step]))
def init(**given):
    print(json.dumps(given))
    return Run()
"""}


# A run.json that the program wrote, up to its members but these two.
CHECKED = '{\n  "checksum": "%s",\n  "settings": {\n    "lr": 0.5\n  }\n}\n'


def ran(script, first, packages=True, settings='{"settings": {"lr": 0.5}}'):
    """Its exit status, the lines that the packages print, and standard error."""
    with tempfile.TemporaryDirectory() as folder:
        run = os.path.join(folder, "run")
        os.mkdir(run)
        for path, text in ((os.path.join(run, "log.jsonl"), LOG),
                           (os.path.join(run, "run.json"), settings),
                           *((os.path.join(folder, name), text) for name, text in STAND_INS.items() if packages)):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        done = subprocess.run([sys.executable, "-S", "-B", os.path.join(TOOLS, script), first, run], cwd=folder,
                              env={**os.environ, "PYTHONPATH": folder}, capture_output=True, text=True, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def tensorboard():
    wanted = ["out/run", ["loss", 5.5, 1], ["skipped", 0.0, 1], ["lanes/read", 0.25, 1], ["val_loss", 5.25, 1],
              ["val_tokens", 9.0, 1]]
    code, lines, said = ran("log_to_tensorboard.py", "out")
    return [] if (code, lines) == (0, wanted) else [f"status {code}: {lines} {said}"]


def wandb():
    wanted = [{"project": "ours", "name": "run", "config": {"lr": 0.5}},
              [{"loss": 5.5, "skipped": 0.0, "lanes/read": 0.25}, 1], [{"val_loss": 5.25, "val_tokens": 9.0}, 1]]
    code, lines, said = ran("log_to_wandb.py", "ours")
    return [] if (code, lines) == (0, wanted) else [f"status {code}: {lines} {said}"]


def missing_packages_are_named():
    problems = []
    for script, name in (("log_to_tensorboard.py", "tensorboardX"), ("log_to_wandb.py", "wandb")):
        code, lines, said = ran(script, "out", packages=False)
        if code != 1 or lines or name not in said or "Traceback" in said:
            problems.append(f"{script}: status {code}: {said}")
    return problems


def damaged_settings_are_refused():
    problems = []
    right = CHECKED % "92f88c89580b041d"
    for text, word in ((right, None), (right.replace("0.5", "2.5"), "match its checksum"), (right.replace("041d", "042d"), "match its checksum"),
                       (right.replace("\n", ""), "match its checksum"), (right[:-9], "not that of a run"), ("[]", "not that of a run"),
                       (right.replace("0.5", "0." + "5" * 500), "match its checksum")):
        code, lines, said = ran("log_to_wandb.py", "ours", settings=text)
        if (code, bool(lines), "Traceback" in said, (word or "") in said) != (0 if word is None else 1, word is None, False, True):
            problems.append(f"{text}: status {code}: {lines} {said}")
    return problems


script_test.run(tensorboard, wandb, damaged_settings_are_refused, missing_packages_are_named)
