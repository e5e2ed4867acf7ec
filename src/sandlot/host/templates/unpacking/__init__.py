"""What reads archives of others. All of it runs in a process of its own that has lost every right but that of writing
one tree (`jail.py`). It imports the standard library, a decompressor and our system calls, all at its start."""
