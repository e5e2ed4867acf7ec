"""Environments: one session as the loop of an agent sees it, one file per kind.

To add one: a class with the verbs of `sandlot.contracts.ExecutionEnvironment` that is given what it stands on, and a
line in `tests/conformance/test_environment.py` that holds it to the suite. `binding.py` knows which session it has,
`wishes.py` refuses what it cannot hold, `tool_calls.py` has the tools wherever there are files and commands.
"""
