"""How a session's processes are contained; one file per choice.

To add a runtime: write `<name>.py` with a class that has the verbs of `contracts.Runtime`, get its guests to speak the
frames of `docs/protocol.md` (then `link.py` serves them), declare what it can do in `capabilities`, let `probe` find
out by trying, and add one line to `wiring/embedded.py`.
"""
