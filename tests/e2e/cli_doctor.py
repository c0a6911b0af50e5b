"""`spillway doctor`: its fields, where it finds problems, and that it ends well where the system tells it nothing."""

import ctypes
import errno
import json
import os
import shutil
import struct
import subprocess

import program
from program import script_test

SCRATCH = program.scratch_folder()
NUMBER = (int, float)
MAYBE = type(None)
OF_MACHINE = {
    "processor": {"cores": int, "all_cores": int, "physical_cores": (int, MAYBE), "threads_per_core": (int, MAYBE),
                  "quota_cores": (*NUMBER, MAYBE), "numa_nodes": int, "cpu": str},
    "memory": {"physical_bytes": int, "memory_bytes": int, "available_bytes": int},
    "memory limit": {"limit_bytes": (int, MAYBE), "room_bytes": (int, MAYBE), "setting": (str, MAYBE)},
    "swap": {"swap_bytes": int, "used_bytes": int},
    "memlock": {"limit_bytes": (int, MAYBE), "enough": bool},
    "huge pages": {"transparent": (str, MAYBE), "reserved": (int, MAYBE)},
    "device": {"name": str, "isa": str, "best_isa": str, "threads": int, "bf16_fast": bool},
    "gpu": {"nvidia_gpus": (int, MAYBE), "driver": (str, MAYBE), "cuda_built_in": bool, "cuda_works": bool,
            "products_library": (str, MAYBE), "joining_library": (str, MAYBE)},
    "io_uring": {"allowed": bool, "disabled_setting": (int, MAYBE), "error": (str, MAYBE)},
    "memory rate": {"copy_bytes_per_s": NUMBER, "update_bytes_per_s": NUMBER},
    "compute rate": {"precision": str, "flops_per_s": NUMBER, "bf16_flops_per_s": NUMBER, "fp32_flops_per_s": NUMBER,
                     "faster": (str, MAYBE)},
}
OF_FOLDER = {
    "space": {"free_bytes": int},
    "file system": {"type": (str, MAYBE), "source": (str, MAYBE)},
    "O_DIRECT": {"works": bool},
    "drive": {"name": str, "model": (str, MAYBE), "rotational": (bool, MAYBE)},
    "scheduler": {"name": str, "scheduler": (str, MAYBE)},
    "write cache": {"name": str, "write_cache": (str, MAYBE)},
    "drive rate": {"read_bytes_per_s": NUMBER, "write_bytes_per_s": NUMBER, "both_read_bytes_per_s": NUMBER,
                   "both_write_bytes_per_s": NUMBER},
}
RATES = {"memory rate", "compute rate", "drive rate"}
IO_URING_SETUP = 425


def doctor(*flags, **options):
    ended = program.run("doctor", "--json", *flags, **options)
    if ended.code != 0 or ended.err:
        raise RuntimeError(f"doctor {flags}: status {ended.code}, {ended.err!r}")
    return json.loads(ended.out)


def found(report, what):
    return [finding for finding in report["findings"] if finding["what"] == what]


def wrong_finding(finding):
    fields = {**OF_MACHINE, **OF_FOLDER}.get(finding["what"])
    if finding.keys() != {"what", "folder", "state", "found", "fix", "facts"} or fields is None:
        return [f"fields of {finding}"]
    problems = [f"{finding['what']}: '{name}' is {finding['facts'].get(name)!r}" for name, kind in fields.items()
                if finding["facts"] and not isinstance(finding["facts"].get(name), kind)]
    problems += [f"{finding['what']}: '{name}' is new" for name in finding["facts"].keys() - fields]
    if (finding["folder"] is None) != (finding["what"] in OF_MACHINE):
        problems.append(f"{finding['what']} belongs to {finding['folder']}")
    right = {"ok": finding["fix"] is None, "unknown": finding["fix"] is None, "fix": isinstance(finding["fix"], str)}
    return problems + ([] if right[finding["state"]] else [f"{finding['what']}: {finding}"])


def wrong_report(report):
    problems = [problem for finding in report["findings"] for problem in wrong_finding(finding)]
    if report.keys() != {"problems", "findings"} or report["problems"] != sum(
            finding["state"] == "fix" for finding in report["findings"]):
        problems.append(f"{report['problems']} problems are not the findings with a fix")
    return problems


def wrong_advice(finding):
    """The precision that is called faster is the one with the higher rate, and rates that are alike name none."""
    facts = finding["facts"]
    rates = {name: facts[f"{name}_flops_per_s"] for name in ("bf16", "fp32")}
    best, alike = max(rates, key=rates.get), max(rates.values()) < 1.1 * min(rates.values())
    problems = [] if facts["flops_per_s"] == rates[facts["precision"]] else [f"the default precision's rate: {facts}"]
    if "on the processor" in finding["found"]:
        return problems + ([] if facts["faster"] is None else [f"advice beside a GPU: {finding}"])
    right = None if alike else best
    said = "as fast as each other" if alike else f"--precision {best} is faster"
    return problems + ([] if facts["faster"] == right and said in finding["found"] else [f"{finding}"])


def fields_are_as_documented():
    os.makedirs(os.path.join(SCRATCH, "other"), exist_ok=True)
    folders = [SCRATCH, os.path.join(SCRATCH, "other")]
    before = program.tree(SCRATCH)
    report = doctor("--nvme", folders[0], "--nvme", folders[1])
    problems = wrong_report(report)
    problems += [f"nothing of '{what}'" for what in OF_MACHINE if len(found(report, what)) != 1]
    problems += [f"nothing of '{what}' in {folder}" for what in OF_FOLDER for folder in folders
                 if folder not in [finding["folder"] for finding in found(report, what)]]
    problems += [f"{what} was not measured" for what in RATES for finding in found(report, what) if not
                 all(value > 0 for value in finding["facts"].values() if isinstance(value, NUMBER))]
    problems += wrong_advice(found(report, "compute rate")[0])
    if found(report, "processor")[0]["facts"]["cores"] != len(os.sched_getaffinity(0)):
        problems.append(f"{found(report, 'processor')}")
    return problems + [f"{name} was left behind" for name in program.differences(before, program.tree(SCRATCH))]


def quickly():
    report = doctor("--quick", "--nvme", SCRATCH)
    problems = wrong_report(report)
    if {finding["what"] for finding in report["findings"]} != (OF_MACHINE.keys() | OF_FOLDER.keys()) - RATES:
        problems.append(f"--quick looks at {[finding['what'] for finding in report['findings']]}")
    lines = program.must("doctor", "--quick").out.splitlines()
    return problems + [f"a line '{line}'" for line in lines
                       if line[:4] not in ("ok  ", "FIX ", "?   ", "    ") or len(line) > 80]


def folders_that_are_no_place():
    table = [("nothing", "/does/not/exist", {"space", "O_DIRECT"}, {"file system", "drive", "drive rate"}),
             ("a file", program.write(os.path.join(SCRATCH, "file"), "x"), {"space", "O_DIRECT"}, {"drive rate"})]
    if os.path.isdir("/dev/shm") and os.statvfs("/dev/shm").f_bavail > 0:
        table.append(("memory", "/dev/shm", {"file system", "O_DIRECT"}, {"drive", "drive rate"}))
    problems = []
    for what, folder, wrong, unknown in table:
        report = doctor("--nvme", folder)
        problems += wrong_report(report)
        states = {finding["what"]: finding["state"] for finding in report["findings"] if finding["folder"]}
        problems += [f"{what}: '{name}' is {states.get(name)}" for name in wrong if states.get(name) != "fix"]
        problems += [f"{what}: '{name}' is {states.get(name)}" for name in unknown if states.get(name) != "unknown"]
    return problems


def one_core():
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        return []
    limited = doctor("--quick", preexec_fn=lambda: os.sched_setaffinity(0, {min(cores)}))
    processor = found(limited, "processor")[0]
    return [] if processor["facts"]["cores"] == 1 and processor["state"] == "fix" else [f"one core: {processor}"]


def instruction_sets():
    """SW_CPU_ISA lowers what the device uses; more than the processor has, and unknown words, are refused by every command."""
    sets = ["baseline", "avx2", "avx512", "avx512_bf16"]
    best = found(doctor("--quick"), "device")[0]["facts"]["best_isa"]
    problems = []
    for name in sets:
        environment = {**os.environ, "SW_CPU_ISA": name}
        if sets.index(name) <= sets.index(best):
            device = found(doctor("--quick", env=environment), "device")[0]
            used = device["facts"]["isa"]
            if (used, device["facts"]["best_isa"]) != (name, best) or ("SW_CPU_ISA" in device["found"]) != (name != best):
                problems.append(f"{name}: {device}")
        else:
            ended = program.run("doctor", "--quick", env=environment)
            if ended.code != 1 or ended.out or f"SW_CPU_ISA in the environment asks for {name}" not in ended.err or \
                    best not in ended.err:
                problems.append(f"{name}: {ended}")
    for word in ("AVX2", "avx9000", " avx2", "1"):
        for command in (["doctor", "--quick"], ["plan", "--model", "gpt2-124m"], ["tokenize"]):
            ended = program.run(*command, env={**os.environ, "SW_CPU_ISA": word})
            if ended.code != 1 or ended.out or ended.err.count("\n") != 1 or any(name not in ended.err for name in sets):
                problems.append(f"SW_CPU_ISA='{word}' {command}: {ended}")
    if program.run("doctor", "--quick", env={**os.environ, "SW_CPU_ISA": ""}).code != 0:
        problems.append("an empty SW_CPU_ISA is refused")
    return problems


def half_a_core():
    """A quota of processor time, in a mount namespace of its own where a folder takes the place of the cgroups."""
    fake = os.path.join(SCRATCH, "cgroup")
    os.makedirs(fake)
    program.write(os.path.join(fake, "cpu.max"), "50000 100000\n")
    command = ["unshare", "--mount", "sh", "-c", f"mount --bind {fake} /sys/fs/cgroup && exec \"$@\"", "sh"]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], check=False, capture_output=True).returncode:
        raise script_test.Skip("no mount namespaces")
    done = program.limits.run([*command, *program.command("doctor", "--quick", "--json")], capture_output=True, check=True)
    report = json.loads(done.stdout)
    processor, device = found(report, "processor")[0], found(report, "device")[0]
    wrong = (processor["facts"]["cores"], processor["facts"]["quota_cores"], device["facts"]["threads"]) != (1, 0.5, 1)
    problems = [f"half a core: {processor} {device}"] if wrong or "cpu.max" not in processor["fix"] else []
    return problems + wrong_report(report)


def forbid_io_uring(error):
    """A seccomp filter that ends io_uring_setup with an error, as a container's profile does."""
    load, jump_if_equal, give = 0x20, 0x15, 0x06
    allow, fail = 0x7FFF0000, 0x00050000 | error
    code = b"".join(struct.pack("HBBI", *step) for step in (
        (load, 0, 0, 0), (jump_if_equal, 0, 1, IO_URING_SETUP), (give, 0, 0, fail), (give, 0, 0, allow)))
    libc = ctypes.CDLL(None, use_errno=True)

    class Filter(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]

    whole = Filter(4, code)

    def install():
        no_new_privileges, set_seccomp, mode_filter = 38, 22, 2
        if libc.prctl(no_new_privileges, 1, 0, 0, 0) or libc.prctl(set_seccomp, mode_filter, ctypes.byref(whole)):
            os._exit(99)
    return install


def io_uring_forbidden():
    problems = []
    for error, word in ((errno.EPERM, "seccomp"), (errno.ENOSYS, "Linux"), (errno.ENOMEM, "ulimit")):
        report = doctor("--nvme", SCRATCH, preexec_fn=forbid_io_uring(error))
        ring, rate = found(report, "io_uring")[0], found(report, "drive rate")[0]
        if ring["state"] != "fix" or word not in ring["fix"] or ring["facts"]["allowed"]:
            problems.append(f"{errno.errorcode[error]}: {ring}")
        if rate["state"] != "unknown" or rate["facts"]:
            problems.append(f"{errno.errorcode[error]}: the drive's rate is {rate}")
        problems += wrong_report(report)
    return problems


def nothing_is_told():
    """Without /sys, and without /proc either, in a mount namespace of its own."""
    problems = []
    for gone in (["/sys"], ["/sys", "/proc"]):
        hide = "; ".join(f"mount -t tmpfs none {path}" for path in gone)
        command = ["unshare", "--mount", "sh", "-c", f"{hide} && exec \"$@\"", "sh",
                   *program.command("doctor", "--json", "--nvme", SCRATCH)]
        if shutil.which("unshare") is None or subprocess.run(["unshare", "--mount", "true"], check=False,
                                                             capture_output=True).returncode != 0:
            raise script_test.Skip("no root or loop device")
        done = program.limits.run(command, capture_output=True, check=False)
        # hwloc has a word of its own to say.
        if done.returncode != 0 or any(not line.startswith(b"[hwloc") for line in done.stderr.splitlines()):
            return problems + [f"without {gone}: status {done.returncode}, {done.stderr.decode()!r}"]
        report = json.loads(done.stdout)
        states = {finding["what"]: finding["state"] for finding in report["findings"]}
        unknown = {"huge pages", "gpu", "drive", "scheduler", "write cache"} | (
            {"processor", "memory limit", "swap", "file system"} if "/proc" in gone else set())
        problems += [f"without {gone}: '{what}' is {states.get(what)}" for what in unknown if
                     states.get(what) != "unknown"]
        if "/proc" in gone and states["memory"] != "fix":
            problems.append("without /proc: memory is no problem")
    return problems


script_test.run(fields_are_as_documented, quickly, folders_that_are_no_place, one_core, instruction_sets, half_a_core,
                io_uring_forbidden, nothing_is_told)
