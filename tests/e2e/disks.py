"""File systems of a test's own, in files."""

import atexit
import ctypes
import os
import subprocess

from program import script_test

CLONE_NEWNS = 0x20000
MIB = 1 << 20
WITH_SBIN = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}


def mount(*arguments):
    """Mounts for this process and its children only, so that nothing stays mounted however the test ends."""
    if os.geteuid() != 0:
        raise script_test.Skip("no root or loop device")
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) != 0:
        raise script_test.Skip("no root or loop device")
    for line in (["mount", "--make-rprivate", "/"], ["mount", *arguments]):
        if subprocess.run(line, capture_output=True, check=False).returncode != 0:
            raise script_test.Skip("no root or loop device")
    atexit.register(subprocess.run, ["umount", "-q", arguments[-1]], check=False)


def make_image(image, mebibytes, kind="ext4"):
    """Makes a file a file system of some MiB. Returns what went wrong."""
    flags = ["-q", "-F", "-m", "0"] if kind == "ext4" else ["-q", "-f"]
    with open(image, "wb") as file:
        file.truncate(mebibytes * MIB)
    made = subprocess.run([f"mkfs.{kind}", *flags, image], capture_output=True, check=False, env=WITH_SBIN)
    return [] if made.returncode == 0 else [f"mkfs.{kind} failed: {made.stderr.decode()}"]
