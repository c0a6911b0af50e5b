"""A test's world: a scratch folder, texts in it, and runs. Each test that imports this has a folder of its own."""

import os
import shutil

import program

FOLDER = program.scratch_folder()


def path(*names):
    return os.path.join(FOLDER, *map(str, names))


def text_file(name="data.txt", seed=6, characters=40000):
    return program.write(path(name), program.text(seed, characters))


def refused(what, arguments, *words, **options):
    """As program's, and nothing in the test's folder may change."""
    return program.refused(what, arguments, *words, watched=[FOLDER], **options)


class Run:
    """A run of the test's folder: its command line, how it goes on, and what it leaves. A test derives a class, whose members
    are what its trainings have in common. What a run has of its own are flags, which replace common ones of the same name, and
    members."""

    model = ("gpt2-tiny", "--init")  # and words that belong to it
    data = ()  # files
    shape = program.SHAPE  # flags with their values, as all common ones are
    steps = 12
    planned = None  # steps of the whole schedule: those of the class
    flags = ()
    ranks = 1  # threads of one process

    def __init__(self, name, *flags, **members):
        self.name, self.own = name, flags
        unknown = [member for member in members if not hasattr(self, member)]
        if unknown:
            raise TypeError(f"a run has no {unknown}")
        vars(self).update(members)

    def path(self, *names):
        return path(self.name, *names)

    def words(self, *more):
        """The arguments of train."""
        own = (*self.own, *more)
        common = ("--steps", self.steps, "--schedule-steps", self.planned or type(self).steps, *self.shape, *self.flags)
        pairs = zip(common[::2], common[1::2], strict=True)
        return ["train", "--model", *self.model, "--data", *self.data, "--run", self.path(),
                *(word for pair in pairs if pair[0] not in own for word in pair), *own]

    def train(self):
        self.said = program.must(*self.words(), ranks=self.ranks).err
        return self

    def once(self):
        """Trains unless another check did."""
        return self if os.path.isdir(self.path()) else self.train()

    def resume(self, *flags, ranks=1):
        return program.must("resume", self.path(), *flags, ranks=ranks)

    def refused(self, *words, what=None, more=(), **options):
        """Why the training was not refused as it must be."""
        return refused(what or " ".join(map(str, self.own)) or self.name, self.words(*more), *words, **{"ranks": self.ranks, **options})

    def log(self):
        return program.log_lines(self.path())

    def steps_done(self):
        return program.steps_of(self.path())

    def losses(self):
        return [line["loss"] for line in self.steps_done()]

    def numbers(self):
        return program.numbers_of(self.path())

    def settings(self):
        return program.read_json(self.path("run.json"))["settings"]

    def exported(self, *flags):
        """The folder of an export, which replaces the one before."""
        folder = path(f"{self.name}-export")
        shutil.rmtree(folder, ignore_errors=True)
        program.must("export", self.path(), folder, *flags)
        return folder

    def weights(self, *flags):
        """The bytes of the weights that an export has."""
        return program.content(os.path.join(self.exported(*flags), "model.safetensors"))

    def copy(self, name):
        """A run of the same kind in a copy of its folder."""
        shutil.copytree(self.path(), path(name))
        return type(self)(name, *self.own)
