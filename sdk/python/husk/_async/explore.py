"""Branches of a sandbox: forks that try something each, are scored, and of which the best stay. Used by `Sandbox.explore`; it
makes no requests of its own. Whatever happens, no fork is left over that the caller was not given.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, List, Union

from ..errors import HuskError
from ._io import every, outcome
from .processes import Command

if TYPE_CHECKING:
    from .sandbox import AsyncSandbox

Plan = Union[Command, Callable[["AsyncSandbox"], Any]]
Score = Union[Command, Callable[["AsyncSandbox", Any], Any]]


@dataclass
class AsyncBranch:
    """One plan, and what came of it."""

    plan: Plan
    sandbox: AsyncSandbox  # the fork; it has ended unless `kept`
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


async def _try(branch: AsyncBranch, score: Score, deadline: float | None) -> None:
    left = None if deadline is None else deadline - time.monotonic()
    if left is not None and left <= 0:
        branch.error = "the budget was used up before it began"
        return
    if callable(branch.plan):
        branch.result = await outcome(branch.plan(branch.sandbox))
    else:
        branch.result = await branch.sandbox.exec(branch.plan, timeout_seconds=left)
        if not branch.result.ok:
            branch.error = f"the command ended with {branch.result.exit_code}"
            return
    if callable(score):
        found = await outcome(score(branch.sandbox, branch.result))
        branch.score = None if found is None else float(found)
        branch.error = "it was given no score" if found is None else None
        return
    left = None if deadline is None else max(deadline - time.monotonic(), 1)
    said = await branch.sandbox.exec(score, timeout_seconds=left)
    if not said.ok:
        branch.error = f"the scoring command ended with {said.exit_code}"
        return
    try:
        branch.score = _number(said.stdout)
    except (StopIteration, ValueError):
        branch.error = "the scoring command printed no number"


async def _run(branch: AsyncBranch, score: Score, deadline: float | None) -> None:
    try:
        await _try(branch, score, deadline)
    except Exception as error:  # a plan is the caller's: one that fails is one that lost
        branch.error = f"{type(error).__name__}: {error}"


async def _end(branch: AsyncBranch) -> None:
    try:
        await branch.sandbox.kill()
    except HuskError:
        pass  # it has ended already, or its TTL ends it


async def explore(
    sandbox: AsyncSandbox,
    plans: Sequence[Plan],
    score: Score,
    keep: int,
    budget: float | None,
    parallel: int,
    promote: bool | None,
) -> List[AsyncBranch]:
    if not plans:
        raise ValueError("explore needs at least one plan")
    if keep < 0 or parallel < 1 or (promote and keep != 1):
        raise ValueError("keep is 0 or more, parallel 1 or more, and only one branch can be promoted")
    deadline = None if budget is None else time.monotonic() + budget
    forks = await sandbox.fork(len(plans))
    branches = [AsyncBranch(plan, fork) for plan, fork in zip(plans, forks)]
    done = False
    try:
        await every([lambda branch=branch: _run(branch, score, deadline) for branch in branches], parallel)
        branches.sort(key=lambda branch: -math.inf if branch.score is None else branch.score, reverse=True)
        for branch in branches[:keep]:
            branch.kept = branch.score is not None
        await every([lambda branch=branch: _end(branch) for branch in branches if not branch.kept], parallel)
        if keep == 1 and branches[0].kept and promote is not False:
            await branches[0].sandbox.promote(keep=True)
            branches[0].sandbox = sandbox
            await sandbox.refresh()
        done = True
    finally:
        if not done:
            await every([lambda branch=branch: _end(branch) for branch in branches if not branch.kept], parallel)
    return branches
