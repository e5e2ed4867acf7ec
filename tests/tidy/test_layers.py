"""The import graph is a star: parts know `model` and `contracts`, `wiring` knows the parts, entries know `wiring`."""

import ast
import graphlib
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "sandlot"

ENTRIES = {"cli", "sdk", "__main__"}
SHARED = {"model", "contracts", "clock", "tracing", "registry", "config", "patterns", "tools"}
# Parts with a rule of their own; every other part may import SHARED and itself. "sandlot" is the package's front door.
MAY_IMPORT = {
    "model": {"model"},
    "contracts": {"model", "contracts"},
    "conformance": {"model", "contracts", "conformance"},
    "patterns": {"model", "patterns"},
    "tools": {"model", "contracts", "tools"},
    "sandlot": {"model", "contracts", "sdk"},
    "attack": {"model", "contracts", "attack"},
    **{entry: SHARED | ENTRIES | {"wiring", "conformance", "attack", "sandlot"} for entry in ENTRIES},
}


@dataclass(frozen=True)
class Import:
    """One imported name, at one place."""

    where: str
    module: str
    target: str
    in_function: bool

    @property
    def part(self) -> str:
        return part_of(self.module)

    @property
    def is_own(self) -> bool:
        return self.target.split(".")[0] == "sandlot"

    def __str__(self) -> str:
        return f"{self.where}: {self.module} imports {self.target}"


def part_of(module: str) -> str:
    """The folder or file directly below the package: "host" for sandlot.host.journal."""
    return module.split(".")[1] if "." in module else module


def read(source: Path) -> list[Import]:
    """Every import of every module below source, late ones and those for the type checker included."""
    modules = {module_name(source, file): file for file in sorted(source.rglob("*.py"))}
    assert modules, f"no module below {source}: a check that reads nothing proves nothing"
    return [found for name, file in modules.items() for found in read_module(source, file, name, set(modules))]


def module_name(source: Path, file: Path) -> str:
    names = ["sandlot", *file.relative_to(source).with_suffix("").parts]
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def read_module(source: Path, file: Path, name: str, modules: set[str]) -> Iterator[Import]:
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]

    def visit(node: ast.AST, in_function: bool) -> Iterator[Import]:
        for target in targets(node, package, modules):
            where = f"src/sandlot/{file.relative_to(source)}:{getattr(node, 'lineno', 0)}"
            yield Import(where, name, target, in_function)
        inside = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside)

    return visit(ast.parse(file.read_text(), str(file)), in_function=False)


def targets(node: ast.AST, package: str, modules: set[str]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        # `from . import x` counts its dots from the package that holds the module.
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        origin = ".".join([*above, *([node.module] if node.module else [])])
        # `from a import b` imports module a.b where there is one, else a name out of a.
        full = [f"{origin}.{alias.name}" for alias in node.names]
        return [target if target in modules else origin for target in full]
    return []


def outside_star(imports: list[Import], parts: set[str] | None = None) -> list[str]:
    """Own imports that the star forbids, of the given parts or of all that have no test of their own below."""
    return [
        str(found)
        for found in imports
        if found.is_own
        and (found.part in parts if parts else found.part not in {"model", "contracts", "wiring"})
        and part_of(found.target) not in MAY_IMPORT.get(found.part, SHARED | {found.part})
    ]


def wiring_upward(imports: list[Import]) -> list[str]:
    above = ENTRIES | {"sandlot"}
    return [str(i) for i in imports if i.is_own and i.part == "wiring" and part_of(i.target) in above]


def wiring_users(imports: list[Import]) -> list[str]:
    allowed = ENTRIES | {"wiring"}
    return [str(i) for i in imports if i.is_own and part_of(i.target) == "wiring" and i.part not in allowed]


def third_party(imports: list[Import], parts: set[str]) -> list[str]:
    return [
        str(i)
        for i in imports
        if i.part in parts and not i.is_own and i.target.split(".")[0] not in sys.stdlib_module_names
    ]


def in_functions(imports: list[Import]) -> list[str]:
    return [str(i) for i in imports if i.is_own and i.in_function and i.module != "sandlot.registry"]


def cycle(imports: list[Import]) -> list[str]:
    """The imports that close one cycle, in order; empty when there is none."""
    graph: dict[str, set[str]] = {}
    for found in imports:
        if found.is_own:
            graph.setdefault(found.module, set()).add(found.target)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        path: list[str] = error.args[1]
        # graphlib lists each node before the one that depends on it.
        edges = [(user, used) for used, user in itertools.pairwise(path)]
        return [str(next(i for i in imports if (i.module, i.target) == edge)) for edge in edges]
    return []


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    return read(SOURCE)


def report(rule: str, offenders: list[str]) -> None:
    assert not offenders, "\n  ".join([rule, *offenders])


def test_model_imports_only_itself(imports: list[Import]) -> None:
    report("model imports the standard library and itself:", outside_star(imports, {"model"}))


def test_contracts_import_only_model(imports: list[Import]) -> None:
    report("contracts import the standard library, model and themselves:", outside_star(imports, {"contracts"}))


def test_model_and_contracts_need_no_library(imports: list[Import]) -> None:
    report("model and contracts import no third-party library:", third_party(imports, {"model", "contracts"}))


def test_parts_import_no_sibling(imports: list[Import]) -> None:
    report("a part imports model, contracts, clock, registry, config and itself:", outside_star(imports))


def test_wiring_imports_no_entry(imports: list[Import]) -> None:
    report("wiring imports parts, never an entry:", wiring_upward(imports))


def test_only_entries_import_wiring(imports: list[Import]) -> None:
    report("only cli, sdk and __main__ import wiring:", wiring_users(imports))


def test_no_own_import_inside_a_function(imports: list[Import]) -> None:
    report("own imports stand at the top of a module (late loading is for registry.py):", in_functions(imports))


def test_no_cycle(imports: list[Import]) -> None:
    report("modules import each other in a circle:", cycle(imports))


def test_the_checker_sees_violations(tmp_path: Path) -> None:
    source = {
        "__init__.py": "from sandlot.sdk import connect\n",
        "model/call.py": "import rich.table\nfrom sandlot import contracts\n",
        "contracts/__init__.py": "import json\n\nfrom .host import Host\n",
        "contracts/host.py": "import sandlot.rpc.client\nfrom sandlot.contracts import json\n",
        "rpc/client.py": "import uvloop\n\n\ndef late() -> None:\n    from ..host import service\n",
        "host/service.py": "from sandlot.model import call\nfrom sandlot.wiring import build\n",
        "wiring/__init__.py": "import sandlot.host.service\nimport sandlot.cli.main\n",
        "cli/main.py": "from sandlot.wiring import build\nfrom sandlot.host.service import Host\n",
        "registry.py": "def load() -> None:\n    import sandlot.model.call\n",
        "sdk.py": "import sandlot.wiring\n",
    }
    for name, text in source.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = read(tmp_path)

    def places(offenders: list[str]) -> list[str]:
        return [offender.removeprefix("src/sandlot/").partition(": ")[0] for offender in offenders]

    assert places(outside_star(found, {"model"})) == ["model/call.py:2"]
    assert places(outside_star(found, {"contracts"})) == ["contracts/host.py:1"]
    assert places(third_party(found, {"model", "contracts"})) == ["model/call.py:1"]
    assert places(outside_star(found)) == ["cli/main.py:2", "host/service.py:2", "rpc/client.py:5"]
    assert places(wiring_upward(found)) == ["wiring/__init__.py:2"]
    assert places(wiring_users(found)) == ["host/service.py:2"]
    assert places(in_functions(found)) == ["rpc/client.py:5"]
    assert sorted(places(cycle([i for i in found if i.part == "contracts"]))) == [
        "contracts/__init__.py:3",
        "contracts/host.py:2",
    ]
    assert cycle([i for i in found if i.part in {"model", "rpc", "sdk", "wiring"}]) == []
