"""The interpreter of PTX shows the mistakes that compiled kernels can have: with one written into the PTX of a kernel, that kernel's
test does not pass as it does without."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "tools"))
import limits  # noqa: E402
import tap  # noqa: E402

PROGRAM = os.environ["SW_PTX_PROGRAM"]
# By the test that runs the kernel: kernels by a part of their name, which statement, what it begins with, and what it is then ("":
# nothing). What the interpreter says where it is not the test that sees wrong values.
MISTAKES = [
    ("a barrier is missing", "attention_past", "forward_kernel|1|bar.sync|", "no barrier between"),
    ("copies are not waited for", "attention_past", "forward_kernel|1|cp.async.wait_group|", "a copy of thread"),
    ("copies are not committed", "attention_past", "forward_kernel|1|cp.async.commit_group|", None),
    ("a copy is waited for one group too late", "attention_past", "forward_kernel|1|cp.async.wait_group 0|cp.async.wait_group 1", None),
    ("a matrix is not transposed", "attention_past", "forward_kernel|1|ldmatrix.sync.aligned.m8n8.x4.trans|ldmatrix.sync.aligned.m8n8.x4", None),
    ("a product takes bf16 for fp16", "attention_past",
     "forward_kernelI12sw_cuda_bf16|1|mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16|mma.sync.aligned.m16n8k16.row.col.f32.f16.f16", None),
    ("an exponential is another function", "attention_past", "forward_kernel|1|ex2.approx.ftz.f32|lg2.approx.ftz.f32", None),
    ("products are not shown copies", "attention_past", "forward_kernelI|1|fence.proxy.async.shared::cta|", "no fence"),
    ("products are not waited for", "attention_past", "forward_kernelI|1|wgmma.wait_group.sync.aligned|", None),
    ("products are waited for one group too late", "attention_past",
     "forward_kernelI|1|wgmma.wait_group.sync.aligned 0|wgmma.wait_group.sync.aligned 1", None),
    ("products are not committed", "attention_past", "forward_kernelI|1|wgmma.commit_group.sync.aligned|", None),
    ("registers are not shown to products", "attention_past", "forward_kernelI|1|wgmma.fence.sync.aligned|", "without a fence"),
    ("lanes exchange with others", "rmsnorm", "kernel|1|shfl.sync.bfly.b32|shfl.sync.idx.b32", None),
    ("a sum is a product", "layernorm", "kernel|1|add.rn.f32|mul.rn.f32", None),
    ("a bound is one off", "quant", "kernel|1|setp.ge.s64|setp.gt.s64", None),
    ("a vector is not aligned", "rmsnorm", "dx_kernelIfLi|2|+16]|+12]", "not aligned"),
    ("a warp's barrier is missing", "update", "update_narrow_kernel|1|bar.warp.sync|", "no barrier between"),
    ("a maximum is a minimum", "cross_entropy", "kernel|1|max.f32|min.f32", None),
    ("a loop ends one turn early", "columns", "kernel|1|setp.lt.s64|setp.le.s64", None),
    ("a square root is left out", "update", "kernel|1|sqrt.rn.f32|rcp.rn.f32", None),
]


def ended(test, plant=None):
    env = {**os.environ, "SW_TEST_DEVICE": "cuda", "CUDA_LAUNCH_BLOCKING": "1"}
    if plant is not None:
        env["SW_PTX_PLANT"] = plant
    return limits.run([PROGRAM, f"test_{test}"], env=env, capture_output=True, text=True)


def noticed(test, plant, says):
    found = ended(test, plant)
    if "planted in" not in found.stderr:
        return ["nothing was planted"]
    if found.returncode == 0:
        return ["the test passes with it"]
    if says is not None and says not in found.stdout + found.stderr:
        return [f"it is told as {(found.stdout + found.stderr)[-600:]!r}"]
    return []


def main():
    print(f"1..{len(MISTAKES)}")
    for number, (name, test, plant, says) in enumerate(MISTAKES, 1):
        problems = noticed(test, plant, says)
        print(f"{'not ok' if problems else 'ok'} {number} - {name.replace(' ', '_')}")
        for problem in problems:
            print(f"# {problem}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
