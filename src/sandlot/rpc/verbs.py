"""How the arguments of a verb travel, and what it gives: both ends use the same functions.

A request that is a value of the model is the one argument of its verb. Any other has the arguments as fields.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, cast

from sandlot.model import Capability, ProcessState
from sandlot.rpc.convert import build, from_message, from_text, from_word, is_value, known, to_message, to_text
from sandlot.rpc.messages import MESSAGES, AnyMessage

# The verb behind each procedure that takes one message and gives one.
VERBS: Mapping[str, str] = {
    "CreateSession": "create",
    "GetSession": "get",
    "ListSessions": "list",
    "PauseSession": "pause",
    "ResumeSession": "resume",
    "ExtendSession": "extend",
    "RelabelSession": "relabel",
    "RecoverSession": "recover",
    "DestroySession": "destroy",
    "ListCalls": "calls",
    "ListTools": "tools",
    "CancelTool": "cancel_tool",
    "ReplaceInFile": "replace_in_file",
    "CopyFile": "copy_file",
    "ChangeFile": "change_file",
    "MakeLink": "make_link",
    "GetAttributes": "get_attributes",
    "SetAttributes": "set_attributes",
    "MeasureFiles": "measure_files",
    "StatFile": "stat_file",
    "MakeDirectory": "make_directory",
    "RenameFile": "rename_file",
    "RemoveFile": "remove_file",
    "CreateSnapshot": "create_snapshot",
    "ListSnapshots": "list_snapshots",
    "DeleteSnapshot": "delete_snapshot",
    "TurnComplete": "turn_complete",
    "ListTurns": "turns",
    "RollbackSession": "rollback",
    "ForkSession": "fork",
    "ListTemplates": "list_templates",
    "GetTemplate": "get_template",
    "TagTemplate": "tag_template",
    "RemoveTemplate": "remove_template",
    "WarmTemplate": "warm_template",
    "PruneTemplates": "prune_templates",
    "CreateVolume": "create_volume",
    "GetVolume": "get_volume",
    "ListVolumes": "list_volumes",
    "RemoveVolume": "remove_volume",
    "HealthCheck": "health",
    "GetCapabilities": "capabilities",
    "ExamineHost": "examine",
    "CordonHost": "cordon",
    "UncordonHost": "uncordon",
    "LaunchProcess": "launch_process",
    "ListProcesses": "list_processes",
    "GetProcessStatus": "process_status",
    "WriteProcessStdin": "write_process_stdin",
    "CloseProcessStdin": "close_process_stdin",
    "KillProcess": "kill_process",
    "WaitProcess": "wait_process",
    "ExposePort": "expose_port",
    "ListPorts": "list_ports",
    "UnexposePort": "unexpose_port",
    "PreviewPort": "preview_port",
    "OpenTerminal": "open_terminal",
    "ListTerminals": "terminals",
    "GetTerminal": "get_terminal",
    "WriteTerminal": "write_terminal",
    "ResizeTerminal": "resize_terminal",
    "KillTerminal": "kill_terminal",
    "CreateContext": "create_context",
    "ListContexts": "contexts",
    "InterruptContext": "interrupt_context",
    "RestartContext": "restart_context",
    "DeleteContext": "delete_context",
    "SessionMetrics": "session_metrics",
    "HostMetrics": "host_metrics",
    "AllMetrics": "all_metrics",
}
_WORDS: Mapping[str, type[StrEnum]] = {"until": ProcessState}
_NOTHING = MESSAGES["Nothing"]()


def pack_arguments(message: type[AnyMessage], arguments: Mapping[str, Any]) -> AnyMessage:
    """None is left out. Raises InvalidArgument."""
    told = {name: to_text(value) if isinstance(value, str) else value for name, value in arguments.items()}
    told |= {name: float(value) for name, value in told.items() if name.endswith("_s") and value is not None}
    return build(message, {name: value for name, value in told.items() if value is not None})


def unpack_arguments(message: AnyMessage) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for name in _fields(message):
        if message.has_field(name) or not _knows(message, name):
            value: object = getattr(message, name)
            told[name] = from_text(value) if isinstance(value, str) else value
            if name in _WORDS:
                told[name] = from_word(_WORDS[name], str(value))
    return told


def _fields(message: AnyMessage) -> list[str]:
    return [field.name for field in message.desc().fields]


def _knows(message: AnyMessage, name: str) -> bool:
    return any(field.name == name and field.presence == 1 for field in message.desc().fields)


def pack_answer(message: type[AnyMessage], answer: Any) -> AnyMessage:
    match message.desc().name:
        case "Nothing":
            return _NOTHING
        case "Flag" | "Number":
            return build(message, {"value": answer})
        case "Attributes":
            return message(values={to_text(name): value for name, value in answer.items()})
        case "CapabilityList":
            return message(capabilities=sorted(str(one) for one in answer))
        case _ if is_value(message):
            return to_message(answer)
        case _:
            (field,) = message.desc().fields
            return message(**{field.name: [to_message(one) for one in cast("Sequence[object]", answer)]})


def unpack_answer(message: AnyMessage) -> Any:
    match type(message).__name__:
        case "Nothing":
            return None
        case "Flag" | "Number":
            return getattr(message, "value")  # noqa: B009
        case "Attributes":
            values = cast("Mapping[str, bytes]", getattr(message, "values"))  # noqa: B009
            return {from_text(name): value for name, value in values.items()}
        case "CapabilityList":
            return frozenset[Capability](known(getattr(message, "capabilities")))  # noqa: B009
        case _ if is_value(type(message)):
            return from_message(message)
        case _:
            (field,) = message.desc().fields
            return [from_message(one) for one in getattr(message, field.name)]
