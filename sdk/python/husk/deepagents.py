"""A backend for LangChain's deepagents: the agent's loop runs here, its commands and files are in a sandbox.

    from deepagents import create_deep_agent
    from husk import Sandbox
    from husk.deepagents import HuskSandbox

    with Sandbox.create(template="agent") as sandbox:
        agent = create_deep_agent(model=…, backend=HuskSandbox(sandbox))

Needs the package `deepagents`, which is loaded only when this module is. Its base class does listing, searching and
editing with commands; all it asks of us is to run one, and to carry files.
"""

from __future__ import annotations

try:
    from deepagents.backends.protocol import (
        ExecuteResponse,
        FileDownloadResponse,
        FileUploadResponse,
    )
    from deepagents.backends.sandbox import BaseSandbox
except ImportError as error:
    raise ImportError("husk.deepagents needs the package deepagents: pip install './sdk/python[deepagents]'") from error

from ._sync.sandbox import Sandbox
from .errors import (
    ConflictError,
    ForbiddenError,
    HuskError,
    InvalidError,
    NotFoundError,
    ServerError,
)

DEFAULT_SECONDS = 30 * 60


class HuskSandbox(BaseSandbox):
    """A sandbox as deepagents sees one. Who made the sandbox ends it."""

    def __init__(self, sandbox: Sandbox, *, timeout_seconds: int = DEFAULT_SECONDS) -> None:
        self._sandbox = sandbox
        self._timeout_seconds = timeout_seconds

    @property
    def id(self) -> str:
        return self._sandbox.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Runs a command line; both its streams as one text. `timeout`: in seconds; 0: no limit."""
        limit = self._timeout_seconds if timeout is None else timeout
        # One pipe for both streams keeps them in the order in which they were written.
        wrapped = ["/bin/sh", "-c", 'exec 2>&1; exec /bin/sh -c "$1"', "sh", command]
        result = self._sandbox.exec(wrapped, timeout_seconds=limit or None)
        output = result.stdout
        if result.timed_out:
            output += f"\n[ended after {limit} seconds]"
        output += "".join(f"\n{line}" for line in result.blocked)
        return ExecuteResponse(output=output, exit_code=result.exit_code, truncated=result.stdout_lost > 0)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        answers = []
        for path, content in files:
            problem = None
            try:
                _check(path)
                self._sandbox.filesystem.write(path, content)
            except HuskError as failure:
                problem = self._problem(path, failure)
            answers.append(FileUploadResponse(path=path, error=problem))
        return answers

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        answers = []
        for path in paths:
            content, problem = None, None
            try:
                _check(path)
                content = self._sandbox.filesystem.read(path)
            except HuskError as failure:
                problem = self._problem(path, failure)
            answers.append(FileDownloadResponse(path=path, content=content, error=problem))
        return answers

    def _problem(self, path: str, failure: HuskError) -> str:
        """The word deepagents has for it, else the message. What is not about the file (the sandbox is gone, the server
        cannot be reached) is raised instead."""
        if not isinstance(failure, (NotFoundError, InvalidError, ConflictError, ForbiddenError, ServerError)):
            raise failure
        if isinstance(failure, NotFoundError):
            self._sandbox.refresh()  # raises when it is the sandbox that is not there
            return "file_not_found"
        if isinstance(failure, ForbiddenError) or "not permitted" in failure.message or "denied" in failure.message:
            return "permission_denied"
        if not path.startswith("/") or "\0" in path:
            return "invalid_path"
        return "is_directory" if self._is_directory(path) else failure.message

    def _is_directory(self, path: str) -> bool:
        try:
            return self._sandbox.filesystem.stat(path).is_dir
        except (NotFoundError, InvalidError, ConflictError):
            return False


def _check(path: str) -> None:
    if not path.startswith("/") or "\0" in path:
        raise InvalidError("a path begins with a slash", field="path")
