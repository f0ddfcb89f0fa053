"""The lab's model.

sizes.py       ModelConfig and the named sizes
gpt.py         Gpt: RMSNorm, causal attention with rotary positions, the whole model
optimizer.py   AdamW with the settings of large runs, and its learning-rate schedule
"""
