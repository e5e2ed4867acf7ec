"""Suites that hold an implementation to its contract. They ship with the package and need no test framework."""

from sandlot.conformance.checks import Broken, Check, Outcome, Ran, Stage, Verdict, conform, is_conforming
from sandlot.conformance.runtime import RUNTIME_CHECKS, RUNTIME_DEVIATIONS

__all__ = [
    "RUNTIME_CHECKS",
    "RUNTIME_DEVIATIONS",
    "Broken",
    "Check",
    "Outcome",
    "Ran",
    "Stage",
    "Verdict",
    "conform",
    "is_conforming",
]
