"""What `same_bits.py` keeps of a case, as plain data that JSON holds without loss, and how two records are compared."""

from __future__ import annotations

import base64
import enum
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

NUMBERS = re.compile(r"\d+(\.\d+)?(e[-+]?\d+)?")
ADDRESSES = re.compile(r"0x[0-9a-f]{6,}")
COUNTED = (
    *("slots", "legs", "audits", "screened", "verified", "rejected", "shadowed", "shadow_ready"),
    *("repacks", "refills", "frozen", "narrowed", "static_slots", "widths"),
)
"""Fields of a ledger that are compared beside depths, choices and the account of the rescue."""
SCHEDULE = ("audits", "screened", "repacks", "refills", "frozen", "widths", "executed", "choices", "static_slots")
"""Fields of a ledger that say when lanes were audited and repacked."""
ABSENT = "(not in this state)"
"""What is recorded of a field that a state does not have."""
RTOL = 1e-5
"""Largest difference of potentials of a backend that is compared to rounding, relative to the largest entry."""


def record(value: Any) -> Any:
    """A value as plain data; two values are equal bit by bit if and only if their records are."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return ADDRESSES.sub("0x", value)
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Mapping):
        return {str(key): record(each) for key, each in value.items()}
    names = {cls.__name__ for cls in type(value).__mro__}
    if "Result" in names:
        return record_result(value)
    if "Ledger" in names:
        return record_ledger(value)
    if "Solution" in names:
        return {"results": [record(result) for result in value], "ledger": record(value.ledger)}
    if hasattr(value, "dtype"):
        return record_array(value)
    if isinstance(value, Sequence):
        return [record(each) for each in value]
    raise TypeError(f"nothing is known of how to record {type(value).__name__}")


def record_result(result: Any) -> dict[str, Any]:
    fields = ("ticket", "status", "message", "depth", "arithmetic", "acceleration", "rescued", "widened", "streamed")
    row = {name: record(getattr(result, name, ABSENT)) for name in fields}
    row["residual"] = {name: record(float(getattr(result.residual, name))) for name in ("row", "col", "band")}
    f, g = (None, None) if result.emitted is None else result.emitted
    return row | {"backend": result.backend.name, "f": record(f), "g": record(g)}


def record_ledger(ledger: Any) -> dict[str, Any]:
    row = {name: record(getattr(ledger, name, ABSENT)) for name in COUNTED}
    row["depths"] = [list(pair) for pair in ledger.depths.items()]
    row["choices"] = [[choice.what, choice.picked, choice.reason] for choice in ledger.choices]
    return row | {"rescue": record(ledger.rescue)}


def without_schedule(value: Any) -> Any:
    """A record without what says when lanes were audited and repacked.

    Of the ledger, slots, legs and depths remain; results of a stream are sorted by ticket.
    """
    if isinstance(value, list):
        rows = [without_schedule(each) for each in value]
        has_tickets = all(isinstance(row, dict) and "ticket" in row for row in rows)
        return sorted(rows, key=lambda row: row["ticket"]) if has_tickets else rows
    if not isinstance(value, dict):
        return value
    row = {name: without_schedule(each) for name, each in value.items()}
    if {"slots", "audits"} <= row.keys():
        row = {name: row[name] for name in row if name not in SCHEDULE}
        row["depths"] = sorted(row["depths"])
    return row


def record_array(array: Any) -> dict[str, Any]:
    """Library, dtype, shape and bytes of an array, and whether it lies on another device."""
    library, device = type(array).__module__.partition(".")[0], ""
    if library == "torch":
        device, array = str(array.device), array.detach().cpu().numpy()
    plain = np.ascontiguousarray(np.asarray(array))
    text = base64.b64encode(plain.tobytes()).decode()
    kind = "jax" if library == "jaxlib" else library
    return {"array": f"{kind} {plain.dtype} {device}".strip(), "shape": list(np.shape(array)), "content": text}


def record_events(events: Sequence[Any]) -> dict[str, Any]:
    """How often an event of each class was seen, and its salient fields in the order in which they were seen."""
    fields: dict[str, list[Any]] = {}
    for event in events:
        names = getattr(event, "_fields", None) or tuple(getattr(event, "__dataclass_fields__", ()))
        plain = {name: salient(getattr(event, name)) for name in names if name != "path"}
        row = {name: value for name, value in plain.items() if value is not None}
        fields.setdefault(type(event).__name__, []).append(row)
    return {"counts": dict(Counter(type(event).__name__ for event in events)), "fields": fields}


def salient(value: Any) -> Any:
    """Numbers, texts, statuses and tuples of them; None for everything else."""
    if isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (list, tuple)):
        parts = [salient(each) for each in value]
        return None if None in parts else parts
    return None


# Comparison.


def differences(old: Any, new: Any, stride: int = 0, path: str = "") -> Iterator[str]:
    """Every place where two records differ, with both values.

    Args:
        old: A record.
        new: Another.
        stride: 0: all bits must be equal. Otherwise numbers are compared to rounding, and a depth within one stride.
        path: Where the records lie in those that contain them.
    """
    if type(old) is not type(new):
        yield f"{path}: {shown(old)} -> {shown(new)}"
    elif isinstance(old, dict):
        yield from dict_differences(old, new, stride, path)
    elif isinstance(old, list):
        if len(old) != len(new):
            yield f"{path}: {len(old)} entries -> {len(new)}"
            return
        if not any(isinstance(each, (dict, list)) for each in old):
            if old != new:
                yield f"{path}: {shown(old)} -> {shown(new)}"
            return
        for place, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, stride, f"{path}[{place}]")
    elif old != new:
        yield f"{path}: {shown(old)} -> {shown(new)}"


def dict_differences(old: dict[str, Any], new: dict[str, Any], stride: int, path: str) -> Iterator[str]:
    if old == new:
        return
    if "float" in old and "float" in new:
        if not (stride and math.isclose(*(float.fromhex(each["float"]) for each in (old, new)), rel_tol=RTOL)):
            yield f"{path}: {shown(old)} -> {shown(new)}"
    elif "array" in old and "array" in new:
        yield from array_differences(old, new, stride, path)
    else:
        if stride and "ticket" in old and "ticket" in new:
            old, new = rounded_result(old, new, stride)
        elif stride and "static_slots" in old and "static_slots" in new and old["depths"] != new["depths"]:
            # Depths are compared as those of the results; work follows from them.
            old, new = ({"choices": each["choices"]} for each in (old, new))
        for key in [*old, *(key for key in new if key not in old)]:
            where = f"{path}.{key}".lstrip(".")
            if key not in old or key not in new:
                yield f"{where}: {'only new' if key in new else 'only old'}, {shown(new.get(key, old.get(key)))}"
            else:
                yield from differences(old[key], new[key], stride, where)


def rounded_result(old: dict[str, Any], new: dict[str, Any], stride: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both results without what rounding may change: residuals, numbers in messages, and depths one stride apart."""
    skipped = {"residual"}
    apart = abs(old["depth"] - new["depth"])
    if 0 < apart <= stride:
        skipped |= {"depth", "f", "g"}
    pair = [{key: value for key, value in row.items() if key not in skipped} for row in (old, new)]
    for row in pair:
        row["message"] = NUMBERS.sub("#", row["message"])
    return pair[0], pair[1]


def array_differences(old: dict[str, Any], new: dict[str, Any], stride: int, path: str) -> Iterator[str]:
    """How many entries differ, and by how much."""
    kinds = [f"{each['array']} {each['shape']}" for each in (old, new)]
    if kinds[0] != kinds[1]:
        yield f"{path}: {kinds[0]} -> {kinds[1]}"
        return
    one, other = (np.frombuffer(base64.b64decode(each["content"]), each["array"].split()[1]) for each in (old, new))
    if stride and one.dtype.kind != "f":
        # Indices drawn from a plan may move where two cumulative sums differ in a last bit.
        return
    one, other = one.astype(np.float64), other.astype(np.float64)
    apart = ~((one == other) | (np.isnan(one) & np.isnan(other)))
    most = float(np.abs(one - other)[apart].max(initial=0.0))
    largest = float(np.abs(one[np.isfinite(one)]).max(initial=0.0))
    if stride and np.array_equal(np.isfinite(one), np.isfinite(other)) and most <= RTOL * largest:
        return
    yield f"{path}: {int(apart.sum())} of {len(one)} entries differ, by at most {most:.3g} (largest {largest:.3g})"


def shown(value: Any) -> str:
    """A record as short text."""
    if isinstance(value, dict) and "float" in value:
        return f"{float.fromhex(value['float'])!r}"
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}..."


def count_problems(node: Any) -> int:
    """Results in a record."""
    if isinstance(node, dict):
        return 1 if "ticket" in node else sum(map(count_problems, node.values()))
    return sum(map(count_problems, node)) if isinstance(node, list) else 0


def count_statuses(node: Any) -> Counter[str]:
    """Statuses of all results in a record."""
    if isinstance(node, dict):
        if "ticket" in node:
            return Counter([node["status"]])
        node = list(node.values())
    return sum(map(count_statuses, node), Counter()) if isinstance(node, list) else Counter()
