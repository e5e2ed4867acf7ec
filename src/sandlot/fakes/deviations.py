"""What the fake does not keep, by the name of the check in `conformance`, and why."""

from collections.abc import Mapping

TERMINALS: Mapping[str, str] = {
    "it_is_killed_with_all_that_it_started": "programs of the fake start no others",
}
METRICS: Mapping[str, str] = {
    "work_is_counted": "programs of the fake take no processor time",
    "memory_is_counted": "programs of the fake take no memory",
    "processes_are_counted": "programs of the fake start no others",
    "files_are_counted": "the fake has no random bytes",
    "samples_are_taken_while_nobody_asks": "the fake keeps no samples",
}
