"""The verbs: protocols only."""

from sandlot.contracts.host import Calls, CallStream, Files, FileStream, Host, Sessions
from sandlot.contracts.runtime import (
    Guest,
    GuestProcess,
    KnownProcess,
    ProcessEnd,
    ProcessSink,
    Runtime,
    SpawnPlan,
    StartPlan,
    Tree,
)
from sandlot.contracts.storage import Storage, Volume

__all__ = [
    "CallStream",
    "Calls",
    "FileStream",
    "Files",
    "Guest",
    "GuestProcess",
    "Host",
    "KnownProcess",
    "ProcessEnd",
    "ProcessSink",
    "Runtime",
    "Sessions",
    "SpawnPlan",
    "StartPlan",
    "Storage",
    "Tree",
    "Volume",
]
