"""Settings of published runs, each beside its source; what a source does not tell is left out."""

import tomllib
from typing import Any

BASES: dict[str, dict[str, Any]] = {}
"""What several runs have in common."""


def settings(text: str) -> dict[str, Any]:
    """Return settings that are written as in TOML, several on a line; `like` names a base."""
    found = tomllib.loads(text.replace("; ", "\n"))
    return BASES.get(found.pop("like", ""), {}) | found


BASES["AdamW"] = settings("""
    from_scratch = true; optimizer = "adamw"; beta1 = 0.9; beta2 = 0.95
""")
BASES["Llama 2"] = settings("""
    like = "AdamW"; epsilon = 1e-5; weight_decay = 0.1; clip_norm = 1.0
    schedule = "cosine"; warmup_steps = 2000; norm = "pre"
    batch_size = 1024; seq_len = 4096  # 4M tokens
""")
BASES["Llama 3"] = settings("""
    optimizer = "adamw"; seq_len = 8192; norm = "pre"; qk_norm = false
""")
BASES["OLMo 2"] = settings("""
    like = "AdamW"; lr = 3e-4; epsilon = 1e-8; weight_decay = 0.1; decay_norms = true
    decay_embeddings = false; clip_norm = 1.0
    schedule = "cosine"; final_lr = 3e-5; seq_len = 4096
    vocab_size = 100_278; norm = "branch"; init_std = 0.02; qk_norm = true
    z_loss = 1e-5; compute = "bf16"
    checkpoint_steps = 1000; keep_checkpoints = 0; log_steps = 1; eval_steps = 1000
    seeded = true
""")
BASES["Pythia"] = settings("""
    like = "AdamW"; epsilon = 1e-8; weight_decay = 0.1; clip_norm = 1.0
    schedule = "cosine"; steps = 143_000; warmup_steps = 1430; decay_end = 143_000
    batch_size = 1024; seq_len = 2048
    compute = "fp16"; loss_scaling = "dynamic"; min_loss_scale = 1.0
    log_steps = 10
""")
BASES["MLPerf"] = settings("""
    like = "AdamW"; epsilon = 1e-5; weight_decay = 0.1; clip_norm = 1.0
    schedule = "cosine"; steps = 1_200_000; decay_end = 1_200_000; seq_len = 8192
    parameters = 8e9
    seeded = true
""")

PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama 2 7B": (
        "Llama 2 paper, table 1 and section 2.2",
        settings("""
            like = "Llama 2"; lr = 3e-4; final_lr = 3e-5; parameters = 7e9
        """),
    ),
    "Llama 2 70B": (
        "Llama 2 paper, table 1 and section 2.2",
        settings("""
            like = "Llama 2"; lr = 1.5e-4; final_lr = 1.5e-5; parameters = 7e10
        """),
    ),
    "Llama 3 8B": (
        "Llama 3 paper, table 3",
        settings("""
            like = "Llama 3"; lr = 3e-4; parameters = 8e9; layers = 32; width = 4096
        """),
    ),
    "Llama 3 70B": (
        "Llama 3 paper, table 3; warm-up from a stability guide",
        settings("""
            like = "Llama 3"
            lr = 1.5e-4; warmup_steps = 2000; parameters = 7e10; layers = 80; width = 8192
        """),
    ),
    "Llama 3 405B": (
        "Llama 3 paper, table 3; pytorch/torchtitan llama3_405b.toml for the rate; 16M tokens"
        " a step from Balaji at SC'24",
        settings("""
            like = "Llama 3"; lr = 8e-5; beta2 = 0.95; batch_size = 2048
            parameters = 4.05e11; layers = 126; width = 16_384
        """),
    ),
    "OLMo 2 7B": (
        "allenai/OLMo configs/official-1124/OLMo2-7B-stage1.yaml",
        settings("""
            like = "OLMo 2"; warmup_steps = 2000; decay_end = 1_192_092; batch_size = 1024
            layers = 32; width = 4096
        """),
    ),
    "OLMo 2 13B": (
        "allenai/OLMo configs/official-1124/OLMo2-13B-stage1.yaml",
        settings("""
            like = "OLMo 2"; warmup_steps = 1000; decay_end = 596_046; batch_size = 2048
            layers = 40; width = 5120
        """),
    ),
    "OLMo 7B": (
        "allenai/OLMo configs/official/OLMo-7B.yaml",
        settings("""
            like = "AdamW"; lr = 3e-4; weight_decay = 0.1; clip_norm = 1.0
            schedule = "linear"; steps = 476_837; warmup_steps = 5000; final_lr = 3e-5
            batch_size = 2048; seq_len = 2048
            layers = 32; width = 4096; norm = "pre"; qk_norm = false; compute = "bf16"
            checkpoint_steps = 1000; keep_checkpoints = 0; log_steps = 10; seeded = true
        """),
    ),
    "OLMoE 7B": (
        "allenai/OLMo configs/official/OLMoE-7B-A1B.yaml",
        settings("""
            like = "AdamW"; lr = 4e-4; epsilon = 1e-8; weight_decay = 0.1; decay_norms = true
            decay_embeddings = true; clip_norm = 1.0
            schedule = "cosine"; warmup_steps = 2500; decay_end = 1_192_092; final_lr = 4e-5
            batch_size = 1024; seq_len = 4096
            layers = 16; width = 2048; init_std = 0.02; qk_norm = true; experts = 64
            balance_loss = 0.01; compute = "bf16"
            checkpoint_steps = 5000; keep_checkpoints = 0; log_steps = 10; eval_steps = 5000
            seeded = true
        """),
    ),
    "PaLM 540B": (
        "PaLM paper, sections 2 and 5; batch and rate by nl2code.github.io/posts/PaLM-Coder",
        settings("""
            from_scratch = true; optimizer = "adafactor"; lr = 0.01; clip_norm = 1.0
            steps = 255_000; batch_size = 2048; seq_len = 2048
            parameters = 5.4e11; layers = 118; width = 18_432; norm = "pre"; z_loss = 1e-4
        """),
    ),
    "BLOOM 176B": (
        "bigscience-workshop/bigscience train/tr11-176B-ml/tr11-176B-ml.slurm",
        settings("""
            like = "AdamW"; lr = 6e-5; epsilon = 1e-8; weight_decay = 0.1; clip_norm = 1.0
            schedule = "cosine"; steps = 107_421; warmup_steps = 89; decay_end = 97_656
            final_lr = 6e-6; batch_size = 2048; seq_len = 2048
            layers = 70; width = 14_336; vocab_size = 250_880; init_std = 0.0048
            embedding_norm = true; compute = "bf16"
            checkpoint_steps = 100; log_steps = 1; eval_steps = 1000; seeded = true
            step_seconds = 106.0
        """),
    ),
    "GPT-NeoX 20B": (
        "EleutherAI/gpt-neox configs/20B.yml",
        settings("""
            like = "Pythia"; lr = 9.7e-5; weight_decay = 0.01
            steps = 150_000; warmup_steps = 1500; decay_end = 150_000; final_lr = 9.7e-6
            batch_size = 1536
            layers = 44; width = 6144; depth_scaled_init = true
            checkpoint_steps = 500; log_steps = 2
        """),
    ),
    "Pythia 12B": (
        "EleutherAI/pythia models/12B/pythia-12b.yml",
        settings("""
            like = "Pythia"; lr = 1.2e-4; final_lr = 1.2e-5; layers = 36; width = 5120
            checkpoint_steps = 1000; eval_steps = 1000
        """),
    ),
    "Pythia 160M": (
        "EleutherAI/pythia models/160M/pythia-160m.yml",
        settings("""
            like = "Pythia"; lr = 6e-4; final_lr = 6e-5; layers = 12; width = 768
            checkpoint_steps = 500; eval_steps = 40_000
        """),
    ),
    "nanoGPT 124M": (
        "karpathy/nanoGPT train.py and config/train_gpt2.py",
        settings("""
            like = "AdamW"; lr = 6e-4; weight_decay = 0.1; clip_norm = 1.0
            schedule = "cosine"; steps = 600_000; warmup_steps = 2000; decay_end = 600_000
            final_lr = 6e-5; batch_size = 480; seq_len = 1024
            layers = 12; width = 768; norm = "pre"; compute = "bf16"
            log_steps = 10; eval_steps = 1000
        """),
    ),
    "llm.c 124M": (
        "karpathy/llm.c scripts/run_gpt2_124M.sh",
        settings("""
            from_scratch = true; optimizer = "adamw"; lr = 6e-4; weight_decay = 0.1
            steps = 18_865; warmup_steps = 700; batch_size = 512; seq_len = 1024
            parameters = 1.24e8
            checkpoint_steps = 5000; eval_steps = 250; step_seconds = 0.3; price_per_hour = 14.0
        """),
    ),
    "llm.c 1558M": (
        "karpathy/llm.c scripts/run_gpt2_1558M.sh",
        settings("""
            from_scratch = true; optimizer = "adamw"; lr = 6e-4; weight_decay = 0.1
            schedule = "cosine"; steps = 32_000; warmup_steps = 700; final_lr = 6e-5
            batch_size = 1024; seq_len = 1024
            parameters = 1.558e9
            checkpoint_steps = 2000; eval_steps = 250; step_seconds = 2.8; price_per_hour = 28.0
        """),
    ),
    "SmolLM 135M": (
        "huggingface/smollm pre-training/smollm1/config_smollm1_135M.yaml",
        settings("""
            like = "AdamW"; lr = 0.003; epsilon = 1e-8; weight_decay = 0.01; clip_norm = 1.0
            schedule = "linear"; steps = 2_000_000; warmup_steps = 2000; decay_start = 1_600_000
            decay_end = 2_000_000; final_lr = 0.0; batch_size = 512; seq_len = 2048
            parameters = 1.35e8; layers = 30; width = 576; vocab_size = 49_152
            init_std = 0.0416; compute = "bf16"; gradient_sum = "fp32"
            checkpoint_steps = 2000; log_steps = 1; seeded = true
        """),
    ),
    "TinyLlama 1.1B": (
        "jzhang38/TinyLlama pretrain/tinyllama.py",
        settings("""
            like = "AdamW"; lr = 4e-4; weight_decay = 0.1; clip_norm = 1.0
            schedule = "cosine"; steps = 1_430_512; warmup_steps = 2000; decay_end = 1_430_512
            final_lr = 4e-5
            parameters = 1.1e9
            checkpoint_steps = 5000; log_steps = 10; eval_steps = 5000; seeded = true
        """),
    ),
    "MPT 7B": (
        "mosaicml/llm-foundry scripts/train/yamls/pretrain/mpt-7b.yaml",
        settings("""
            like = "AdamW"; lr = 1.2e-4; epsilon = 1e-8; weight_decay = 0.0; clip_norm = 1.0
            schedule = "cosine"; steps = 63_900; warmup_steps = 100; final_lr = 1.2e-5
            batch_size = 1024; seq_len = 2048
            layers = 32; width = 4096; vocab_size = 50_368; compute = "bf16"
            gradient_sum = "bf16"
            log_steps = 1; eval_steps = 5000; seeded = true
        """),
    ),
    "OPT 175B": (
        "OPT paper, section 2 (as told by ritvik19.medium.com and ai-papers.xuzou.cn)",
        settings("""
            like = "AdamW"; weight_decay = 0.1; clip_norm = 1.0
            schedule = "linear"; warmup_steps = 2000; batch_size = 1024; seq_len = 2048
            layers = 96; width = 12_288; init_std = 0.006; depth_scaled_init = true
            compute = "fp16"; loss_scaling = "dynamic"
        """),
    ),
    "DeepSeek-V2-Lite": (
        "deepseek-ai/DeepSeek-V2-Lite README, section 6",
        settings("""
            like = "AdamW"; lr = 4.2e-4; weight_decay = 0.1; clip_norm = 1.0
            steps = 302_000; warmup_steps = 2000; batch_size = 4608; seq_len = 4096
            lr_points = [[0, 0.0], [2000, 4.2e-4], [241_600, 4.2e-4], [241_601, 1.33e-4],
                [271_800, 1.33e-4], [271_801, 4.2e-5], [302_000, 4.2e-5]]
            layers = 27; width = 2048; balance_loss = 0.001
        """),
    ),
    "MLPerf 5.1 Llama 3.1 8B, Cisco": (
        "mlcommons/training_results_v5.1 Cisco/results/hpf_n16/llama31_8b",
        settings("""
            like = "MLPerf"; lr = 8e-4; warmup_steps = 192; final_lr = 8e-5; batch_size = 64
        """),
    ),
    "MLPerf 5.1 Llama 3.1 8B, NVIDIA": (
        "mlcommons/training_results_v5.1 NVIDIA/results/theia_ngpu8_ngc25.09_nemo/llama31_8b",
        settings("""
            like = "MLPerf"; lr = 4e-4; warmup_steps = 16; final_lr = 4e-5; batch_size = 16
        """),
    ),
    "MLPerf 5.1 Flux.1, Oracle": (
        "mlcommons/training_results_v5.1 Oracle/results/2xBM.GPU.B200.8/flux1",
        settings("""
            like = "AdamW"; lr = 2e-4; epsilon = 1e-8; weight_decay = 0.1; clip_norm = 1.0
            warmup_steps = 1600; batch_size = 512; seeded = true
        """),
    ),
    "Megatron-LM GPT-3 15B": (
        "NVIDIA/Megatron-LM tests/functional_tests/test_cases/gpt/gpt3_15b_8t_release",
        settings("""
            like = "AdamW"; lr = 4.5e-4; weight_decay = 0.1; clip_norm = 1.0
            schedule = "cosine"; steps = 16_954; warmup_steps = 3390; decay_end = 1_692_030
            final_lr = 4.5e-5; batch_size = 1152; seq_len = 4096
            layers = 32; width = 6144; init_std = 0.0134; compute = "bf16"
            checkpoint_steps = 1000; log_steps = 100; eval_steps = 2000
        """),
    ),
    "Megatron-LM Mixtral 8x7B": (
        "NVIDIA/Megatron-LM "
        "tests/functional_tests/test_cases/mixtral/mixtral_8x7b_alltoall_tp2pp4ep4_release",
        settings("""
            like = "AdamW"; lr = 3e-4; weight_decay = 0.1; clip_norm = 1.0
            schedule = "cosine"; steps = 23_841; warmup_steps = 3814; decay_end = 1_903_533
            final_lr = 3e-5; batch_size = 1024; seq_len = 4096
            layers = 32; width = 4096; init_std = 0.01; experts = 8; balance_loss = 0.01
            compute = "bf16"
            checkpoint_steps = 5000; log_steps = 1; eval_steps = 200
        """),
    ),
    "Megatron-LM DeepSeek-V3 proxy": (
        "NVIDIA/Megatron-LM tests/functional_tests/test_cases/mixtral/"
        "deepseekv3_proxy_flex_tp1pp4emp16etp1cp1_release",
        settings("""
            like = "AdamW"; lr = 1e-5; weight_decay = 0.1; clip_norm = 1.0
            schedule = "cosine"; steps = 47_683; warmup_steps = 3000; decay_end = 47_682
            final_lr = 1e-6; batch_size = 512; seq_len = 4096
            layers = 14; width = 7168; init_std = 0.02; qk_norm = true; experts = 64
            balance_loss = 1e-4; balance_bias = true; compute = "bf16"
            checkpoint_steps = 500; log_steps = 1; eval_steps = 200; nan_check = false
        """),
    ),
    "Alpaca 7B": (
        "tatsu-lab/stanford_alpaca README (as told by deepwiki.com and radekosmulski.com), "
        "with the defaults of HF's Trainer",
        settings("""
            from_scratch = false; optimizer = "adamw"; lr = 2e-5; beta1 = 0.9; beta2 = 0.999
            epsilon = 1e-8; weight_decay = 0.0; clip_norm = 1.0
            schedule = "cosine"; steps = 1218; warmup_steps = 37; final_lr = 0.0
            batch_size = 128; seq_len = 512
            parameters = 7e9; compute = "bf16"
        """),
    ),
}
"""Run to source and settings."""
