/**
 * What can go wrong, as a small hierarchy: every failure of a call is a HuskError, its class says what kind it was, and its
 * message what to do about it.
 */

/** The error document of the API. */
export interface ErrorDetail {
  code: string;
  message: string;
  field?: string | null;
  hint?: string | null;
}

export class HuskError extends Error {
  /** The API's word for it: "invalid", "not_found", … */
  readonly code: string;
  /** HTTP status; 0 when no answer came. */
  readonly status: number;
  /** The request in the server's log. */
  readonly requestId: string | undefined;

  constructor(message: string, options: { code?: string; status?: number; requestId?: string; cause?: unknown } = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = new.target.name;
    this.code = options.code ?? "internal";
    this.status = options.status ?? 0;
    this.requestId = options.requestId;
  }
}

/** Something in the call is wrong; `field` names it. */
export class InvalidError extends HuskError {
  field: string | null = null;
}
/** No token, or one that is wrong, expired or revoked. */
export class AuthenticationError extends HuskError {}
/** The token does not allow it. */
export class ForbiddenError extends HuskError {}
export class NotFoundError extends HuskError {}
/** It exists already, or is in a state that does not allow this. */
export class ConflictError extends HuskError {}
/** A limit or quota was hit. */
export class LimitError extends HuskError {}
export class TimeoutError extends HuskError {}
/** The sandbox has ended. */
export class GoneError extends HuskError {}
/** The server, or something it needs, does not work right now. */
export class UnavailableError extends HuskError {}
/** The server could not be reached. */
export class ConnectionError extends HuskError {}

/** `exec` with `check: true`: the command ran, and failed. */
export class ExecError extends HuskError {
  constructor(
    readonly command: string,
    readonly result: { exitCode: number; stdout: string; stderr: string; outOfMemory?: boolean; denied?: { text?: string }[] },
  ) {
    const said = (result.stderr || result.stdout).trim().split("\n").slice(-5).join("\n");
    const blocked = (result.denied ?? []).map(({ text }) => `\n${text ?? ""}`).join("");
    const why = result.outOfMemory ? " (out of memory: Sandbox.create({ memory }) gives it more)" : "";
    super(`'${command}' ended with exit code ${result.exitCode}${why}${said ? `: ${said}` : ""}${blocked}`, { code: "exec" });
  }
}

const classes: Record<string, typeof HuskError> = {
  invalid: InvalidError,
  too_large: InvalidError,
  method_not_allowed: InvalidError,
  unauthorized: AuthenticationError,
  forbidden: ForbiddenError,
  not_found: NotFoundError,
  conflict: ConflictError,
  limit: LimitError,
  timeout: TimeoutError,
  gone: GoneError,
  unavailable: UnavailableError,
};

export function errorFrom(detail: ErrorDetail, status: number, requestId?: string): HuskError {
  const kind = classes[detail.code] ?? HuskError;
  const text = detail.hint ? `${detail.message}; ${detail.hint}` : detail.message;
  const error = new kind(text, { code: detail.code, status, ...(requestId ? { requestId } : {}) });
  if (error instanceof InvalidError) error.field = detail.field ?? null;
  return error;
}
