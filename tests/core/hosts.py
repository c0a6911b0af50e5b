"""Jobs whose ranks are on two hosts."""

import os
import random
import re
import signal
import time

from jobs import DEATH, PATIENT_MS, ROUNDS, SEED, TIMEOUT_MS, VERDICT, Job, judged, limits, passed, run, script_test
from two_hosts import FAR_RANKS, HOSTS, NETWORK, ip


def collectives_between_hosts_give_the_serial_bits():
    return passed(4, "collectives", SEED, 40, launcher=HOSTS.launcher())


def is_running(process):
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def begun(timeout_ms):
    return Job(4, "go_on", timeout_ms, -1, -1, launcher=HOSTS.launcher()).begin()


def a_rank_lost_on_the_other_host_ends_the_job():
    draw = random.Random(SEED)
    wrong = []
    for _ in range(ROUNDS):
        job, victim = begun(PATIENT_MS), draw.choice(FAR_RANKS)
        time.sleep(draw.random() * 0.3)
        os.kill(job.processes[victim], signal.SIGKILL)
        wrong += judged(f"rank {victim}", job.end(), rf"^rank {victim} \(process \d+ on {HOSTS.names[1]}\) {DEATH}")
    return wrong


def a_cut_wire_ends_the_ranks_on_both_sides():
    """mpirun itself waits for the other host for as long as TCP does."""
    job = begun(TIMEOUT_MS)
    HOSTS.cut()
    try:
        limit = limits.Limit(root=job.process.pid)
        while any(is_running(process) for process in job.processes.values()) and not limit.over():
            time.sleep(0.05)
        left = [rank for rank, process in job.processes.items() if is_running(process)]
        _, _, err = job.end(wait=False)
        said = VERDICT.findall(err)
        right = not left and len(said) == 1 and re.search(r"^rank [23] .* has not answered for \d+\.\d s", said[0])
        return [] if right else [f"still running: ranks {left}; {err[-1500:]}"]
    finally:
        HOSTS.join()


def listeners(ranks, *refused, **options):
    """The addresses on which rank 0's watch listens, those of the start that failed first."""
    code, _, err = run(ranks, "listeners", *(refused or (-1, 0)), **options)
    return re.findall(r"^listens on (\S+)", err, re.MULTILINE) if code == 0 else err[-1500:]


def expect(what, found, *expected):
    return [] if found == list(expected) else [f"{what}: {found}"]


def add_networks():
    """Gives the hosts networks that do not join them; the first's default route is one. Bridges of containers have one address
    everywhere."""
    near, far = HOSTS.names
    for host, link, address in ((near, "away", "10.77.2.1/24"), (near, "bridge", "172.17.0.1/16"),
                                (far, "bridge", "172.17.0.1/16"), (far, "home", "172.18.0.1/16")):
        ip("-n", host, "link", "add", link, "type", "veth", "peer", "name", f"{link}-peer")
        for end in (link, f"{link}-peer"):
            ip("-n", host, "link", "set", end, "up")
        ip("-n", host, "addr", "add", address, "dev", link)
    ip("-n", near, "addr", "add", "fd77:2::1/64", "dev", "away", "nodad")
    ip("-n", near, "route", "add", "default", "via", "10.77.2.9")
    ip("-n", far, "route", "add", "default", "via", f"{NETWORK}.1")


def add_second_wire():
    near, far = HOSTS.names
    ip("link", "add", "second", "netns", near, "type", "veth", "peer", "name", "second", "netns", far)
    for number, host in enumerate(HOSTS.names, 1):
        ip("-n", host, "addr", "add", f"10.77.3.{number}/24", "dev", "second")
        ip("-n", host, "link", "set", "second", "up")


def the_watch_listens_where_ranks_reach_it():
    launcher = HOSTS.launcher()
    wrong = expect("one network", listeners(4, launcher=launcher), f"{NETWORK}.1")
    add_networks()
    wrong += expect("networks of each host", listeners(4, launcher=launcher), f"{NETWORK}.1")
    add_second_wire()
    wrong += expect("a network that MPI is not to use", listeners(4, launcher=launcher), f"{NETWORK}.1")
    wrong += expect("networks that MPI may use", listeners(4, launcher=[word.replace(f"{NETWORK}.0/24", "wire,second") for word in launcher]),
                    f"{NETWORK}.1", "10.77.3.1")
    wrong += expect("one host", listeners(2), "127.0.0.1")
    return wrong


def a_firewall_makes_the_watch_listen_on_all_addresses():
    """The first connection is the one to the address that routes name."""
    return expect("refused once", listeners(4, 3, 1, launcher=HOSTS.launcher()), f"{NETWORK}.1", "::")


script_test.run(the_watch_listens_where_ranks_reach_it, a_firewall_makes_the_watch_listen_on_all_addresses,
                collectives_between_hosts_give_the_serial_bits, a_rank_lost_on_the_other_host_ends_the_job,
                a_cut_wire_ends_the_ranks_on_both_sides)
