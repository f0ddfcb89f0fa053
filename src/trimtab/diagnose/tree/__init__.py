"""Decision trees: questions, answers and the conclusion they lead to."""
