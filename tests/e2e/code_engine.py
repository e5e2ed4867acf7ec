"""An engine that runs code, to be killed: `python -m tests.e2e.code_engine DATA RUNTIME`. It tells each run that it has
acknowledged."""

import asyncio
import sys
from pathlib import Path

from sandlot.config.settings import load
from sandlot.model import CodeRequest, ContextRequest, SessionSpec
from sandlot.wiring.embedded import build

SESSION = "s-code"
CONTEXTS = 3
RUNS = 12
LINES = 200


def code_of(context: int, number: int) -> str:
    """It leaves a mark that it ran, prints slowly enough to be cut, and shows what it remembers."""
    padding = "# " + "x" * 100_000 if number % 3 == 0 else ""
    return (
        f"{padding}\nimport time\nran = globals().get('ran', 0) + 1\n"
        f"with open('ran-{context}-{number}', 'a') as mark:\n    mark.write('once ')\n"
        f"for line in range({LINES}):\n    print('{context} {number}', line)\n    time.sleep(0.0005)\nran"
    )


def expected(context: int, number: int) -> str:
    return "".join(f"{context} {number} {line}\n" for line in range(LINES))


async def main(data: Path, runtime: str) -> None:
    async with build(load({"SANDLOT_DATA_DIR": str(data)})) as host:
        await host.create(SessionSpec(session_id=SESSION, runtime=runtime))
        for context in range(CONTEXTS):
            await host.create_context(ContextRequest(SESSION, context_id=f"k-{context}"))
        print("ready", flush=True)
        for number in range(RUNS):
            for context in range(CONTEXTS):
                name = f"r-{context}-{number}"
                request = CodeRequest(
                    SESSION, code_of(context, number), context_id=f"k-{context}", execution_id=name, detach=True
                )
                async with host.run_code(request):
                    print(name, flush=True)
        await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
