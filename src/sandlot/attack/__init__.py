"""The suite that tries to break out, for operators (`sandlot attack`) and for the tests.

It talks to the `Host` that it is given and to nothing else of ours. To add an attack: where one command and what it
must see say everything, add a row to `rows_*.py` and to a case of `cases.py`; else write a function in `acts_*.py`.
Name the defence, and show in `tests/security/weakenings.py` that the attack gets through once that defence is gone.
"""
