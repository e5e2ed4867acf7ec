"""The command line. One file per verb: `add_arguments` says what it takes, `run` does it and gives the exit code.

To add a verb, write its file and add its row to VERBS in `verbs.py`. A verb prints through `context.screen`, opens the
engine with `context.engine()`, and raises typed errors; `main.py` alone turns those into words and exit codes.
"""
