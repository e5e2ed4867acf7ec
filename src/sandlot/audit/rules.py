"""What is recorded of the verbs of the waist. One that is not named here is recorded, so a new one is."""

from typing import Final

# They look, and take nothing out of a session; what happens most often is among them.
_LOOKS: Final = """
    get list attach calls terminals get_terminal get_attributes list_files find_files watch_files
    measure_files stat_file list_snapshots turns diff list_processes process_status process_logs wait_process list_ports
    contexts attach_code session_metrics capabilities tools list_templates get_template health events get_volume
    list_volumes all_metrics host_metrics resize_terminal
"""
UNRECORDED: Final = frozenset(_LOOKS.split())
# Of a request and of an answer: what tells one act from another. Content is never recorded, nor what may be a secret.
TOLD: Final = (
    *("argv", "code", "tool", "path", "source", "target", "new_path", "name", "snapshot", "call_id", "process_id"),
    *("terminal_id", "context_id", "execution_id", "template", "storage", "runtime", "port", "count", "number"),
    *("sent_bytes", "received_bytes"),
)
PLACES: Final = {"connect_port": ("session_id", "port")}  # of what is asked for without a request
TEXT_CHARS_MAX: Final = 200  # of one thing that is told
