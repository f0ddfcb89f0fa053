"""Policy: a diagnosed incident in, one action out."""
