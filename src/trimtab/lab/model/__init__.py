"""The lab's model: a small GPT, its sizes and its optimizer."""
