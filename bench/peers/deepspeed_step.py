"""Worker: training steps by DeepSpeed's ZeRO stage 3 with the optimizer on NVMe, and with --params the parameters too, by
its own AdamW for CPUs. Its model is bf16 and its masters fp32."""

import os

import worker

# One rank, without a launcher.
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
SUB_GROUP = 40_000_000  # elements that are updated at once
# Master, two moments and gradient of a group: of the one that is updated, of the next, and with writes also of the last.
BUFFERS, BUFFERS_WRITING = 8, 12
# Parameters that are in memory at once: two layers. The default of 5 is too few for them, and by default a model of less than
# a billion parameters is never released, for which no number of buffers is enough.
PARAMETER_BUFFERS = 16
AIO = {"block_size": 1 << 20, "queue_depth": 32, "intra_op_parallelism": 1, "single_submit": False, "overlap_events": True,
       "use_gds": False}


def configuration(options, model, on_gpu):
    """DeepSpeed's settings: those of its documentation for NVMe, with the buffers that this model needs."""
    hidden, largest = model.hidden_size, model.hidden_size * model.vocab_size
    offload = {"device": "nvme", "nvme_path": options.nvme, "pin_memory": on_gpu}
    zero = {"stage": 3, "overlap_comm": True, "contiguous_gradients": True, "sub_group_size": SUB_GROUP,
            "stage3_prefetch_bucket_size": hidden * hidden * 9 // 10, "stage3_param_persistence_threshold": hidden * 10,
            "reduce_bucket_size": hidden * hidden,
            "offload_optimizer": {**offload, "buffer_count": BUFFERS_WRITING if options.pipeline_write else BUFFERS,
                                  "pipeline_read": True, "pipeline_write": options.pipeline_write}}
    if options.params:
        zero |= {"stage3_max_live_parameters": 2 * largest, "stage3_max_reuse_distance": 0}
        zero["offload_param"] = {**offload, "buffer_count": PARAMETER_BUFFERS, "buffer_size": largest, "max_in_cpu": 0}
    return {"train_batch_size": options.batch, "train_micro_batch_size_per_gpu": options.batch,
            "gradient_clipping": worker.CLIP, "bf16": {"enabled": True}, "zero_optimization": zero,
            "optimizer": {"type": "AdamW", "params": {"lr": options.lr, "betas": list(worker.BETAS), "eps": worker.EPSILON,
                                                      "weight_decay": 0.0}},
            "aio": AIO, "steps_per_print": 1 << 30, "wall_clock_breakdown": False}


def parse_arguments():
    parser = worker.parser(__doc__)
    parser.add_argument("--nvme", required=True)
    parser.add_argument("--params", action="store_true")
    parser.add_argument("--pipeline-write", action="store_true")
    return parser.parse_args()


def main():
    options = parse_arguments()
    for name, value in ALONE.items():
        os.environ.setdefault(name, value)
    import torch
    if not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed
    import transformers
    from transformers.integrations import HfDeepSpeedConfig
    torch.set_num_threads(options.threads)
    device = worker.device_of(torch)
    deepspeed.init_distributed("nccl" if device.type == "cuda" else "gloo")
    settings = configuration(options, transformers.AutoConfig.from_pretrained(options.model), device.type == "cuda")
    kept = HfDeepSpeedConfig(settings)  # from_pretrained shards the model while this object lives
    model = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16, attn_implementation="sdpa")
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    engine.train()
    inputs, targets = (half.to(engine.device) for half in worker.batch(torch, options))

    def step():
        loss = worker.loss_of(torch, engine, inputs, targets)
        engine.backward(loss)
        engine.step()
        return loss.detach()

    worker.report(**worker.train(torch, options, step, device))
    del kept


if __name__ == "__main__":
    main()
