"""What is measured on the device."""
