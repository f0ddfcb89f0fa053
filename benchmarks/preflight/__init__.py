"""What preflight finds and does not find: 30 planted faults, 12 healthy architectures, its time."""
