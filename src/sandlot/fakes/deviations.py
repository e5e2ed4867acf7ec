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
CODE: Mapping[str, str] = {
    "who_does_not_hear_an_interrupt_is_ended": "code of the fake always hears",
    "what_its_children_print_is_told": "code of the fake starts no programs",
    "code_may_wait": "code of the fake is not asynchronous",
    "files_are_those_of_the_session": "code of the fake has no files",
    "bash_has_contexts": "the fake runs no bash",
    "what_is_wrong_is_refused": "code of the fake is in no directory",
}
