#!/usr/bin/env python3
"""Measures steps of adapters whose frozen base streams from a drive: memory, bytes, and how much of the drive's rate they get.

Makes a loop device on a file in FOLDER, which a cgroup lets read RATE MB/s, as a slow drive would; measures what `bench io` reads
from it; then trains `--lora 16` on it with the base in each format. Prints a line for each: the most memory of the process, the
bytes read a step and in multiples of the base (2: once forward and once backward), the rate in shares of bench io's, and the
bytes written a step. The line "in place" is of the weights of the first run, exported in bf16 to that drive: each step reads them
there, and the store has no copy. Needs root, losetup and cgroups of version 1.

usage: stream_base.py [--model PRESET] [--seq N] [--rate MB/s] [--memory MiB] [--steps N] [--size GiB] [--only ROW...] FOLDER
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PROGRAM = os.environ.get("SW_PROGRAM", os.path.join(TOP, "build", "spillway"))
FORMATS = ("compute", "int8", "nf4")
ROWS = ("compute", "in place", "int8", "nf4")
PLACE = "weights=nvme,acts=device,optimizer=host,grads=host"
MIB = 1 << 20


def write(path, text):
    with open(path, "w", encoding="ascii") as file:
        file.write(str(text))


def must(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr.strip()[-500:]}")
    return done.stdout


class Drive:
    """A file system on a loop device, and cgroups that limit its rate and a program's memory."""

    def __init__(self, folder, gib):
        self.file, self.mount = os.path.join(folder, "drive"), os.path.join(folder, "mounted")
        with open(self.file, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, gib << 30)
        self.device = must("losetup", "--find", "--show", "--direct-io=on", self.file).strip()
        self.groups = [f"/sys/fs/cgroup/{kind}/spillway-stream-{os.getpid()}" for kind in ("blkio", "memory")]
        os.mkdir(self.mount)
        must("mkfs.ext4", "-q", self.device)
        must("mount", self.device, self.mount)
        for group in self.groups:
            os.mkdir(group)

    def limit(self, read_bytes_s, memory_bytes):
        numbers = os.stat(self.device).st_rdev
        write(f"{self.groups[0]}/blkio.throttle.read_bps_device", f"{os.major(numbers)}:{os.minor(numbers)} {read_bytes_s}")
        write(f"{self.groups[1]}/memory.limit_in_bytes", memory_bytes)

    def start(self, *arguments):
        enter = "for g in \"$0\" \"$1\"; do echo $$ >\"$g/cgroup.procs\"; done; shift; exec \"$@\""
        return subprocess.Popen(["sh", "-c", enter, *self.groups, PROGRAM, *map(str, arguments)], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def close(self):
        subprocess.run(["umount", "--lazy", self.mount], check=False)
        subprocess.run(["losetup", "--detach", self.device], check=False)
        for group in self.groups:
            os.rmdir(group)
        os.remove(self.file)


def number_in(path, name):
    with open(path, encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))


def drive_rate(drive):
    process = drive.start("bench", "io", "--nvme", drive.mount, "--size", "1GiB", "--block", "1MiB", "--depth", 16, "--seconds", 2, "--no-fio", "--json")
    out, err = process.communicate()
    if process.returncode != 0:
        sys.exit(f"bench io: {err[-500:]}")
    return max(cell["bytes_per_s"] for cell in json.loads(out)["cells"] if cell["way"] == "read")


def export(drive):
    """Writes the weights of the first run to the drive, as a folder in bf16."""
    process = drive.start("export", os.path.join(drive.mount, "compute"), os.path.join(drive.mount, "model"), "--merge", "--dtype", "bf16")
    _, err = process.communicate()
    if process.returncode != 0:
        sys.exit(f"export: {err[-500:]}")


def train(drive, given, row):
    """Returns the time, and the bytes read and written, of each step but the first two, and the most memory."""
    run, form = os.path.join(drive.mount, row), row if row in FORMATS else "compute"
    model = [given.model, "--init"] if row in FORMATS else [os.path.join(drive.mount, "model")]
    process = drive.start("train", "--model", *model, "--data", os.path.join(drive.mount, "..", "data.txt"), "--run",
                          run, "--lora", 16, "--base-format", form, "--seq", given.seq, "--micro-batch", 1, "--batch-tokens", given.seq,
                          "--steps", given.steps, "--save-every", 10**6, "--place", PLACE, "--device-memory", f"{given.memory // 2}MiB",
                          "--host-memory", f"{given.memory // 3}MiB")
    marks, memory, last = [], 0, ""
    for last in process.stderr:
        if not re.match(r"step \d+/", last):
            continue
        marks.append((time.monotonic(), *(number_in(f"/proc/{process.pid}/io", name) for name in ("read_bytes:", "write_bytes:"))))
        memory = max(memory, number_in(f"/proc/{process.pid}/status", "VmHWM:") * 1024)
    if process.wait() != 0:
        sys.exit(f"train: {last.strip()}")
    pairs = list(zip(marks[1:-1], marks[2:]))
    return *([b[n] - a[n] for a, b in pairs] for n in range(3)), memory


def base_bytes(given, form):
    """Returns the bytes of the frozen weights as they lie on the drive. A plan names the bytes of records alone; int8's, of
    1.015625 bytes an element, say how many elements those are."""
    out = must(PROGRAM, "plan", "--model", given.model, "--lora", "16", "--base-format", form, "--json")
    frozen = json.loads(out)["frozen"]
    matrices = json.loads(must(PROGRAM, "plan", "--model", given.model, "--lora", "16", "--base-format", "int8", "--json"))
    quantized = round(matrices["frozen"]["base_bytes"] / 1.015625)
    return 2 * frozen["parameters"] if form == "compute" else frozen["base_bytes"] + 2 * (frozen["parameters"] - quantized)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", metavar="FOLDER")
    parser.add_argument("--model", default="gpt2-1.3b")
    parser.add_argument("--seq", type=int, default=32)
    parser.add_argument("--rate", type=int, default=300)
    parser.add_argument("--memory", type=int, default=1536)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--only", nargs="+", choices=ROWS, default=ROWS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        write(os.path.join(folder, "data.txt"), "the quick brown fox jumps over the lazy dog. " * 10000)
        drive = Drive(folder, given.size)
        try:
            drive.limit(given.rate * 10**6, given.memory * MIB)
            rate = drive_rate(drive)
            print(f"bench io reads {rate / 1e6:.0f} MB/s; memory is limited to {given.memory} MiB\n")
            print("| base | step | read a step | in bases | of the drive's rate | written a step | memory |\n|---|---|---|---|---|---|---|")
            for row in [row for row in ROWS if row in given.only]:
                seconds, read, written, memory = train(drive, given, row)
                step, bytes_ = statistics.median(seconds), statistics.median(read)
                form = row if row in FORMATS else "compute"
                print(f"| {row} | {step:.2f} s | {bytes_ / 1e9:.2f} GB | {bytes_ / base_bytes(given, form):.3f} | "
                      f"{bytes_ / step / rate:.3f} | {statistics.median(written) / 1e6:.1f} MB | {memory / MIB:.0f} MiB |", flush=True)
                if row == "compute" and "in place" in given.only:
                    export(drive)
                subprocess.run(["rm", "-rf", os.path.join(drive.mount, row)], check=True)
        finally:
            drive.close()


if __name__ == "__main__":
    main()
