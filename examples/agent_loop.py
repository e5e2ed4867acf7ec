"""An agent loop: a model asks for tools, Sandlot does what it asks, every step can be undone.

The model here is a script, so that this runs anywhere. A real one is given the catalogue, and answers with the same
names and arguments. Run it with `python examples/agent_loop.py`.
"""

from collections.abc import Iterator
from typing import Any

from sandlot import Sandbox

Step = tuple[str, dict[str, Any]]  # a tool and its arguments, as a model gives them

TEST = "from add import add\nassert add(2, 2) == 4, add(2, 2)\nprint('passed')\n"


class ScriptedModel:
    """Says what a model would say, turn by turn."""

    turns: tuple[tuple[str, list[Step]], ...] = (
        (
            "Write the function and its test.",
            [
                ("write_file", {"path": "add.py", "content": "def add(a, b):\n    return a + b\n"}),
                ("write_file", {"path": "test_add.py", "content": TEST}),
                ("bash", {"cmd": "python3 test_add.py"}),
            ],
        ),
        (
            "Make it faster. (It is wrong about how.)",
            [
                ("edit_file", {"path": "add.py", "old_string": "a + b", "new_string": "a | b"}),
                ("bash", {"cmd": "rm test_add.py; ls"}),
            ],
        ),
        (
            "Document it instead.",
            [
                ("read_file", {"path": "add.py"}),
                ("edit_file", {"path": "add.py", "old_string": "):\n", "new_string": '):\n    """The sum."""\n'}),
                ("bash", {"cmd": "python3 test_add.py"}),
            ],
        ),
    )

    def steps(self, turn: int) -> Iterator[Step]:
        yield from self.turns[turn][1]


def main() -> None:
    model = ScriptedModel()
    with Sandbox.create() as sandbox:
        print(f"the model may call {len(sandbox.tools.catalogue('anthropic'))} tools\n")
        for number, (goal, _steps) in enumerate(model.turns):
            print(f"== {goal}")
            for at, (tool, arguments) in enumerate(model.steps(number)):
                # With an id, a call that a broken connection makes us repeat is done once.
                result = sandbox.tools.call(tool, arguments, call_id=f"turn{number}-{at}")
                print(f"-- {tool}{' (error)' * result.is_error}\n{result.text}")
            turn = sandbox.turn()
            if sandbox.commands.run("python3 test_add.py").exit_code != 0:
                print("== the test fails: back to the turn before\n")
                sandbox.rollback(turn.number - 1)
            else:
                print(f"== turn {turn.number} is kept\n")
        print(sandbox.files.read("add.py"))


if __name__ == "__main__":
    main()
