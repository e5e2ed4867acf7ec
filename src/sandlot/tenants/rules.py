"""What becomes of each verb of the waist when a tenant asks. One that is not in the table is refused; a test fails."""

from collections.abc import Mapping
from enum import Enum
from typing import Final


class Rule(Enum):
    OF_SESSION = "names a session, and is asked of that one"
    OF_TENANT = "names something of the tenant's that is of none of its sessions"
    OPEN = "is the same for everybody"
    OWN = "has a method of its own"
    OPERATOR = "is for the operator"


_LOOK: Final = """
    get attach calls terminals get_terminal attach_terminal read_file read_lines get_attributes list_files find_files
    search_files watch_files measure_files stat_file download_tree list_snapshots turns diff export list_processes
    process_status process_logs wait_process list_ports contexts attach_code session_metrics
"""
_CHANGE: Final = """
    pause resume extend relabel destroy call open_terminal write_terminal resize_terminal kill_terminal execute_tool
    cancel_tool
    write_file append_file replace_in_file copy_file change_file make_link set_attributes make_directory rename_file
    remove_file upload_tree create_snapshot delete_snapshot turn_complete rollback move recover
    launch_process write_process_stdin close_process_stdin kill_process expose_port unexpose_port connect_port
    preview_port create_context interrupt_context restart_context delete_context run_code
"""
_OF_TENANT: Final = "create_volume"
_OWN: Final = "create list fork import_session health events get_volume remove_volume list_volumes all_metrics"
_OPEN: Final = "capabilities tools list_templates get_template"
_OPERATOR: Final = """
    make_template tag_template remove_template warm_template prune_templates examine host_metrics cordon backup
    uncordon
"""

READS: Final = frozenset(f"{_LOOK} {_OPEN}".split())  # of those that are passed on: what a key that may only look has
RULES: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(_OPEN.split(), Rule.OPEN),
    **dict.fromkeys(_OF_TENANT.split(), Rule.OF_TENANT),
    **dict.fromkeys(_OWN.split(), Rule.OWN),
    **dict.fromkeys(_OPERATOR.split(), Rule.OPERATOR),
    **dict.fromkeys(f"{_LOOK} {_CHANGE}".split(), Rule.OF_SESSION),
}
