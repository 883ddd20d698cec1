"""Every field of a Problem is carried by journals, by the fleet and by files; and normal forms have one source."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.cli.files import read_problems
from drainsinkhorn.fleet.wire import Unsendable, plain_problem, receive, send
from drainsinkhorn.run.journal import fingerprint
from drainsinkhorn.run.lists import validate_list
from drainsinkhorn.run.stack import validate_stack
from drainsinkhorn.run.validate import validate
from tests.outside.costs import Uphill

NAMES = [field.name for field in dataclasses.fields(ds.Problem)]
RNG = np.random.default_rng(0)
BASE = ds.Problem(eps=0.5, x=RNG.normal(size=(4, 2)), y=RNG.normal(size=(5, 2)))
GENERAL = dataclasses.replace(BASE, cost=ds.Cost("cosine", 3.0))
"""A problem that is sent field by field; BASE, of float arrays and a cost by name, is sent as it is."""
POTENTIALS = ds.Potentials(RNG.normal(size=4), RNG.normal(size=5))
WEIGHTS = [RNG.dirichlet(np.ones(size)) for size in (4, 5)]
MATRIX = RNG.uniform(size=(4, 5))

CHANGES: dict[str, list[dict[str, Any]]] = {
    "eps": [{"eps": 0.7}, {"eps": ds.falling([2.0, 0.7])}, {"eps": ds.falling([2.0, 0.7], of="std", cycles=3)}],
    "x": [{"x": RNG.normal(size=(4, 2))}, {"x": np.float32([[1, 2], [3, 4], [5, 6], [7, 8]])}],
    "y": [{"y": RNG.normal(size=(5, 2))}],
    "a": [{"a": WEIGHTS[0]}],
    "b": [{"b": WEIGHTS[1]}],
    "tol": [{"tol": 1e-5}],
    "init": [{"init": POTENTIALS}, {"init": "zero"}],
    "cost": [
        {"cost": ds.Cost("euclidean", 2.0)},
        {"cost": "cosine"},
        {"cost": ds.Cost(ds.Formula("SqDist(x, y)"), 3.0)},
        {"cost": MATRIX, "x": None, "y": None},
    ],
    "chain": [{"chain": "k"}],
    "rho": [{"rho": (0.5, 2.0)}, {"rho": 0.75}, {"rho": (float("inf"), 2.0)}, {"rho": (None, 3.0)}],
    "max_depth": [{"max_depth": 3}],
}
"""Other values of each field than those of BASE, of every kind that the field takes. A new field needs an entry."""

NOT_SENT = {"chain": "the fleet keeps chains in order itself, and its workers need not know of them"}
"""Fields that do not travel to workers, and why."""

FILES: dict[str, dict[str, Any]] = {
    "eps": {"eps": 0.7},
    "x": {"x": CHANGES["x"][0]["x"]},
    "y": {"y": CHANGES["y"][0]["y"]},
    "a": {"a": WEIGHTS[0]},
    "b": {"b": WEIGHTS[1]},
    "tol": {"tol": 1e-5},
    "init": {"f": POTENTIALS.f, "g": POTENTIALS.g},
    "cost": {"cost": "euclidean", "scale": 2.0},
    "rho": {"rho": np.array([[0.5, 2.0]])},
}
"""Keys of a file that hold the first of CHANGES."""

NOT_IN_FILES = {
    "chain": "problems of a file are independent; docs/guides/command-line.md has no key for it",
    "max_depth": "one depth limit for a file is an option of the command",
}
"""Fields that files do not have, and why."""

CASES = [(name, change) for name, changes in CHANGES.items() for change in changes]


def changed(change: dict[str, Any], base: ds.Problem[Any] = BASE) -> ds.Problem[Any]:
    return dataclasses.replace(base, **change)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, (tuple, list)):
        return isinstance(other, (tuple, list)) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and one == other


def test_every_field_has_an_entry() -> None:
    assert sorted(CHANGES) == sorted(NAMES)
    assert sorted([*FILES, *NOT_IN_FILES]) == sorted(NAMES)
    assert set(NOT_SENT) < set(NAMES)
    for name, change in CASES:
        assert not same(getattr(BASE, name), change[name]), f"{name} is not changed, so that nothing is shown"


def test_fingerprints_differ_in_every_field() -> None:
    problems = [BASE, *(changed(change) for _, change in CASES), changed({"cost": Uphill(1.0)})]
    problems.append(changed({"cost": Uphill(2.0)}))
    assert len({fingerprint(problem) for problem in problems}) == len(problems)
    for problem in problems:
        copy = {name: getattr(problem, name) for name in NAMES}
        copy = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in copy.items()}
        assert fingerprint(ds.Problem(**copy)) == fingerprint(problem), "equal problems have equal fingerprints"


@pytest.mark.parametrize("change", [change for _, change in CASES], ids=[name for name, _ in CASES])
def test_a_journal_tells_problems_apart_by_every_field(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    settings: dict[str, Any] = {"backend": "reference", "journal": path, "max_depth": 5, "rescue": False, "warn": False}
    (first,) = ds.solve([BASE], **settings)
    (again,) = ds.solve([BASE], **settings)
    assert same(again.potentials, first.potentials)
    with pytest.raises(ds.DrainError, match="problem 0 is not the one that the journal"):
        ds.solve([changed(change)], **settings)


@pytest.mark.parametrize("base", [BASE, GENERAL], ids=["plain", "general"])
@pytest.mark.parametrize(("name", "change"), CASES, ids=[name for name, _ in CASES])
def test_workers_receive_every_field(name: str, change: dict[str, Any], base: ds.Problem[Any]) -> None:
    problem = changed(change, base)
    (received,) = receive(send([0], [problem]))
    for field in NAMES:
        kept = same(getattr(received, field), getattr(problem, field))
        assert kept == (field not in NOT_SENT or field != name), f"{field} after {name} was changed"
    plain = plain_problem(problem)
    assert all(same(getattr(plain, field), getattr(problem, field)) for field in NAMES), "the fleet keeps all of it"


def test_a_cost_of_ones_own_does_not_travel() -> None:
    with pytest.raises(Unsendable, match="the cost Uphill does not travel to the workers of a fleet"):
        send([0], [changed({"cost": Uphill()})])


@pytest.mark.parametrize("name", NAMES)
def test_files_hold_every_field(name: str, tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    keys = {"x": BASE.x, "y": BASE.y, "eps": BASE.eps}
    if name in NOT_IN_FILES:
        np.savez(path, **keys, **{name: "k"})
        with pytest.raises(ds.DrainError, match=f"unknown key '{name}'"):
            read_problems(path)
        return
    np.savez(path, **{**keys, **FILES[name]})
    (problem,) = read_problems(path)
    for field in NAMES:
        value = CHANGES[name][0][field] if field == name else getattr(BASE, field)
        found = getattr(problem, field)
        if field == "cost" and field != name:
            assert found in (value, ds.Cost(value))
        elif isinstance(value, float):
            assert float(found) == value
        else:
            assert same(found, value), field


def test_problems_become_instances_in_one_place() -> None:
    """Of the modules that know Problems one builds Instances, by one call. Others call `validate`."""
    root, builders = Path(ds.__file__).parent, dict[str, int]()
    for path in root.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        calls = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        names = [alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names]
        if "Instance" in calls and "Problem" in names:
            builders[path.relative_to(root).as_posix()] = calls.count("Instance")
    assert builders == {"run/stack.py": 1}


@pytest.mark.parametrize("init", ["auto", "gaussian", "zero"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_stack_is_validated_as_its_problems_are(init: str, dtype: str) -> None:
    x, y = (RNG.normal(size=(3, size, 2)).astype(dtype) for size in (4, 5))
    stack = ds.problems(x, y, eps=[0.1, 0.2, 0.3], cost=ds.Cost("sqeuclidean", 2.0))
    together = validate_stack(stack, 1e-3, 0.9, init)
    assert together is not None
    for problem, instance in zip(stack, together, strict=True):
        alone = validate(problem, 1e-3, 0.9, init)
        for field in dataclasses.fields(ds.Instance):
            assert same(getattr(instance, field.name), getattr(alone, field.name)), field.name


@pytest.mark.parametrize(("name", "change"), CASES, ids=[f"{name}-{place}" for place, (name, _) in enumerate(CASES)])
def test_a_list_is_validated_as_its_problems_are(name: str, change: dict[str, Any]) -> None:
    """Whatever field one problem of a list has, the list gives the normal forms of its problems, or none."""
    for problems in ([BASE, changed(change)], [changed(change), BASE], [changed(change), changed(change)]):
        together = validate_list(problems, 1e-3, 0.9, "auto")
        for problem, instance in zip(problems, together or (), strict=together is not None):
            alone = validate(problem, 1e-3, 0.9, "auto")
            for field in dataclasses.fields(ds.Instance):
                assert same(getattr(instance, field.name), getattr(alone, field.name)), field.name
    assert validate_list([BASE, BASE], 1e-3, 0.9, "auto") is not None
