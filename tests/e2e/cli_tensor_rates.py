"""Weight decay and learning rate by the names of tensors: as flags for all tensors would have it, the same at every
placement and across starts; patterns that match nothing are refused."""

import os

import program
from program import script_test

SCRATCH = program.scratch_folder()
DATA = program.write(os.path.join(SCRATCH, "data.txt"), program.text(6, 40000))
STEPS = 6
SOME = ("--lr-scale", "*wte.weight=0.1", "--lr-scale", "*.1.mlp.*=3", "--no-decay", "*attn.c_attn.weight", "--no-decay",
        "*.0.mlp.*")


def path(*names):
    return os.path.join(SCRATCH, *names)


def train(run, *more, steps=STEPS, rate="4e-3", decay="0.5"):
    return ["train", "--model", "gpt2-tiny", "--init", "--data", DATA, "--run", path(run), "--steps", steps,
            "--schedule-steps", STEPS, "--lr", rate, "--weight-decay", decay, "--precision", "fp32", *program.SHAPE, *more]


def losses(run):
    return [(line["step"], line["loss"], line["grad_norm"]) for line in program.steps_of(path(run))]


def trained(run, *more, **options):
    if not os.path.isdir(path(run)):
        program.must(*train(run, *more, **options))
    return losses(run)


def patterns_of_all_are_flags_for_all():
    problems = []
    for what, one, other in (("no decay", trained("undecayed", "--no-decay", "*"), trained("no decay", decay="0")),
                             ("half", trained("halved", "--lr-scale", "*=0.5"), trained("half", rate="2e-3")),
                             ("the last counts", trained("last", "--lr-scale", "*=7", "--lr-scale", "*=0.5"),
                              trained("half", rate="2e-3")),
                             ("one", trained("one", "--lr-scale", "*=1", "--no-decay", "*.bias"), trained("plain"))):
        if one != other:
            problems.append(f"{what}: {one} and not {other}")
    alike = [name for name in ("no decay", "half", "some") if trained(name) == trained("plain")]
    return problems + [f"{name} trains as without" for name in alike]


def every_placement():
    some, problems = trained("some", *SOME), []
    for name, flags in (("host", ("--place", "grads=host,optimizer=host")),
                        ("nvme", ("--place", "weights=nvme,grads=nvme,optimizer=nvme", "--speculate", "always")),
                        ("device", ("--place", "grads=host,optimizer=nvme", "--update", "device"))):
        if trained(name, *SOME, *flags) != some:
            problems.append(f"{name}: {losses(name)} and not {some}")
    return problems


def resumed():
    program.must(*train("resumed", *SOME, steps=2))
    program.must("resume", path("resumed"), "--steps", STEPS)
    problems = [] if losses("resumed") == trained("some", *SOME) else ["a resume forgets the patterns"]
    program.must(*train("faster", steps=2))
    program.must("resume", path("faster"), "--steps", STEPS, "--lr-scale", "*wte.weight=0.1")
    if losses("faster") == trained("plain"):
        problems.append("a resume does not take --lr-scale")
    with open(path("some", "recipe.yaml"), encoding="utf-8") as file:
        recipe = file.read()
    if 'lr-scale: ["*wte.weight=0.1"' not in recipe or 'no-decay: ["*attn.c_attn.weight"' not in recipe:
        problems.append(f"the recipe is {recipe}")
    return problems


def refused():
    problems = []
    for what, more, words in (("near", ("--lr-scale", "*.c_atn.weight=2"), ("--lr-scale", "c_attn.weight")),
                              ("far", ("--no-decay", "embed_tokens"), ("--no-decay", "embed_tokens", "named like", "wte"))):
        for end in ((), ("--dry-run",)):
            problems += program.refused(what, train("no", *more, *end), *words, watched=[SCRATCH])
    for value in ("*", "=2", "*=", "*=x", "*=0", "*=-1", "*=1e9", "*=nan"):
        problems += program.refused(value, train("no", "--lr-scale", value), "--lr-scale", status=2, watched=[SCRATCH])
    return problems


script_test.run(every_placement, patterns_of_all_are_flags_for_all, resumed, refused)
