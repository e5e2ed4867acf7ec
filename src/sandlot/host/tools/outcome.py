"""What every tool gives."""

from dataclasses import dataclass

from sandlot.model import Block, TextBlock, ToolProblem


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
