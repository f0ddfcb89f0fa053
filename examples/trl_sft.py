"""Trimtab in TRL's SFTTrainer: `python trl_sft.py`, then `trimtab diagnose runs/sft`.

A small Llama learns to continue lines of a Python source file; nothing is downloaded. GRPOTrainer,
RLOOTrainer and DPOTrainer take the same callback.
"""

import argparse
from pathlib import Path

from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from trimtab.integrations.hf import TrimtabCallback

# A tokenizer of bytes; yours comes from AutoTokenizer.from_pretrained(...).
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
byte_level = Tokenizer(models.BPE(vocab={c: n for n, c in enumerate(letters)}, merges=[]))
byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
byte_level.decoder = decoders.ByteLevel()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level)
tokenizer.add_special_tokens({"pad_token": "<pad>", "eos_token": "<eos>"})
lines = [line for line in Path(argparse.__file__).read_text().splitlines() if line.strip()]

trainer = SFTTrainer(
    model=LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
        )
    ),
    args=SFTConfig(
        output_dir="runs/sft",
        max_steps=10,
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        max_length=64,
        bf16=False,  # for a CPU; leave it out on a GPU
        save_strategy="no",
        report_to=[],
    ),
    train_dataset=Dataset.from_dict({"text": lines}),
    processing_class=tokenizer,
    callbacks=[TrimtabCallback("runs/sft", mode="protect", batch_text=tokenizer)],
)
trainer.train()

print("now: trimtab diagnose runs/sft")
