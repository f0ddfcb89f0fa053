"""Real trainers with and without trimtab: `scripts/bench trainers`.

setting.py       how a trainer is used, and what a run leaves
hf.py            the Hugging Face Trainer, and TRL's SFTTrainer
accelerate.py    a loop with an Accelerator
lightning.py     the Lightning Trainer
torchtitan.py    torchtitan, in processes of its own
compare.py       one setting: without trimtab, observed, protected, recovering
installed.py     the trainers of this environment, and their versions
table.py         `scripts/bench trainers table`: every setting, in several environments
"""
