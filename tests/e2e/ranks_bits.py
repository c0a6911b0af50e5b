"""Trainings by several ranks under mpirun: all stages of ZeRO and placements give the same bits (tests/e2e/ranks_bits.c)."""

import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "core"))
import jobs  # noqa: E402

PROGRAM = os.environ["SW_RANKS_BITS_PROGRAM"]


def same_bits(ranks, precision, variants, frozen_units=0, node=0, part=0, gather="none", reduce="none",
              optimizer="fp32"):
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(ranks):
            os.mkdir(os.path.join(folder, str(rank)))
        return jobs.passed(ranks, folder, precision, variants, frozen_units, node, part, gather, reduce,
                           optimizer, program=PROGRAM)


def two_ranks_give_the_same_bits_in_fp32():
    return same_bits(2, "fp32", 9)


def three_ranks_give_the_same_bits_in_bf16():
    return same_bits(3, "bf16", 5)


def four_ranks_give_the_same_bits_in_fp32():
    return same_bits(4, "fp32", 3)


def ranks_without_a_grain_keep_step():
    """Six ranks, and no unit of more than five grains."""
    return same_bits(6, "fp32", 2)


def frozen_units_are_the_same_on_all_ranks():
    """The tied embedding and two blocks are not trained."""
    return same_bits(2, "bf16", 9, frozen_units=3)


def secondary_shards_give_the_same_bits():
    """Two nodes of two ranks; one node of four in halves; two ranks, with groups of micro-batches and frozen units."""
    return (same_bits(4, "fp32", 5, node=2, part=2) + same_bits(4, "bf16", 3, node=4, part=2)
            + same_bits(2, "bf16", 5, frozen_units=3, node=2, part=2))


def quantized_weights_give_the_same_bits():
    """The owner computes with what its codes stand for, as the others do; with secondary shards of such weights too."""
    return same_bits(2, "bf16", 9, gather="int8") + same_bits(4, "fp32", 3, node=2, part=2, gather="int8")


def quantized_gradients_give_the_same_bits():
    return same_bits(2, "fp32", 5, reduce="int8") + same_bits(3, "bf16", 4, reduce="int4")


def gradients_reduced_within_nodes_first_give_the_same_bits():
    """Two nodes of two ranks; three of two, where some ranks have no grain of a unit."""
    return same_bits(4, "bf16", 6, node=2, reduce="int4") + same_bits(6, "fp32", 2, node=2, gather="int8", reduce="int8")


def both_quantized_give_the_same_bits():
    """With frozen units; and six ranks, of which some have no grain of a unit."""
    return (same_bits(2, "bf16", 5, frozen_units=3, gather="int8", reduce="int4")
            + same_bits(6, "fp32", 2, gather="int8", reduce="int8"))


def narrow_optimizer_state_gives_the_same_bits():
    """The random numbers of its rounding are those of an element, whichever rank has it; with frozen units too."""
    return (same_bits(2, "bf16", 6, optimizer="8bit") + same_bits(3, "bf16", 3, frozen_units=3, optimizer="8bit")
            + same_bits(2, "fp32", 3, optimizer="bf16"))


jobs.script_test.run(two_ranks_give_the_same_bits_in_fp32, three_ranks_give_the_same_bits_in_bf16,
                     four_ranks_give_the_same_bits_in_fp32, ranks_without_a_grain_keep_step,
                     frozen_units_are_the_same_on_all_ranks, secondary_shards_give_the_same_bits,
                     quantized_weights_give_the_same_bits, quantized_gradients_give_the_same_bits,
                     gradients_reduced_within_nodes_first_give_the_same_bits,
                     both_quantized_give_the_same_bits, narrow_optimizer_state_gives_the_same_bits)
