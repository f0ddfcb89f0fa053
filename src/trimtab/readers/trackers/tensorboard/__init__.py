"""TensorBoard event files, read without TensorBoard."""
