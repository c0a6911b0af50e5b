"""Worker: one rank of training steps by PyTorch's FSDP (fully_shard), started by torchrun. Weights are gathered in bf16,
gradients reduced in bf16, and masters stay fp32; with --stage 2 gathered weights stay until the backward pass."""

import os

import worker


def join(torch):
    """Joins the other ranks and returns this one's device."""
    device = worker.device_of(torch)
    torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    return device


def sharded_model(torch, options, device):
    import transformers
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    model = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32,
                                                              attn_implementation="sdpa").to(device).train()
    settings = {"mesh": torch.distributed.init_device_mesh(device.type, (torch.distributed.get_world_size(),)),
                "reshard_after_forward": options.stage == 3,
                "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)}
    for block in model.base_model.h if hasattr(model.base_model, "h") else model.base_model.layers:
        fully_shard(block, **settings)
    fully_shard(model, **settings)
    return model


def main():
    parser = worker.parser(__doc__)
    parser.add_argument("--stage", type=int, choices=(2, 3), required=True)
    options = parser.parse_args()
    import torch
    torch.set_num_threads(options.threads)
    device = join(torch)
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    model = sharded_model(torch, options, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=worker.BETAS, eps=worker.EPSILON, weight_decay=0,
                                  fused=True)
    own = slice(rank * options.batch // ranks, (rank + 1) * options.batch // ranks)
    inputs, targets = (half[own].to(device) for half in worker.batch(torch, options))

    def step():
        loss = worker.loss_of(torch, model, inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), worker.CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean = loss.detach() / ranks
        torch.distributed.all_reduce(mean)
        return mean

    found = worker.train(torch, options, step, device)
    if rank == 0:
        worker.report(**found)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
