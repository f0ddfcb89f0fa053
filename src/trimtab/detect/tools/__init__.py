"""What detectors are made of: baselines, windows, range tests and jump tests."""
