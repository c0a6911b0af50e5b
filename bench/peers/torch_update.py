"""Worker: the AdamW update of fp32 masters by PyTorch or DeepSpeed, with the passes that their mixed-precision training
makes around it. PyTorch's gradients are fp32 already, as autocast leaves them, or with --bf16-gradients are widened first; the
bf16 copy of the weights follows the update. DeepSpeed's arrive in bf16: widened, scaled, updated, and the weights rounded
to bf16."""

import argparse
import os
import time

import worker

LR, WEIGHT_DECAY = 1e-4, 0.1


def torch_pass(torch, kind, masters, device, bf16_gradients):
    for master in masters:
        master.grad = torch.randn_like(master)
    arrived = [master.grad.bfloat16() for master in masters] if bf16_gradients else []
    flags = {"plain": {"foreach": False, "fused": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}[kind]
    optimizer = torch.optim.AdamW(masters, lr=LR, betas=worker.BETAS, eps=worker.EPSILON, weight_decay=WEIGHT_DECAY, **flags)
    narrow = [torch.zeros_like(master, dtype=torch.bfloat16) for master in masters]

    def update():
        if arrived:
            torch._foreach_copy_([master.grad for master in masters], arrived)
        optimizer.step()
        torch._foreach_copy_(narrow, [master.detach() for master in masters])
        if device.type == "cuda":
            torch.cuda.synchronize()

    return update


def deepspeed_pass(torch, masters):
    os.environ["DS_ACCELERATOR"] = "cpu"
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    optimizer = DeepSpeedCPUAdam(masters, lr=LR, betas=worker.BETAS, eps=worker.EPSILON, weight_decay=WEIGHT_DECAY,
                                 adamw_mode=True)
    arrived = [torch.randn_like(master).bfloat16() for master in masters]
    narrow = [torch.zeros_like(grad) for grad in arrived]
    for master in masters:
        master.grad = torch.zeros_like(master)

    def update():
        for master, grad in zip(masters, arrived):
            master.grad.copy_(grad)
            master.grad.mul_(0.5)
        optimizer.step()
        for to, master in zip(narrow, masters):
            to.copy_(master.detach())

    return update


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("plain", "foreach", "fused", "deepspeed"))
    parser.add_argument("--bf16-gradients", action="store_true")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--parameters", type=int, required=True)
    parser.add_argument("--tensors", type=int, default=16, help="tensors that hold the parameters, as many each")
    parser.add_argument("--times", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    import torch
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    masters = [torch.nn.Parameter(torch.randn(options.parameters // options.tensors, device=device))
               for _ in range(options.tensors)]
    update = deepspeed_pass(torch, masters) if options.kind == "deepspeed" else torch_pass(torch, options.kind, masters, device,
                                                                                           options.bf16_gradients)
    seconds = []
    with torch.no_grad():
        for _ in range(options.times):
            begun = time.perf_counter()
            update()
            seconds.append(time.perf_counter() - begun)
    worker.report(seconds=seconds)


if __name__ == "__main__":
    main()
