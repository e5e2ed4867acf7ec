"""Suites that hold an implementation to its contract. They ship with the package and need no test framework."""

from sandlot.conformance.checks import Broken, Check, Outcome, Ran, Stage, Verdict, conform, is_conforming
from sandlot.conformance.code import CODE_CHECKS, conform_code
from sandlot.conformance.control import CONTROL_CHECKS, conform_control
from sandlot.conformance.control_stage import ControlStage
from sandlot.conformance.environment import ENVIRONMENT_CHECKS, conform_environment
from sandlot.conformance.environment_stage import EnvironmentStage
from sandlot.conformance.environment_tools import TOOLS_OF_ENVIRONMENTS, conform_environment_tools
from sandlot.conformance.file_stage import FileStage
from sandlot.conformance.files import FILE_CHECKS, conform_files
from sandlot.conformance.host import HOST_CHECKS, conform_host
from sandlot.conformance.metrics import METRICS_CHECKS, conform_metrics
from sandlot.conformance.ports import PORT_CHECKS, conform_ports
from sandlot.conformance.processes import PROCESS_CHECKS, conform_processes
from sandlot.conformance.provisioner import PROVISIONER_CHECKS, ProvisionerStage, conform_provisioner
from sandlot.conformance.runtime import RUNTIME_CHECKS, RUNTIME_DEVIATIONS
from sandlot.conformance.storage import STORAGE_CHECKS, conform_storage
from sandlot.conformance.targets import SUITES, Kind, Target, conform_target, kind_of
from sandlot.conformance.terminals import TERMINAL_CHECKS, TERMINAL_DEVIATIONS, conform_terminals
from sandlot.conformance.tools import TOOL_CHECKS, conform_tools
from sandlot.conformance.volumes import VOLUME_CHECKS, VolumeStage, conform_volumes
from sandlot.conformance.whole import conform_whole

__all__ = [
    "CODE_CHECKS",
    "CONTROL_CHECKS",
    "ENVIRONMENT_CHECKS",
    "FILE_CHECKS",
    "HOST_CHECKS",
    "METRICS_CHECKS",
    "PORT_CHECKS",
    "PROCESS_CHECKS",
    "PROVISIONER_CHECKS",
    "RUNTIME_CHECKS",
    "RUNTIME_DEVIATIONS",
    "STORAGE_CHECKS",
    "SUITES",
    "TERMINAL_CHECKS",
    "TERMINAL_DEVIATIONS",
    "TOOLS_OF_ENVIRONMENTS",
    "TOOL_CHECKS",
    "VOLUME_CHECKS",
    "Broken",
    "Check",
    "ControlStage",
    "EnvironmentStage",
    "FileStage",
    "Kind",
    "Outcome",
    "ProvisionerStage",
    "Ran",
    "Stage",
    "Target",
    "Verdict",
    "VolumeStage",
    "conform",
    "conform_code",
    "conform_control",
    "conform_environment",
    "conform_environment_tools",
    "conform_files",
    "conform_host",
    "conform_metrics",
    "conform_ports",
    "conform_processes",
    "conform_provisioner",
    "conform_storage",
    "conform_target",
    "conform_terminals",
    "conform_tools",
    "conform_volumes",
    "conform_whole",
    "is_conforming",
    "kind_of",
]
