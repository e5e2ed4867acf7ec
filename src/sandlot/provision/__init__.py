"""Whoever makes machines, one file per provider. `conformance/provisioner.py` is what each of them keeps."""
