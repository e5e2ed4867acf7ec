"""The verbs: protocols only. What implements them is proven by the conformance suites."""

from sandlot.contracts.host import Calls, CallStream, Host, Sessions
from sandlot.contracts.runtime import (
    Guest,
    GuestProcess,
    KnownProcess,
    ProcessEnd,
    ProcessSink,
    Runtime,
    SpawnPlan,
    StartPlan,
)
from sandlot.contracts.storage import Storage, Volume

__all__ = [
    "CallStream",
    "Calls",
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
    "Volume",
]
