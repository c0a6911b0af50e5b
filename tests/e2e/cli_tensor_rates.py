"""Weight decay and learning rate by the names of tensors: as flags for all tensors would have it, the same at every
placement and across starts; patterns that match nothing are refused."""

import program
import runs
from program import script_test

SOME = ("--lr-scale", "*wte.weight=0.1", "--lr-scale", "*.1.mlp.*=3", "--no-decay", "*attn.c_attn.weight", "--no-decay",
        "*.0.mlp.*")


class Run(runs.Run):
    data, steps = (runs.text_file(),), 6
    flags = ("--lr", "4e-3", "--weight-decay", "0.5", "--precision", "fp32")

    def losses(self):
        return [(line["step"], line["loss"], line["grad_norm"]) for line in self.steps_done()]


def trained(run, *flags):
    return Run(run, *flags).once().losses()


def patterns_of_all_are_flags_for_all():
    problems = []
    for what, one, other in (("no decay", trained("undecayed", "--no-decay", "*"), trained("no decay", "--weight-decay", 0)),
                             ("half", trained("halved", "--lr-scale", "*=0.5"), trained("half", "--lr", "2e-3")),
                             ("the last counts", trained("last", "--lr-scale", "*=7", "--lr-scale", "*=0.5"),
                              trained("half", "--lr", "2e-3")),
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
            problems.append(f"{name}: {trained(name)} and not {some}")
    return problems


def resumed():
    resumed_run, faster = Run("resumed", *SOME, steps=2).train(), Run("faster", steps=2).train()
    resumed_run.resume("--steps", Run.steps)
    problems = [] if resumed_run.losses() == trained("some", *SOME) else ["a resume forgets the patterns"]
    faster.resume("--steps", Run.steps, "--lr-scale", "*wte.weight=0.1")
    if faster.losses() == trained("plain"):
        problems.append("a resume does not take --lr-scale")
    recipe = program.content(runs.path("some", "recipe.yaml")).decode()
    if 'lr-scale: ["*wte.weight=0.1"' not in recipe or 'no-decay: ["*attn.c_attn.weight"' not in recipe:
        problems.append(f"the recipe is {recipe}")
    return problems


def refused():
    problems = []
    for more, words in ((("--lr-scale", "*.c_atn.weight=2"), ("--lr-scale", "c_attn.weight")),
                              (("--no-decay", "embed_tokens"), ("--no-decay", "embed_tokens", "named like", "wte"))):
        for end in ((), ("--dry-run",)):
            problems += Run("no", *more, *end).refused(*words)
    for value in ("*", "=2", "*=", "*=x", "*=0", "*=-1", "*=1e9", "*=nan"):
        problems += Run("no", "--lr-scale", value).refused("--lr-scale", status=2)
    return problems


script_test.run(every_placement, patterns_of_all_are_flags_for_all, resumed, refused)
