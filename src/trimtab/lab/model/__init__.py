"""The lab's model.

sizes.py       ModelConfig and the named sizes
attention.py   causal attention with rotary positions; RMSNorm
gpt.py         Gpt, the whole model
optimizer.py   AdamW with the settings of large runs
"""
