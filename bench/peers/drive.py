"""The pair `drive`: a file read and written by our queue, by fio, and by DeepSpeed's ds_io."""

import json
import os
import re

import contender
from contender import Contender, Failed, Goal, Pair

# The line of a rate. What `ds_io` calls GB is 2^30 bytes.
RATE = re.compile(r"E2E (Read|Write) Speed\s*=\s*([0-9.]+) GB/sec", re.IGNORECASE)
GIB = 1 << 30
WAYS = {"read": "read_bytes_per_s", "write": "write_bytes_per_s"}


def read_ours(_, ended):
    best = [cell for cell in json.loads(ended.out)["best"] if cell["way"] in WAYS]
    fields = {"figures": {WAYS[cell["way"]]: cell["bytes_per_s"] for cell in best}}
    if all(cell["fio"] for cell in best):
        fields["fio"] = {"figures": {WAYS[cell["way"]]: cell["fio"]["best_bytes_per_s"] for cell in best}}
    return fields


def read_ds_io(_, ended):
    found = {way.lower(): float(rate) * GIB for way, rate in RATE.findall(ended.out)}
    if set(found) != set(WAYS):
        raise Failed(f"ds_io named no rate to read: {ended.out[-200:]}")
    return {"figures": {WAYS[way]: rate for way, rate in found.items()}}


def ds_io(block, depth, size):
    def command(session):
        os.makedirs(session.path("ds_io"), exist_ok=True)
        one = (f"ds_io --folder {session.path('ds_io')} --io_size {size} --block_size {block} --queue_depth {depth} --loops 3 "
               "--warmup_loops 1")
        return ("sh", "-c", f"{one} && {one} --read")
    return Contender(f"ds_io {block}, depth {depth}", command, read_ds_io, ("torch", "deepspeed"),
                     "aio_handle, requests of a batch together and overlapped", (("DS_ACCELERATOR", "cpu"),))


def pairs(quick):
    size, short = ("64M", ("--size", "64MiB")) if quick else ("1G", ("--size", "1GiB"))
    dss = (ds_io("1M", 32, size), ds_io("8M", 128, size))
    than = tuple(one.name for one in dss)
    return [Pair("drive", f"One file of {size}iB, O_DIRECT", (
        Contender("spillway", lambda session: (session.program, "bench", "io", "--nvme", session.folder, *short, "--rounds", 1,
                                               "--json"), read_ours, settings="bench io: the best of its sweep"),
        Contender("fio", taken_from="spillway", needs=("fio",),
                  settings="io_uring, fixed buffers, the best of its own sweep, in turn with ours"),
        *dss), tuple(Goal("spillway", others, figure, 1) for figure in WAYS.values() for others in (("fio",), than)))]
