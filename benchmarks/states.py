"""Processes that each run one state of the library, for scripts that compare two states.

A script starts itself once for each state, with PYTHONPATH set to the state's source folder, and exchanges lines of
JSON with it. Libraries may print: the child moves its standard output to standard error and keeps a pipe of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Answer = Callable[[dict[str, Any]], Any]


class State:
    """A process that has imported the library from one source folder and answers requests.

    Args:
        script: File that the process runs; it must call `serve`.
        source: Folder that contains the package `drainsinkhorn`.
        arguments: Command line of the script.
        environment: Variables to set beside those of this process.
    """

    def __init__(
        self, script: str, source: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        folder = Path(source).resolve()
        if not (folder / "drainsinkhorn").is_dir():
            raise SystemExit(f"{folder} has no package drainsinkhorn: pass the folder that contains it")
        self._name = str(source)
        self._process = subprocess.Popen(
            [sys.executable, script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {}), "PYTHONPATH": str(folder)},
        )
        imported = Path(self.receive()["library"]).resolve()
        if not imported.is_relative_to(folder):
            raise SystemExit(f"the process for {folder} imported {imported}")

    def send(self, request: dict[str, Any]) -> None:
        """Send a request without waiting for its answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise SystemExit(self._ended()) from None

    def receive(self) -> Any:
        """Wait for the answer to the oldest request that has none yet."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(self._ended())
        return json.loads(line)

    def ask(self, request: dict[str, Any]) -> Any:
        """Send a request and wait for its answer."""
        self.send(request)
        return self.receive()

    def close(self) -> None:
        """End the process and wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _ended(self) -> str:
        return f"the process of {self._name} ended with code {self._process.wait()}; its messages are above"


def ask_both(states: Sequence[State], request: dict[str, Any], *, together: bool = True) -> list[Any]:
    """The answers of all states, which work at the same time or one after the other."""
    if not together:
        return [state.ask(request) for state in states]
    for state in states:
        state.send(request)
    return [state.receive() for state in states]


def serve(answer: Answer) -> None:
    """Answer requests on standard input until it is closed; the first line says where the library was imported from."""
    import drainsinkhorn

    with os.fdopen(os.dup(1), "w") as pipe:
        os.dup2(2, 1)
        print(json.dumps({"library": drainsinkhorn.__file__}), file=pipe, flush=True)
        for line in sys.stdin:
            print(json.dumps(answer(json.loads(line))), file=pipe, flush=True)
