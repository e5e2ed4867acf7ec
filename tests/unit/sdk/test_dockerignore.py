"""Rules of `.dockerignore`, as Docker's own documentation has them."""

import pytest

from sandlot.model import InvalidArgument
from sandlot.sdk.dockerignore import DockerIgnore


@pytest.mark.parametrize(
    ("rules", "ignored", "kept"),
    [
        ("*/temp*", ["some/temporary.txt", "some/temp"], ["temp", "a/b/temp"]),
        ("*/*/temp*", ["a/b/temporary.txt"], ["a/temp"]),
        ("temp?", ["tempa", "tempb"], ["temp", "tempab", "x/tempa"]),
        ("**/*.go", ["a.go", "a/b/c.go"], ["a.gox"]),
        ("*.md\n!README*.md\nREADME-secret.md", ["x.md", "README-secret.md"], ["README.md", "README-a.md", "d/x.md"]),
        ("/foo/bar", ["foo/bar", "foo/bar/deep"], ["bar", "x/foo/bar"]),
        ("foo/\n", ["foo", "foo/x"], ["foox"]),
        ("a\n!a/b", ["a", "a/c"], ["a/b", "a/b/c"]),
        ("[ab].txt", ["a.txt"], ["c.txt"]),
        ("a\\*b", ["a*b"], ["axb"]),
        ("**", ["x", "x/y"], []),
        ("# a comment\n\n.\n", [], ["x", "# a comment"]),
        ("a/../b", ["b"], ["a"]),
    ],
)
def test_rules(rules: str, ignored: list[str], kept: list[str]) -> None:
    found = DockerIgnore(rules)
    assert [path for path in ignored if not found.ignores(path)] == []
    assert [path for path in kept if found.ignores(path)] == []


def test_what_is_no_rule() -> None:
    with pytest.raises(InvalidArgument, match="line 2"):
        DockerIgnore("x\n!")
    with pytest.raises(InvalidArgument, match="line 1"):
        DockerIgnore("[z-a]")
