"""Trimtab in the Hugging Face Trainer: `python hf_trainer.py`, then `trimtab diagnose runs/hf`.

A small Llama learns to continue the bytes of a Python source file; nothing is downloaded.
"""

import argparse
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from trimtab.integrations.hf import TrimtabCallback, last_good_checkpoint

torch.manual_seed(0)
text = torch.tensor(list(Path(argparse.__file__).read_bytes()))  # any text will do
rows = [{"input_ids": row, "labels": row} for row in text[: len(text) // 64 * 64].split(64)]

model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
)
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="runs/hf",
        max_steps=20,
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        save_steps=10,
        logging_steps=5,
        report_to=[],
    ),
    train_dataset=rows,
    callbacks=[TrimtabCallback("runs/hf", mode="protect")],
)
trainer.train(resume_from_checkpoint=last_good_checkpoint("runs/hf"))  # None: from scratch

print("now: trimtab diagnose runs/hf")
