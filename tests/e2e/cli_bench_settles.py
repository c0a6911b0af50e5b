"""bench io --sustain on a drive whose fast cache fills up: a loop device that a cgroup makes slow while it is written to.
What it reports is held to the limits that were set, from above only: no speed is asserted."""

import atexit
import json
import os
import subprocess
import time

import program
from program import script_test

SCRATCH = program.scratch_folder()
MIB = 1 << 20
FAST, SLOW, READ = 32 * MIB, 8 * MIB, 32 * MIB
FAST_BYTES = 6 * FAST
# A throttled device may run ahead by some of a second's bytes.
SLACK = 1.25


def loop_device(size):
    backing = os.path.join(SCRATCH, "drive")
    with open(backing, "wb") as file:
        file.truncate(size)
    if os.geteuid() != 0:
        raise script_test.Skip("no root or loop device")
    try:
        made = subprocess.run(["losetup", "--find", "--show", backing], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise script_test.Skip("no root or loop device") from None
    if made.returncode != 0:
        raise script_test.Skip("no root or loop device")
    device = made.stdout.strip()
    atexit.register(subprocess.run, ["losetup", "--detach", device], check=False)
    return device


class Throttle:
    """A cgroup of its own, whose processes write to and read from the device no faster than it says."""

    def __init__(self, device):
        with open("/proc/mounts", encoding="utf-8") as mounts:
            entries = [line.split() for line in mounts]
        roots = [entry[1] for entry in entries if entry[2] == "cgroup" and "blkio" in entry[3].split(",")]
        if not roots:
            raise script_test.Skip("no blkio cgroup")
        self.folder = os.path.join(roots[0], f"spillway-settles-{os.getpid()}")
        numbers = os.stat(device).st_rdev
        self.numbers = f"{os.major(numbers)}:{os.minor(numbers)}"
        try:
            os.mkdir(self.folder)
            atexit.register(os.rmdir, self.folder)
            self.limit("read", READ)
        except OSError:
            raise script_test.Skip("no blkio cgroup") from None

    def limit(self, way, bytes_per_s):
        program.write(os.path.join(self.folder, f"blkio.throttle.{way}_bps_device"), f"{self.numbers} {bytes_per_s}")

    def written(self):
        with open(os.path.join(self.folder, "blkio.throttle.io_service_bytes"), encoding="utf-8") as file:
            counts = [line.split() for line in file]
        return sum(int(count[2]) for count in counts if count[:2] == [self.numbers, "Write"])

    def enter(self):
        program.write(os.path.join(self.folder, "cgroup.procs"), str(os.getpid()))


def a_drive_that_becomes_slow():
    device = loop_device(64 * MIB)
    throttle = Throttle(device)
    throttle.limit("write", FAST)
    arguments = ("bench", "io", "--nvme", device, "--yes-overwrite", "--size", "64MiB", "--block", "256KiB", "--depth", 4,
                 "--sustain", "--time-limit", 40, "--json")
    with subprocess.Popen(program.command(*arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          preexec_fn=throttle.enter) as process:
        while throttle.written() < FAST_BYTES and process.poll() is None:
            time.sleep(0.05)
        throttle.limit("write", SLOW)
        out, _ = program.limits.communicate(process)
    if process.returncode != 0:
        return [f"status {process.returncode}"]
    found = json.loads(out)
    problems = [] if found["fell"] and found["settled"] else [f"fell {found['fell']}, settled {found['settled']}"]
    most = {"settled_bytes_per_s": SLOW, "both_write_bytes_per_s": SLOW, "both_read_bytes_per_s": READ,
            "burst_bytes_per_s": FAST, "bytes_before_fall": FAST_BYTES + 2 * FAST}
    problems += [f"{name} is {found[name]}, of {limit}" for name, limit in most.items()
                 if not 0 < found[name] <= SLACK * limit]
    if not found["burst_bytes_per_s"] > found["settled_bytes_per_s"] or found["written_bytes"] >= 20 * FAST:
        problems.append(f"at first {found['burst_bytes_per_s']}, at last {found['settled_bytes_per_s']}, "
                        f"{found['written_bytes']} written")
    if found["rates"]["write"]["bytes_per_s"] != found["settled_bytes_per_s"]:
        problems.append(f"what a plan gets is {found['rates']}")
    return problems


script_test.run(a_drive_that_becomes_slow)
