"""A notebook without a notebook: code that remembers, told as it comes. Run it with `python examples/notebook.py`."""

from sandlot import Sandbox

CELLS = (
    "import statistics\nreadings = [3.1, 2.9, 3.4, 30.0, 3.2]",
    "print('mean', round(statistics.mean(readings), 2))\nstatistics.median(readings)",
    "readings.index('three')",
    "readings.remove(30.0)\nround(statistics.mean(readings), 2)",
)


def main() -> None:
    with Sandbox.create() as sandbox:
        for cell in CELLS:
            done = sandbox.run_code(cell, on_stdout=lambda text: print(text, end=""))
            print(f"[{done.count}] {done.status}", done.text or (done.error.value if done.error else ""))
        # Another language, another context, the same files.
        sandbox.run_code("open('readings', 'w').write('\\n'.join(map(str, readings)))")
        lines = sandbox.run_code("sort -n readings | tail -1", language="bash")
        print("largest", lines.stdout, end="")


if __name__ == "__main__":
    main()
