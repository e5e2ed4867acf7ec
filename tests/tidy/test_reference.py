"""The reference says what the code says."""

import pytest

from tools import gen_reference

PAGES = gen_reference.generate()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_current(name: str) -> None:
    assert (gen_reference.TARGET / name).read_text() == PAGES[name], "run `make gen`"


def test_no_page_is_left_over() -> None:
    assert {page.name for page in gen_reference.TARGET.iterdir()} == set(PAGES)


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("sdk.md", "#### Sandbox.create"),
        ("sdk.md", "background: bool = False"),
        ("cli.md", "## sandlot cp"),
        ("configuration.md", "| `SANDLOT_DATA_DIR` |"),
        ("errors.md", "| `session_not_found` | `SessionNotFound < NotFound` |"),
    ],
)
def test_the_generator_sees_the_code(page: str, told: str) -> None:
    """An empty page would be current, too."""
    assert told in PAGES[page]
