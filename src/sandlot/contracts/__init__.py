"""The verbs: protocols only."""

from sandlot.contracts.code import Code, CodeStream
from sandlot.contracts.control import (
    SandboxControl,
)
from sandlot.contracts.environment import ExecutionEnvironment, OnProgress
from sandlot.contracts.files import Files, FileStream, FoundStream, LineStream, TreeStream
from sandlot.contracts.host import (
    Calls,
    CallStream,
    Events,
    ExportStream,
    Host,
    Lockers,
    Moving,
    Sessions,
    Snapshots,
    Templates,
    Tools,
    Upkeep,
)
from sandlot.contracts.metrics import Metrics
from sandlot.contracts.ports import Ports, PortStream
from sandlot.contracts.previews import PreviewBook, Previews
from sandlot.contracts.processes import Processes
from sandlot.contracts.provision import (
    InstanceProvisioner,
)
from sandlot.contracts.runtime import (
    Group,
    Guest,
    GuestProcess,
    Hits,
    KnownProcess,
    MountPlan,
    ProcessEnd,
    ProcessSink,
    Runtime,
    SpawnPlan,
    StartPlan,
    Tree,
    Used,
)
from sandlot.contracts.storage import Notebook, Points, Remains, Shown, Storage, Taken, Volume, Volumes
from sandlot.contracts.terminals import Terminals, TerminalStream
from sandlot.contracts.tool_stream import ToolStream
from sandlot.contracts.tools import CustomTool, FileSetting, ToolFiles, ToolSetting
from sandlot.contracts.vendor import (
    Heard,
    VendorCommand,
    VendorHands,
    VendorPause,
    VendorSandboxes,
    VendorSnapshots,
    VendorTraits,
)

__all__ = [
    "CallStream",
    "Calls",
    "Code",
    "CodeStream",
    "CustomTool",
    "Events",
    "ExecutionEnvironment",
    "ExportStream",
    "FileSetting",
    "FileStream",
    "Files",
    "FoundStream",
    "Group",
    "Guest",
    "GuestProcess",
    "Heard",
    "Hits",
    "Host",
    "InstanceProvisioner",
    "KnownProcess",
    "LineStream",
    "Lockers",
    "Metrics",
    "MountPlan",
    "Moving",
    "Notebook",
    "OnProgress",
    "Points",
    "PortStream",
    "Ports",
    "PreviewBook",
    "Previews",
    "ProcessEnd",
    "ProcessSink",
    "Processes",
    "Remains",
    "Runtime",
    "SandboxControl",
    "Sessions",
    "Shown",
    "Snapshots",
    "SpawnPlan",
    "StartPlan",
    "Storage",
    "Taken",
    "Templates",
    "TerminalStream",
    "Terminals",
    "ToolFiles",
    "ToolSetting",
    "ToolStream",
    "Tools",
    "Tree",
    "TreeStream",
    "Upkeep",
    "Used",
    "VendorCommand",
    "VendorHands",
    "VendorPause",
    "VendorSandboxes",
    "VendorSnapshots",
    "VendorTraits",
    "Volume",
    "Volumes",
]
