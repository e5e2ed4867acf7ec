"""The public packages export exactly what they say."""

import ast
import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

import pytest

import sandlot
import sandlot.contracts
import sandlot.model

PACKAGES = [sandlot, sandlot.model, sandlot.contracts]


def bound(package: ModuleType) -> set[str]:
    """Every public name that the text of the package binds, and `__version__`."""
    assert package.__file__
    names: set[str] = set()
    for node in ast.parse(Path(package.__file__).read_text()).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
    return {name for name in names if not name.startswith("_") or name == "__version__"}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_all_is_what_is_there(package: ModuleType) -> None:
    assert set(package.__all__) == bound(package)
    assert len(package.__all__) == len(set(package.__all__)), "a name stands there twice"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_name_can_be_imported(package: ModuleType) -> None:
    missing = [name for name in package.__all__ if not hasattr(package, name)]
    assert not missing


@pytest.mark.parametrize("package", [sandlot.model, sandlot.contracts], ids=lambda package: package.__name__)
def test_every_public_class_is_exported(package: ModuleType) -> None:
    """A class in a contract or a value that callers cannot name would be no part of the public face."""
    hidden: list[str] = []
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        for name, value in vars(module).items():
            if isinstance(value, type) and value.__module__ == module.__name__ and not name.startswith("_"):
                hidden += [f"{module.__name__}.{name}"] if name not in package.__all__ else []
    assert not hidden
