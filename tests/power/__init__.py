"""What was acknowledged survives a power cut at any moment: `make powercut`."""
