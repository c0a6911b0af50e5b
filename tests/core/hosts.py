"""Jobs whose ranks are on two hosts: network namespaces that one wire joins, each with a name and an address of its own."""

import atexit
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time

from jobs import GRACE_S, ROUNDS, SEED, TIMEOUT_MS, VERDICT, Job, judged, passed, script_test

NETWORK = "10.77.1"
FAR_RANKS = (2, 3)
# mpirun's way to the other host: what it would have ssh do there.
AGENT = """#!/bin/sh
shift
exec ip netns exec {far} unshare --uts sh -c "hostname {far}; $*"
"""


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)


class Hosts:
    """Two hosts, gone at the end with whatever still runs there."""

    def __init__(self):
        self.names = [f"sw{os.getpid()}{which}" for which in "ab"]
        self.made = False

    def remove(self):
        for name in self.names:
            for process in ip("netns", "pids", name).stdout.split():
                os.kill(int(process), signal.SIGKILL)
            ip("netns", "del", name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def make(self):
        if self.made:
            return
        if os.geteuid() != 0 or any(shutil.which(tool) is None for tool in ("ip", "unshare")):
            raise script_test.Skip("no network namespaces")
        self.folder = tempfile.mkdtemp(prefix="spillway-hosts-", dir=os.environ.get("TMPDIR", "."))
        # In a chroot they can be made but not entered: what is no mount point is not shared with another namespace.
        if any(ip("netns", *words).returncode
               for name in self.names for words in (("add", name), ("exec", name, "true"))):
            self.remove()
            raise script_test.Skip("no network namespaces")
        atexit.register(self.remove)
        near, far = self.names
        ip("link", "add", "wire", "netns", near, "type", "veth", "peer", "name", "wire", "netns", far)
        for number, name in enumerate(self.names, 1):
            ip("-n", name, "addr", "add", f"{NETWORK}.{number}/24", "dev", "wire")
            for link in ("lo", "wire"):
                ip("-n", name, "link", "set", link, "up")
        self.agent = os.path.join(self.folder, "agent")
        with open(self.agent, "w", encoding="utf-8") as file:
            file.write(AGENT.format(far=far))
        os.chmod(self.agent, 0o755)
        self.made = True

    def launcher(self):
        """mpirun on the first host, with two ranks on each."""
        self.make()
        return ["ip", "netns", "exec", self.names[0], "env", f"TMPDIR={self.folder}", "mpirun", "--host", f"{NETWORK}.1:2,{NETWORK}.2:2", "--mca",
                "plm_rsh_agent", os.path.abspath(self.agent), "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include",
                f"{NETWORK}.0/24", "--mca", "oob_tcp_if_include", f"{NETWORK}.0/24"]

    def cut(self):
        ip("-n", self.names[0], "link", "set", "wire", "down")

    def join(self):
        ip("-n", self.names[0], "link", "set", "wire", "up")


HOSTS = Hosts()


def collectives_between_hosts_give_the_serial_bits():
    return passed(4, "collectives", SEED, 40, launcher=HOSTS.launcher())


def is_running(process):
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def begun():
    return Job(4, "go_on", TIMEOUT_MS, -1, -1, launcher=HOSTS.launcher()).begin()


def a_rank_lost_on_the_other_host_ends_the_job():
    draw = random.Random(SEED)
    wrong = []
    for _ in range(ROUNDS):
        job, victim = begun(), draw.choice(FAR_RANKS)
        time.sleep(draw.random() * 0.3)
        os.kill(job.processes[victim], signal.SIGKILL)
        wrong += judged(f"rank {victim}", job.end(GRACE_S), rf"^rank {victim} \(process \d+ on {HOSTS.names[1]}\) has died$")
    return wrong


def a_cut_wire_ends_the_ranks_on_both_sides():
    """mpirun itself waits for the other host for as long as TCP does."""
    job = begun()
    HOSTS.cut()
    try:
        deadline = time.monotonic() + TIMEOUT_MS / 1000 + GRACE_S
        while any(is_running(process) for process in job.processes.values()) and time.monotonic() < deadline:
            time.sleep(0.05)
        left = [rank for rank, process in job.processes.items() if is_running(process)]
        _, _, err = job.end(0.1)
        said = VERDICT.findall(err)
        right = not left and len(said) == 1 and re.search(r"^rank [23] .* has not answered for \d+\.\d s", said[0])
        return [] if right else [f"still running: ranks {left}; {err[-1500:]}"]
    finally:
        HOSTS.join()


script_test.run(collectives_between_hosts_give_the_serial_bits, a_rank_lost_on_the_other_host_ends_the_job,
                a_cut_wire_ends_the_ranks_on_both_sides)
