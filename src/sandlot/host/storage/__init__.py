"""How session files are kept; one file per choice.

To add a storage: write `<name>.py` with a class that has the verbs of `contracts.Storage`, declare what it can do in
`capabilities`, let `probe` find out by trying, and add one line to `wiring/embedded.py`.
"""
