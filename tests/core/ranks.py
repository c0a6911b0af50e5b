"""Jobs of several ranks, under mpirun or as threads of one process: their collectives, what they must agree on, and how they end when a rank does not."""

import os
import random
import re
import signal
import time

from jobs import DEATH, PATIENT_MS, PROGRAM, ROUNDS, SEED, THREADS, TIMEOUT_MS, VERDICT, Job, judged, limits, passed, run, script_test


def collectives_give_the_serial_bits():
    """A collective makes the same of its messages with every transport, so more ranks are tried by threads."""
    wrong = []
    for ranks, cases in ((2, 60), (3, 60), (4, 60)):
        wrong += passed(ranks, "collectives", SEED + ranks, cases)
    for ranks, cases in ((4, 40), (6, 30)):
        wrong += passed(ranks, "nodes_of_2_collectives", SEED + ranks, cases)
    return wrong


def collectives_of_threads_give_the_serial_bits():
    wrong = []
    for ranks, cases in ((1, 40), (2, 200), (3, 200), (4, 200), (8, 100), (16, 20)):
        wrong += passed(ranks, "collectives", SEED - ranks, cases, launcher=THREADS)
    return wrong + [problem for ranks in (1, 2, 3, 5, 8) for problem in passed(ranks, "values", launcher=THREADS)]


def collectives_of_nccl_give_the_serial_bits():
    """Where NCCL's header is, without a GPU: its functions are emulated over MPI."""
    program = os.environ["SW_NCCL_RANKS_PROGRAM"]
    if not program:
        raise script_test.Skip("no GPU")
    return [problem for ranks, test in ((2, "nccl_collectives"), (3, "nccl_collectives"), (4, "nccl_collectives"),
                                        (4, "nccl_nodes_of_2_collectives"))
            for problem in passed(ranks, test, SEED + ranks, 60, program=program)]


def scopes_join_the_ranks_of_a_node_or_group():
    wrong = [problem for ranks, node, part in ((4, 2, 1), (5, 2, 2)) for problem in passed(ranks, "scopes", node, part)]
    wrong += [problem for ranks, node, part in ((4, 2, 2), (4, 2, 1), (6, 3, 3), (5, 2, 2), (8, 4, 2), (3, 4, 4), (1, 1, 1), (16, 8, 4))
              for problem in passed(ranks, "scopes", node, part, launcher=THREADS)]
    program = os.environ["SW_NCCL_RANKS_PROGRAM"]
    return wrong + (passed(4, "nccl_scopes", 2, 2, program=program) if program else [])


def a_group_that_breaks_is_ended_before_the_abort():
    program = os.environ["SW_NCCL_RANKS_PROGRAM"]
    if not program:
        raise script_test.Skip("no GPU")
    wrong = []
    for test in ("nccl_broken_messages", "nccl_broken_sums"):
        code, out, err = run(2, test, program=program)
        if code in (0, None) or "inside" in err or not re.search(r"rank \d has closed", err):
            wrong.append(f"{test}: status {code}: {out} {err}")
    return wrong


def kernels_are_loaded_before_ranks_meet():
    """A kernel that is loaded at its first launch may wait for one of NCCL, which waits for another rank."""
    wrong = []
    for ranks, own, expected in ((2, None, "EAGER"), (2, "LAZY", "LAZY"), (1, None, "unset")):
        os.environ.pop("CUDA_MODULE_LOADING", None)
        if own is not None:
            os.environ["CUDA_MODULE_LOADING"] = own
        code, out, err = run(ranks, "module_loading")
        if code != 0 or err.split() != [expected] * ranks:
            wrong.append(f"{ranks} ranks with {own}: status {code}: {out} {err}")
    os.environ.pop("CUDA_MODULE_LOADING", None)
    return wrong


def sums_of_the_library_are_near():
    wrong = [problem for ranks in (3, 4) for problem in passed(ranks, "library_sums", SEED + ranks, 150)]
    program = os.environ["SW_NCCL_RANKS_PROGRAM"]
    return wrong + (passed(3, "nccl_library_sums", SEED, 150, program=program) if program else [])


def host_reductions_are_in_rank_order():
    return [problem for ranks in (2, 5) for problem in passed(ranks, "values")]


def shares_beyond_two_gibibytes_arrive():
    return passed(2, "large")


def one_rank_needs_no_launcher():
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI", "SLURM_"))}
    done = limits.run([PROGRAM, "place"], env=alone, capture_output=True, text=True, check=False)
    expected = "0 of 1, local 0 of 1, node 0 of 1, self\n"
    return [] if (done.returncode, done.stdout, done.stderr) == (0, "ok\n", expected) else [str(done)]


def ranks_know_their_places():
    wrong = []
    for launcher, transport in ((("mpirun",), "MPI"), (THREADS, THREADS)):
        code, out, err = run(3, "place", launcher=launcher)
        expected = [f"{rank} of 3, local {rank} of 3, node 0 of 1, {transport}" for rank in range(3)]
        wrong += [] if code == 0 and sorted(err.splitlines()) == expected else [f"{transport}: status {code}: {out} {err}"]
    return wrong


def rank_0_speaks_for_all():
    wrong = []
    expected = ["hello", "rank 1: warning: a stone on the way", "rank 2: warning: a stone on the way",
                "warning: a stone on the way"]
    for launcher in (("mpirun",), THREADS):
        code, out, err = run(3, "log", launcher=launcher)
        wrong += [] if code == 0 and sorted(err.splitlines()) == expected else [f"{launcher}: status {code}: {out} {err}"]
    return wrong


def disagreement_is_refused_on_all_ranks():
    table = [
        (3, ["equal:program:a"], None),
        (3, ["equal:program:a", "1=equal:program:b"], "rank 1 has another program than rank 0; start them alike"),
        (4, ["equal:data:a", "0=equal:data:b"], "ranks 1, 2 and 3 have another data than rank 0; start them alike"),
        (3, ["0=distinct:folder:a", "1=distinct:folder:b", "2=distinct:folder:c"], None),
        (3, ["distinct:folder:/a", "1=distinct:folder:/b"], "ranks 0 and 2 have the same folder /a; start them alike"),
        (3, ["distinct:folder:"], None),
    ]
    wrong = []
    for ranks, claims, expected in table:
        for launcher in (("mpirun",), THREADS) if "program" in claims[0] else (THREADS,):
            code, _, err = run(ranks, "agree", *claims, launcher=launcher)
            lines = [f"refused: {expected}"] * ranks if expected else []
            if code != 0 or err.splitlines() != lines:
                wrong.append(f"{ranks} ranks, {launcher}, {claims}: status {code}, {err}")
    return wrong


def a_thread_that_fails_ends_the_waits_of_the_others():
    """With its own message, or where it left without one with its number."""
    wrong = []
    for how, failing, said in (("says", 0, "rank 0: the drive is full"), ("says", 3, "rank 3: the drive is full"),
                               ("leaves", 2, "rank 2 has ended without an answer")):
        code, out, err = run(4, "abandon", failing, how, launcher=THREADS)
        first = [f"rank {failing} failed first"] if how == "says" else []
        found = [line for line in out.splitlines() if line not in first]
        # A rank may also lack the answer of one that has ended because it lacked that of the first.
        allowed = re.escape(said) if how == "says" else r"rank \d has ended without an answer"
        if code != 0 or len(out.splitlines()) != 3 + len(first) or len(found) != 3 or not any(said in line for line in found) \
                or not all(re.search(rf"^rank \d: {allowed}", line) for line in found):
            wrong.append(f"rank {failing} {how}: status {code}: {out} {err}")
    code, out, err = run(4, "abandon", 0, "all", launcher=THREADS)
    return wrong + ([] if code == 0 and out.count("failed first") == 1 and out.count("\n") <= 4 else [f"all at once: status {code}: {out} {err}"])


def one_that_is_hit(draw, hit, timeout_ms):
    ranks = draw.randint(2, 4)
    job = Job(ranks, "go_on", timeout_ms, -1, -1).begin()
    victim = draw.randrange(ranks)
    time.sleep(draw.random() * 0.3)
    os.kill(job.processes[victim], hit)
    said = rf"^rank {victim} \(process {job.processes[victim]} on .+\) "
    said += DEATH if hit == signal.SIGKILL else r"has not answered for \d+\.\d s"
    return judged(f"{hit.name} to rank {victim} of {ranks}", job.end(), said)


def a_killed_rank_ends_the_job():
    draw = random.Random(SEED)
    return [problem for _ in range(2 * ROUNDS) for problem in one_that_is_hit(draw, signal.SIGKILL, PATIENT_MS)]


def a_stopped_rank_ends_the_job():
    draw = random.Random(SEED + 1)
    return [problem for _ in range(ROUNDS) for problem in one_that_is_hit(draw, signal.SIGSTOP, TIMEOUT_MS)]


def a_failed_rank_ends_the_job():
    wrong = []
    draw = random.Random(SEED + 2)
    for failing in range(3):
        job = Job(3, "go_on", PATIENT_MS, failing, draw.randint(0, 30))
        wrong += judged(f"rank {failing} fails", job.end(), f"^rank {failing}: the drive is full$")
    return wrong


def a_hanging_rank_is_named_with_what_it_lacks():
    wrong = []
    table = [
        (1, "sleeps", r"^rank 1 .* has done nothing for .*it has not entered 'gradients 2', where rank [02] waits; "
                      r"its lane compute was in 'backward 5'$"),
        (0, "sleeps", r"^rank 0 .* has done nothing for .*it has not entered 'gradients 2', where rank [12] waits; "),
        (2, "leaves", r"^rank 2 .* has been gone for "),
        (0, "early", r"^rank 0 has not reached 'first words' for \d+\.\d s: it was stopped, or "),
        (2, "early", r"^rank 2 has not reached 'first words' "),
    ]
    for rank, how, expected in table:
        wrong += judged(f"rank {rank} {how}", Job(3, "hang", TIMEOUT_MS, rank, how).end(),
                        expected)
    return wrong


def a_hanging_rank_of_a_node_is_named_with_its_node():
    """The ranks of its node wait for it there, and those of the other node for these."""
    said = r"^rank 1 .* has done nothing for .*it has not entered 'node 0: part 2', where rank 0 waits; " \
           r"its lane compute was in 'backward 5'$"
    wrong = judged("rank 1 of node 0", Job(4, "hang_in_node", TIMEOUT_MS, 1, "sleeps").end(), said)
    said = r"^rank 3 has not reached 'node 1: part' for "
    return wrong + judged("rank 3 of node 1", Job(4, "hang_in_node", TIMEOUT_MS, 3, "early").end(), said)


def a_hanging_rank_of_a_tensor_group_is_named_with_its_group():
    said = r"^rank 1 \(.*, tensor group of ranks 0 and 1\) has done nothing for .*it has not entered " \
           r"'tensor group of ranks 0 and 1: part 2', where rank 0 waits; its lane compute was in 'backward 5'$"
    wrong = judged("rank 1 of the first group",
                   Job(4, "hang_in_tensor_group", TIMEOUT_MS, 1, "sleeps").end(), said)
    said = r"^rank 3 has not reached 'tensor group of ranks 2 and 3: part' for "
    return wrong + judged("rank 3 of the second group",
                          Job(4, "hang_in_tensor_group", TIMEOUT_MS, 3, "early").end(), said)


def a_killed_rank_of_a_tensor_group_is_named_with_its_group():
    """Rank 3 computes, rank 2 waits for it in their group, and ranks 0 and 1 are beyond. The time is for the watch to hear of it."""
    in_group, wrong = r"'tensor group of ranks 2 and 3: part 2'", []
    for victim, said in ((2, rf" in {in_group}$"),
                         (3, rf"; it has not entered {in_group}, where rank 2 waits; its lane compute was in 'backward 5'$")):
        job = Job(4, "hang_in_tensor_group", PATIENT_MS, 3, "sleeps").begin()
        time.sleep(TIMEOUT_MS / 1000)
        os.kill(job.processes[victim], signal.SIGKILL)
        wrong += judged(f"rank {victim}", job.end(),
                        rf"^rank {victim} \(process {job.processes[victim]} on \S+, tensor group of ranks 2 and 3\) has died{said}")
    return wrong


def a_rank_that_works_long_is_left_alone():
    code, out, err = run(3, "hang", TIMEOUT_MS, 1, "works")
    return [] if code == 0 and "ok" in out.split("\n") and not VERDICT.search(err) else [f"status {code}: {out} {err}"]


script_test.run(collectives_give_the_serial_bits, collectives_of_threads_give_the_serial_bits, a_thread_that_fails_ends_the_waits_of_the_others, scopes_join_the_ranks_of_a_node_or_group, collectives_of_nccl_give_the_serial_bits,
                a_group_that_breaks_is_ended_before_the_abort, kernels_are_loaded_before_ranks_meet, sums_of_the_library_are_near, host_reductions_are_in_rank_order, shares_beyond_two_gibibytes_arrive,
                one_rank_needs_no_launcher, ranks_know_their_places, rank_0_speaks_for_all, disagreement_is_refused_on_all_ranks,
                a_killed_rank_ends_the_job, a_stopped_rank_ends_the_job, a_failed_rank_ends_the_job,
                a_hanging_rank_is_named_with_what_it_lacks, a_hanging_rank_of_a_node_is_named_with_its_node,
                a_hanging_rank_of_a_tensor_group_is_named_with_its_group, a_killed_rank_of_a_tensor_group_is_named_with_its_group,
                a_rank_that_works_long_is_left_alone)
