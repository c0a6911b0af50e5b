"""The CPU seconds, of users and system together, that each test may use. tools/run_tests.py prints a test's use against its
budget, and lists those above it at the end: for whoever reads it, as slower machines use more."""

# Tests that are not named here.
USUAL_S = 5
BUDGETS = {
    "bench/papers": 45, "core/ranks": 20, "e2e/allocations": 10, "e2e/base_format": 10, "e2e/cli_adapters": 12, "e2e/cli_bad_stores": 10,
    "e2e/cli_base": 15, "e2e/cli_base_format": 15, "e2e/cli_bench": 6, "e2e/cli_bench_io": 15,
    "e2e/cli_bench_step": 15, "e2e/cli_bench_zero": 15, "e2e/cli_bench_zero_tensor": 25, "e2e/cli_bench_zero_pipeline": 15, "e2e/cli_budgets": 10,
    "e2e/cli_cuda": 25, "e2e/cli_devices": 10, "e2e/cli_doctor": 10, "e2e/cli_dpo": 15, "e2e/cli_early_stop": 15,
    "e2e/cli_families": 12, "e2e/cli_file_systems": 15, "e2e/cli_fp8": 15, "e2e/cli_freeze": 15,
    "e2e/cli_generate": 10, "e2e/cli_gptoss": 7, "e2e/cli_gpu_trust": 15, "e2e/cli_in_place": 10,
    "e2e/cli_interrupted": 25,
    "e2e/cli_lora": 30, "e2e/cli_machines": 40, "e2e/cli_muon": 10, "e2e/cli_muon_cuda": 10, "e2e/cli_optimizer_state": 15, "e2e/cli_peers": 10,
    "e2e/cli_power": 35, "e2e/cli_predictions": 10, "e2e/cli_profile": 25, "e2e/cli_ptx": 15, "e2e/cli_quantized": 15,
    "e2e/cli_ranks": 10, "e2e/cli_ranks_cuda": 80, "e2e/cli_ranks_cuda_late": 55, "e2e/cli_ranks_cuda_tensor": 155,
    "e2e/cli_ranks_elastic": 10, "e2e/cli_ranks_experts": 45, "e2e/cli_ranks_killed": 35, "e2e/cli_ranks_nodes": 15,
    "e2e/cli_ranks_pipeline": 60,
    "e2e/cli_ranks_slow": 10, "e2e/cli_ranks_tensor": 45, "e2e/cli_ranks_training": 25, "e2e/cli_recipe": 10,
    "e2e/cli_removed": 10, "e2e/cli_report": 15, "e2e/cli_run_model": 10, "e2e/cli_runs": 20, "e2e/cli_samples": 20,
    "e2e/cli_sizes": 30, "e2e/cli_stored": 15, "e2e/cli_tensor": 15, "e2e/cli_token_files": 10, "e2e/cli_tokenize": 35,
    "e2e/cli_update": 10, "e2e/cli_usage": 10, "e2e/cli_verify": 10, "e2e/crash": 15, "e2e/cuda_base_format": 15,
    "e2e/cuda_documents": 10, "e2e/cuda_freeze": 10, "e2e/cuda_same_bits": 20, "e2e/cuda_tiled": 15, "e2e/docs": 40,
    "e2e/experts": 15, "e2e/faults": 50, "e2e/freeze": 10, "e2e/gpu_flow": 25, "e2e/memory": 25, "e2e/pipeline_bits": 30,
    "e2e/random_plans": 25, "e2e/ranks_bits": 50, "e2e/same_bits": 20, "fuzz/superblock": 10, "io/store_any_fault": 10,
    "io/store_power": 20, "io/store_ranks": 15, "kernels/kernels_attention": 25, "kernels/kernels_attention_ptx": 30,
    "kernels/kernels_attention_small": 10, "kernels/kernels_columns_ptx": 10, "kernels/kernels_cross_entropy": 10,
    "kernels/kernels_cross_entropy_ptx": 10, "kernels/kernels_experts": 10, "kernels/kernels_gemm": 10,
    "kernels/kernels_grouped_gemm": 10, "kernels/kernels_muon": 8, "kernels/kernels_self_test": 15, "kernels/kernels_self_test_ptx": 40,
    "kernels/ptx_planted": 30, "library/crash": 10, "library/cuda": 10, "library/missing": 15, "library/package": 20,
    "library/processes": 15, "library/program": 10, "library/failures": 10, "library/sharded": 15, "library/torch_adamw": 90, "library/torch_cuda": 15, "library/torch_fsdp": 90,
    "library/torch_hazards": 20, "library/torch_kills": 30, "library/torch_modules": 30, "library/torch_offload": 40,
    "library/torch_offload_cuda": 20, "library/torch_offload_peak": 30, "library/torch_overlap": 15, "library/torch_processes": 60,
    "library/torch_state": 10, "library/trainers": 30,
    "model/cuda_head": 10, "model/tensor": 12, "offload/budgets": 15, "offload/engine": 15, "offload/mutations": 10,
    "offload/plan": 15, "offload/search": 20, "offload/shards": 15, "parity/cuda_models": 15, "parity/models": 25,
    "parity/update_golden": 7, "run/rank_stores": 30, "structure/cuda_build": 10,
}


def of(label):
    """By the name that the runner prints; a second instruction set has the same budget."""
    return BUDGETS.get(label.partition(" (")[0], USUAL_S)
