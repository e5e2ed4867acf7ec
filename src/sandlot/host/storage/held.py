"""What is read now stays, although everyone else has given it up."""

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager


class Held:
    """Names, each as often as someone holds it."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def __contains__(self, name: str) -> bool:
        return name in self._counts

    @contextmanager
    def holding(self, names: Sequence[str], let_go: Callable[[str], None]) -> Generator[None]:
        """`let_go` is told of each of them afterwards: others may hold it still."""
        self._counts.update(names)
        try:
            yield
        finally:
            for name in names:
                self._counts[name] -= 1
                if not self._counts[name]:
                    del self._counts[name]
            for name in dict.fromkeys(names):
                let_go(name)
