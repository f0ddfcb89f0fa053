"""The lab's data: text, tokenizer, token files, batches by data position."""
