# Made from husk/_async/explore.py by generate.py: edit it there.
"""Branches of a sandbox: forks that try something each, are scored, and of which the best stay. Used by `Sandbox.explore`; it
makes no requests of its own. Whatever happens, no fork is left over that the caller was not given.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, List, Union

from ..errors import HuskError
from ._io import every, outcome
from .processes import Command

if TYPE_CHECKING:
    from .sandbox import Sandbox

Plan = Union[Command, Callable[["Sandbox"], Any]]
Score = Union[Command, Callable[["Sandbox", Any], Any]]


@dataclass
class Branch:
    """One plan, and what came of it."""

    plan: Plan
    sandbox: Sandbox  # the fork; it has ended unless `kept`
    result: Any = None  # of the command (ExecResult), or of the function
    score: float | None = None  # None: it failed
    error: str | None = None  # why there is no score
    kept: bool = False  # its sandbox lives, or took the place of its parent


def _number(text: str) -> float:
    lines = text.split("\n")
    found = float(next(line for line in reversed(lines) if line.strip()))
    if math.isnan(found):
        raise ValueError("not a number")
    return found


def _try(branch: Branch, score: Score, deadline: float | None) -> None:
    left = None if deadline is None else deadline - time.monotonic()
    if left is not None and left <= 0:
        branch.error = "the budget was used up before it began"
        return
    if callable(branch.plan):
        branch.result = outcome(branch.plan(branch.sandbox))
    else:
        branch.result = branch.sandbox.exec(branch.plan, timeout_seconds=left)
        if not branch.result.ok:
            branch.error = f"the command ended with {branch.result.exit_code}"
            return
    if callable(score):
        found = outcome(score(branch.sandbox, branch.result))
        branch.score = None if found is None else float(found)
        branch.error = "it was given no score" if found is None else None
        return
    left = None if deadline is None else max(deadline - time.monotonic(), 1)
    said = branch.sandbox.exec(score, timeout_seconds=left)
    if not said.ok:
        branch.error = f"the scoring command ended with {said.exit_code}"
        return
    try:
        branch.score = _number(said.stdout)
    except (StopIteration, ValueError):
        branch.error = "the scoring command printed no number"


def _run(branch: Branch, score: Score, deadline: float | None) -> None:
    try:
        _try(branch, score, deadline)
    except Exception as error:  # a plan is the caller's: one that fails is one that lost
        branch.error = f"{type(error).__name__}: {error}"


def _end(branch: Branch) -> None:
    try:
        branch.sandbox.kill()
    except HuskError:
        pass  # it has ended already, or its TTL ends it


def explore(
    sandbox: Sandbox,
    plans: Sequence[Plan],
    score: Score,
    keep: int,
    budget: float | None,
    parallel: int,
    promote: bool | None,
) -> List[Branch]:
    if not plans:
        raise ValueError("explore needs at least one plan")
    if keep < 0 or parallel < 1 or (promote and keep != 1):
        raise ValueError("keep is 0 or more, parallel 1 or more, and only one branch can be promoted")
    deadline = None if budget is None else time.monotonic() + budget
    forks = sandbox.fork(len(plans))
    branches = [Branch(plan, fork) for plan, fork in zip(plans, forks)]
    done = False
    try:
        every([lambda branch=branch: _run(branch, score, deadline) for branch in branches], parallel)
        branches.sort(key=lambda branch: -math.inf if branch.score is None else branch.score, reverse=True)
        for branch in branches[:keep]:
            branch.kept = branch.score is not None
        every([lambda branch=branch: _end(branch) for branch in branches if not branch.kept], parallel)
        if keep == 1 and branches[0].kept and promote is not False:
            branches[0].sandbox.promote(keep=True)
            branches[0].sandbox = sandbox
            sandbox.refresh()
        done = True
    finally:
        if not done:
            every([lambda branch=branch: _end(branch) for branch in branches if not branch.kept], parallel)
    return branches
