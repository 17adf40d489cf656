"""What can go wrong, one class per thing a program may want to do about it.

Everything raised by this package is a HuskError. Those that come from the server carry its code, the field of the
request that was wrong and the request id to look for in the server's log. Messages never hold tokens or environment
values.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .models import CodeResult, ExecResult


class HuskError(Exception):
    """The base of all of them. `hint` says what to do about it, where that is known."""

    code = "internal"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        status: int | None = None,
        field: str | None = None,
        hint: str | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.status = status
        self.field = field
        self.hint = hint
        self.request_id = request_id

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class InvalidError(HuskError):
    """The request is wrong; `field` names the argument."""

    code = "invalid"


class AuthenticationError(HuskError):
    """No token, or one that is unknown, expired or revoked."""

    code = "unauthorized"


class ForbiddenError(HuskError):
    """The token is good, but not for this."""

    code = "forbidden"


class NotFoundError(HuskError):
    """No such sandbox, snapshot, template, process or file."""

    code = "not_found"


class ConflictError(HuskError):
    """The state of the thing does not allow it, or the name is taken."""

    code = "conflict"


class GoneError(HuskError):
    """The sandbox has ended."""

    code = "gone"


class LimitError(HuskError):
    """A quota or a limit of the host is reached."""

    code = "limit"


class TooLargeError(HuskError):
    """More bytes than the server takes in one request."""

    code = "too_large"


class TimedOutError(HuskError, builtins.TimeoutError):
    """It took longer than it may. A command that ran into its own limit is no error: see ExecResult.timed_out."""

    code = "timeout"


class UnavailableError(HuskError):
    """The server, or what it needs on its host, is not ready; trying again later may help."""

    code = "unavailable"


class ServerError(HuskError):
    """The server failed. `request_id` finds the reason in its log."""

    code = "internal"


class ConnectionFailedError(HuskError, builtins.ConnectionError):
    """The server cannot be reached, or the connection broke."""

    code = "connection"

    def __init__(self, message: str, *, sent: bool = False, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.sent = sent  # whether the server may have seen the request


class CommandError(HuskError):
    """A command ended with another exit code than 0, and check=True was given. `result` has its output."""

    code = "command"

    def __init__(self, message: str, result: ExecResult) -> None:
        super().__init__(message)
        self.result = result


class CodeError(HuskError):
    """Code raised an error, and check=True was given. `result` has the traceback and the output."""

    code = "code"

    def __init__(self, message: str, result: CodeResult) -> None:
        super().__init__(message)
        self.result = result


_BY_CODE: dict[str, type[HuskError]] = {
    kind.code: kind
    for kind in (
        InvalidError,
        AuthenticationError,
        ForbiddenError,
        NotFoundError,
        ConflictError,
        GoneError,
        LimitError,
        TooLargeError,
        TimedOutError,
        UnavailableError,
        ServerError,
    )
}
_BY_STATUS = {
    400: "invalid",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "invalid",
    409: "conflict",
    410: "gone",
    413: "too_large",
    429: "limit",
    503: "unavailable",
    504: "timeout",
}


def error_from(document: Any, status: int | None = None, request_id: str | None = None) -> HuskError:
    """The exception for an error document; for anything else (a proxy's page) one that tells the status."""
    error = document.get("error") if isinstance(document, dict) else None
    if not isinstance(error, dict):
        code = _BY_STATUS.get(status or 0, "internal")
        message = f"the server answered {status} without saying why; is HUSK_URL the address of a Husk server?"
        return _BY_CODE[code](message, code=code, status=status, request_id=request_id)
    code = str(error.get("code") or "internal")
    kind = _BY_CODE.get(code) or _BY_CODE[_BY_STATUS.get(status or 0, "internal")]
    hint = error.get("hint")
    if kind is AuthenticationError:  # the server's hint is for those who write requests by hand
        hint = "set HUSK_TOKEN to a token made with `husk token create`"
    return kind(
        str(error.get("message") or code),
        code=code,
        status=status,
        field=error.get("field"),
        hint=hint,
        request_id=request_id,
    )
