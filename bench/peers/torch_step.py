"""Worker: training steps by PyTorch on one device, with fp32 master weights, bf16 autocast, scaled-dot-product attention
and the fused AdamW, eager or compiled."""

import contextlib

import worker


def main():
    parser = worker.parser(__doc__)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    options = parser.parse_args()
    import torch
    import transformers
    torch.set_num_threads(options.threads)
    device = worker.device_of(torch)
    model = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32,
                                                              attn_implementation="sdpa").to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=worker.BETAS, eps=worker.EPSILON, weight_decay=0,
                                  fused=True)
    inputs, targets = (half.to(device) for half in worker.batch(torch, options))

    def forward(inputs, targets):
        return worker.loss_of(torch, model, inputs, targets)

    if options.compile:
        forward = torch.compile(forward)

    def step():
        narrow = torch.autocast(device.type, torch.bfloat16) if options.precision == "bf16" else contextlib.nullcontext()
        with narrow:
            loss = forward(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), worker.CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    worker.report(**worker.train(torch, options, step, device))


if __name__ == "__main__":
    main()
