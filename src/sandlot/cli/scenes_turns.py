"""The part of the story that only history can tell: an agent works, breaks its project, and goes back."""

from sandlot.cli.story import Story
from sandlot.model import DiffRequest, ForkRequest, RollbackRequest, TurnRequest

_TEST = "if [ -e test_primes.py ]; then python3 -m unittest 2>&1; else sh squares.sh; fi"
_TURNS = (
    "echo '# Small numbers' > README",
    "mkdir -p docs && echo 'Run the tests first.' > docs/how.txt",
    "echo 'done: tests, docs' > NOTES && chmod +x *.py *.sh 2>/dev/null || true",
)
_BREAK = "rm -r docs && rm -f test_primes.py squares.sh && echo 'broken on purpose' > NOTES"
_WAYS = ("echo 'the first way' >> NOTES", "echo 'the second way' >> NOTES")


async def work_three_turns(story: Story) -> None:
    with story.step("An agent works three turns; each is closed by a snapshot") as step:
        for script in _TURNS:
            ran = await story.sh(script)
            turn = await story.host.turn_complete(TurnRequest(story.session.session_id))
            step.expect(ran.exit_code == 0 and turn.snapshot is not None, f"{turn.snapshot}: {script[:50]}")


async def break_it(story: Story) -> None:
    with story.step("In the fourth turn it breaks its project; `diff` shows how") as step:
        await story.sh(_BREAK)
        await story.host.turn_complete(TurnRequest(story.session.session_id))
        tests = await story.sh(_TEST)
        step.expect(tests.exit_code != 0, f"the tests fail: exit code {tests.exit_code}")
        request = DiffRequest(story.session.session_id, "3", "4", below=story.session.workspace)
        async with story.host.diff(request) as batches:
            changes = [change async for batch in batches for change in batch]
        step.expect(len(changes) >= 3, ", ".join(f"{change.kind} {change.path}" for change in changes[:4]))


async def roll_back(story: Story) -> None:
    with story.step("`rollback` repairs it, in place") as step:
        session = await story.host.rollback(RollbackRequest(story.session.session_id, "3", keep=True))
        step.expect(session.head == "turn-0003", f"{session.session_id} is at {session.head} again")
        tests = await story.sh(_TEST)
        step.expect(tests.exit_code == 0, "and the tests pass")


async def fork_two_ways(story: Story) -> None:
    with story.step("`fork` tries two ways from there") as step:
        made = await story.host.fork(ForkRequest(story.session.session_id, "3", count=2))
        mine = story.session
        for child, script in zip(made, _WAYS, strict=True):
            story.session = child
            ran = await story.sh(f"{script}; tail -n 1 NOTES")
            step.expect(ran.exit_code == 0, f"{child.session_id}: {ran.stdout.strip()}")
            await story.host.destroy(child.session_id)
        story.session = mine
        notes = await story.sh("cat NOTES")
        step.expect("way" not in notes.stdout, "and the first sandbox knows of neither")


HISTORY = (work_three_turns, break_it, roll_back, fork_two_ways)
