"""What the documents promise about speed, measured. Entry: `make bench`, which runs `bench.py`."""
