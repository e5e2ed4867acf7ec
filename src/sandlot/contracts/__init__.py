"""The verbs: protocols only."""

from sandlot.contracts.host import Calls, CallStream, Events, Files, FileStream, Host, Sessions, Snapshots, Upkeep
from sandlot.contracts.runtime import (
    Group,
    Guest,
    GuestProcess,
    Hits,
    KnownProcess,
    ProcessEnd,
    ProcessSink,
    Runtime,
    SpawnPlan,
    StartPlan,
    Tree,
)
from sandlot.contracts.storage import Points, Remains, Shown, Storage, Taken, Volume, Volumes

__all__ = [
    "CallStream",
    "Calls",
    "Events",
    "FileStream",
    "Files",
    "Group",
    "Guest",
    "GuestProcess",
    "Hits",
    "Host",
    "KnownProcess",
    "Points",
    "ProcessEnd",
    "ProcessSink",
    "Remains",
    "Runtime",
    "Sessions",
    "Shown",
    "Snapshots",
    "SpawnPlan",
    "StartPlan",
    "Storage",
    "Taken",
    "Tree",
    "Upkeep",
    "Volume",
    "Volumes",
]
