"""A package, so that `python -m tests.performance.bench` means this folder and no installed one."""
