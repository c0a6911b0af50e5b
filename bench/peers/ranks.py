"""The pair `ranks`: two ranks of one thread each, with gradients and optimizer, then also weights, sharded."""

import contender
from contender import Contender, Goal, Pair, Shape

RANKS = 2
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", RANKS)


def ours(name, shape, stage):
    def command(session):
        train = contender.train_command(session, shape, "--zero", stage, threads=1, micro_batch=shape.batch // RANKS)
        return ("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", RANKS, *train)
    return Contender(name, command, contender.read_train, ("mpirun",), f"--zero {stage} over MPI")


def fsdp(name, shape, stage, settings):
    def command(session):
        return contender.worker_command(session, shape, "torch_ranks.py", "--stage", stage, launcher=TORCHRUN, threads=1)
    return Contender(name, command, contender.read_worker, ("torch", "transformers"), settings, (("OMP_NUM_THREADS", "1"),))


def pairs(quick):
    shape = Shape("gpt2-tiny", 64, 2, 3) if quick else Shape("gpt2-124m", 1024, 2, 4)
    return [Pair("ranks", f"Step of {shape.model} on two ranks, {shape.tokens:,} tokens", (
        ours("spillway ZeRO-2", shape, 2),
        fsdp("FSDP, as ZeRO-2", shape, 2, "fully_shard of each block over gloo, bf16, reshard_after_forward=False"),
        ours("spillway ZeRO-3", shape, 3),
        fsdp("FSDP, as ZeRO-3", shape, 3, "the same, reshard_after_forward=True")),
        (Goal("spillway ZeRO-2", ("FSDP, as ZeRO-2",), "step_s", 1), Goal("spillway ZeRO-3", ("FSDP, as ZeRO-3",), "step_s", 1)),
        shape, 0.02)]
