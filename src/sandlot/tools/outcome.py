"""What every tool gives."""

from dataclasses import dataclass

from sandlot.model import (
    Block,
    FileConflict,
    FileNotFound,
    InvalidArgument,
    LimitReached,
    PermissionDenied,
    SandlotError,
    TextBlock,
    Tool,
    ToolProblem,
    ToolResult,
)

# What a model asked for and cannot have; everything else failed below the tool.
ANSWERS = (FileNotFound, FileConflict, PermissionDenied, InvalidArgument, LimitReached)


@dataclass(frozen=True, slots=True)
class Outcome:
    blocks: tuple[Block, ...]
    is_error: bool = False
    exit_code: int | None = None
    truncated: bool = False

    @classmethod
    def of(cls, text: str, *, truncated: bool = False) -> "Outcome":
        return cls((TextBlock(text),), truncated=truncated)

    @classmethod
    def of_problem(cls, problem: ToolProblem) -> "Outcome":
        return cls((TextBlock(str(problem)),), is_error=True)

    @classmethod
    def of_answer(cls, error: SandlotError) -> "Outcome":
        told = f"{error.message}: {error.next_step}" if error.next_step else error.message
        return cls((TextBlock(told),), is_error=True)

    @classmethod
    def of_timeout(cls, timeout_s: float) -> "Outcome":
        return cls((TextBlock(f"it took longer than {timeout_s:g} s"),), is_error=True)

    def result(self, tool: Tool, call_id: str, duration_s: float = 0.0, snapshot: str | None = None) -> ToolResult:
        return ToolResult(
            call_id,
            tool.name,
            tool.tier,
            self.blocks,
            self.is_error,
            self.exit_code,
            duration_s,
            self.truncated,
            snapshot,
        )
