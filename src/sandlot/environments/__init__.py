"""Environments: one session as the loop of an agent sees it, one file per kind.

To add one: a class with the verbs of `sandlot.contracts.ExecutionEnvironment` that is given what it stands on, and a
line in `tests/conformance/test_environment.py` that holds it to the suite.
"""
