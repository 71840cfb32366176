"""The stub of the extension names what the extension has, with the same parameters, and nothing else."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mm_libtorch_encoder import _native

OBJECT = set(dir(object)) | {"__module__", "__weakref__"}


@pytest.fixture(scope="module")
def stub(package: Path) -> dict[str, ast.stmt]:
    """The stub's public names and their definitions."""
    tree = ast.parse((package / "_native.pyi").read_text("utf-8"))
    found: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node
    return found


def public(names: Any) -> set[str]:
    return {name for name in names if not name.startswith("_") or name == "__version__"}


def parameters(function: ast.FunctionDef, bound: bool) -> list[tuple[str, str, bool]]:
    """(name, kind, has a default) of each parameter."""
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    required = len(plain) - len(arguments.defaults)
    rows = [(item.arg, "positional", index >= required) for index, item in enumerate(plain)]
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return rows[bound:] + [(item.arg, "keyword", default is not None) for item, default in keywords]


def real_parameters(function: Any) -> list[tuple[str, str, bool]]:
    kinds = {inspect.Parameter.KEYWORD_ONLY: "keyword"}
    signature = inspect.signature(function)
    rows = [
        (name, kinds.get(item.kind, "positional"), item.default is not item.empty)
        for name, item in signature.parameters.items()
    ]
    return [row for row in rows if row[0] != "self"]


def decorators(function: ast.FunctionDef) -> set[str]:
    return {node.id for node in function.decorator_list if isinstance(node, ast.Name)}


def test_names(stub: dict[str, ast.stmt]) -> None:
    listed = stub["__all__"]
    assert isinstance(listed, ast.Assign)
    assert set(ast.literal_eval(listed.value)) == set(_native.__all__)
    assert public(stub) == public(dir(_native)) == public(_native.__all__)


def test_functions(stub: dict[str, ast.stmt]) -> None:
    functions = {name: node for name, node in stub.items() if isinstance(node, ast.FunctionDef)}
    assert len(functions) > 20
    for name, node in functions.items():
        assert parameters(node, bound=False) == real_parameters(getattr(_native, name)), name


def test_classes(stub: dict[str, ast.stmt]) -> None:
    classes = {name: node for name, node in stub.items() if isinstance(node, ast.ClassDef)}
    assert len(classes) > 8
    for name, node in classes.items():
        real = getattr(_native, name)
        if issubclass(real, BaseException):
            assert [base.id for base in node.bases if isinstance(base, ast.Name)] == [real.__base__.__name__]
            continue
        members = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
        assert public(members) == public(vars(real)), name
        for member, function in members.items():
            there = inspect.getattr_static(real, member)
            if "property" in decorators(function):
                assert inspect.isgetsetdescriptor(there), f"{name}.{member}"
            elif member == "__new__":
                assert parameters(function, bound=True) == real_parameters(real), name
            elif member not in OBJECT:
                static = "staticmethod" in decorators(function)
                assert isinstance(there, staticmethod) == static, f"{name}.{member}"
                assert parameters(function, bound=not static) == real_parameters(getattr(real, member)), (
                    f"{name}.{member}"
                )
        if "__new__" not in members:
            with pytest.raises(TypeError):
                real()


def test_everything_is_documented(stub: dict[str, ast.stmt]) -> None:
    for name, node in stub.items():
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            assert ast.get_docstring(node), name
            assert getattr(_native, name).__doc__, name


def test_mypy_agrees(tmp_path: Path) -> None:
    """mypy's own comparison of a stub with the module that it describes."""
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    command = [sys.executable, "-m", "mypy.stubtest", "mm_libtorch_encoder._native"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
