/**
 * A sandbox as Vercel's AI SDK takes one (`experimental_sandbox` of the package `ai`): its tools run commands and use files here.
 *
 *     import { sandboxSession } from "@husk/sdk/ai";
 *     const experimental_sandbox = await sandboxSession(sandbox);
 *     await generateText({ model, tools, experimental_sandbox, prompt });
 *
 * The shape is written down here, so this module neither loads nor needs the package; the tests compare it with the package's types.
 */
import * as path from "node:path/posix";

import { ConflictError, HuskError, InvalidError, NotFoundError } from "./errors.js";
import type { ExecEvent, Signal } from "./models.js";
import type { Process } from "./process.js";
import type { Sandbox } from "./sandbox.js";

export interface SandboxSessionOptions {
  /** Where commands start and relative paths begin: the sandbox's own default unless told. It is made if it is missing. */
  workingDirectory?: string;
  /** Whose commands and files they are: the template's own user where it has one, else root. */
  user?: string;
  /** For every command. */
  env?: Record<string, string>;
  /** What a tool may tell the model about the sandbox; a line of our own unless told. */
  description?: string;
}

export interface CommandOptions {
  command: string;
  workingDirectory?: string;
  env?: Record<string, string>;
  /** Aborting kills the command. */
  abortSignal?: Signal;
}

export interface PathOptions {
  path: string;
  abortSignal?: Signal;
}

export interface SessionProcess {
  readonly pid: number;
  readonly stdout: ReadableStream<Uint8Array>;
  readonly stderr: ReadableStream<Uint8Array>;
  wait(): Promise<{ exitCode: number }>;
  kill(): Promise<void>;
}

export interface WritableSessionProcess extends SessionProcess {
  readonly stdin: WritableStream<Uint8Array>;
}

interface Spawn {
  (options: CommandOptions & { stdin: true }): Promise<WritableSessionProcess>;
  (options: CommandOptions & { stdin?: false }): Promise<SessionProcess>;
  (options: CommandOptions & { stdin?: boolean }): Promise<SessionProcess | WritableSessionProcess>;
}

/** `Experimental_SandboxSession` of the package `ai`. What reads answers with null for a path that does not exist. */
export interface SandboxSession {
  readonly description: string;
  readonly run: (options: CommandOptions) => Promise<{ exitCode: number; stdout: string; stderr: string }>;
  readonly spawn: Spawn;
  readonly readFile: (options: PathOptions) => Promise<ReadableStream<Uint8Array> | null>;
  readonly readBinaryFile: (options: PathOptions) => Promise<Uint8Array | null>;
  /** Lines are counted from 1, both ends included. */
  readonly readTextFile: (options: PathOptions & { encoding?: string; startLine?: number; endLine?: number }) => Promise<string | null>;
  readonly writeFile: (options: PathOptions & { content: ReadableStream<Uint8Array> }) => Promise<void>;
  readonly writeBinaryFile: (options: PathOptions & { content: Uint8Array }) => Promise<void>;
  readonly writeTextFile: (options: PathOptions & { content: string; encoding?: string }) => Promise<void>;
  readonly stat: (options: PathOptions) => Promise<{ type: "file" | "directory" | "other"; size: number } | null>;
  readonly listDirectory: (options: PathOptions) => Promise<{ name: string; type: "file" | "directory" | "symlink" | "other" }[] | null>;
  readonly deleteFile: (options: PathOptions) => Promise<boolean>;
}

/** The sandbox as a session. Who made the sandbox ends it. */
export async function sandboxSession(sandbox: Sandbox, options: SandboxSessionOptions = {}): Promise<SandboxSession> {
  const user = options.user ?? ((await sandbox.exec(["id", "-nu", "1000"])).stdout.trim() || "root");
  const wanted = options.workingDirectory;
  if (wanted !== undefined && !(await sandbox.filesystem.exists(wanted))) await sandbox.filesystem.mkdir(wanted, { user });
  const { stdout } = await sandbox.exec("pwd", { cwd: wanted, user, check: true });
  return new Session(sandbox, stdout.replace(/\n$/, ""), user, options);
}

/** Every method is a property of its own, since tools take them apart: `const { run } = experimental_sandbox`. */
class Session implements SandboxSession {
  readonly description: string;

  constructor(
    private readonly sandbox: Sandbox,
    private readonly base: string,
    private readonly user: string,
    private readonly options: SandboxSessionOptions,
  ) {
    const { template } = sandbox.info;
    this.description =
      options.description ??
      `A Linux sandbox (template ${template}) of your own. Commands run as ${user} and start in ${base}, where relative paths begin. ` +
        "Files and processes last from one command to the next.";
  }

  private at(given: string): string {
    return path.resolve(this.base, given);
  }

  private command({ workingDirectory, env }: CommandOptions) {
    return { cwd: this.at(workingDirectory ?? "."), env: { ...this.options.env, ...env }, user: this.user };
  }

  // ---- commands ----

  readonly run = async (options: CommandOptions) => {
    const { exitCode, stdout, stderr } = await this.sandbox.exec(options.command, { ...this.command(options), signal: options.abortSignal });
    return { exitCode, stdout, stderr };
  };

  readonly spawn = (async (options: CommandOptions & { stdin?: boolean }) => {
    const { abortSignal: signal } = options;
    if (signal?.aborted) throw signal.reason;
    const events = this.sandbox.execStream(options.command, { ...this.command(options), keepStdin: options.stdin, killOnDisconnect: false });
    const first = await events.next();
    if (first.done || first.value.type !== "start") throw new HuskError("the process ended before it began", { code: "gone" });
    const spawned = follow(events, this.sandbox.process(first.value.pid), signal);
    return options.stdin ? { ...spawned.handle, stdin: spawned.stdin } : spawned.handle;
  }) as Spawn;

  // ---- files ----

  readonly readFile = (options: PathOptions) =>
    this.found(async () => {
      const pieces = this.sandbox.filesystem.stream(this.at(options.path), { signal: options.abortSignal });
      return readable(pieces, await pieces.next()); // the first piece tells whether there is a file
    });

  readonly readBinaryFile = (options: PathOptions) =>
    this.found(() => this.sandbox.filesystem.read(this.at(options.path), { signal: options.abortSignal }));

  readonly readTextFile = async (options: PathOptions & { encoding?: string; startLine?: number; endLine?: number }) => {
    const content = await this.readBinaryFile(options);
    if (content === null) return null;
    const text = new TextDecoder(options.encoding).decode(content);
    if (options.startLine === undefined && options.endLine === undefined) return text;
    const ending = ["\r\n", "\n", "\r"].find((each) => text.includes(each)) ?? "\n"; // as the package's own sandboxes count lines
    return text.split(ending).slice(Math.max((options.startLine ?? 1) - 1, 0), options.endLine).join(ending);
  };

  readonly writeFile = (options: PathOptions & { content: ReadableStream<Uint8Array> }) => this.write(options, chunks(options.content));

  readonly writeBinaryFile = (options: PathOptions & { content: Uint8Array }) => this.write(options, options.content);

  readonly writeTextFile = async (options: PathOptions & { content: string; encoding?: string }) => {
    const encoding = options.encoding ?? "utf-8";
    if (!Buffer.isEncoding(encoding)) throw new InvalidError(`text cannot be written as '${encoding}'; use utf-8, utf-16le or latin1`, { code: "invalid" });
    await this.write(options, Buffer.from(options.content, encoding));
  };

  private async write(options: PathOptions, content: Uint8Array | AsyncIterable<Uint8Array>): Promise<void> {
    await this.sandbox.filesystem.write(this.at(options.path), content, { user: this.user, signal: options.abortSignal });
  }

  readonly stat = (options: PathOptions) =>
    this.found(async () => {
      const { type, size } = await this.sandbox.filesystem.stat(this.at(options.path), { follow: true });
      return { type: type === "symlink" ? ("other" as const) : type, size };
    });

  readonly listDirectory = (options: PathOptions) =>
    this.found(async () => (await this.sandbox.filesystem.list(this.at(options.path))).map(({ name, type }) => ({ name, type })));

  readonly deleteFile = async (options: PathOptions) => {
    const target = this.at(options.path);
    const entry = await this.found(() => this.sandbox.filesystem.stat(target, { follow: false }));
    if (entry?.type === "directory") throw new ConflictError(`'${target}' is a directory`, { code: "conflict" });
    return entry !== null && (await this.found(() => this.sandbox.filesystem.remove(target).then(() => true))) !== null;
  };

  /** What `read` gives, or null when there is no such path. A sandbox that is not there is an error. */
  private async found<T>(read: () => Promise<T>): Promise<T | null> {
    try {
      return await read();
    } catch (error) {
      if (!(error instanceof NotFoundError)) throw error;
      await this.sandbox.refresh();
      return null;
    }
  }
}

/** The handle of a process whose events come. They are taken as they come, so that a reader of one stream need not read the other. */
function follow(events: AsyncGenerator<ExecEvent, void, undefined>, process: Process, signal: Signal | undefined) {
  const streams = { stdout: source(), stderr: source() };
  let ended = false;
  const kill = async () => {
    if (ended) return;
    await process.kill("KILL").catch((error: unknown) => {
      if (!ended && !(error instanceof NotFoundError || error instanceof ConflictError)) throw error; // it has just ended by itself
    });
  };
  const abort = () => void kill().catch(() => undefined);
  signal?.addEventListener("abort", abort, { once: true });
  if (signal?.aborted) abort();

  const done = (async () => {
    try {
      for await (const event of events) {
        if (event.type === "stdout" || event.type === "stderr") streams[event.type].push(event.bytes);
        else if (event.type === "exit") {
          if (signal?.aborted) throw signal.reason;
          return { exitCode: event.exitCode };
        }
      }
      throw new HuskError("the stream ended before the process did", { code: "gone" });
    } finally {
      ended = true;
      signal?.removeEventListener("abort", abort);
      streams.stdout.close();
      streams.stderr.close();
    }
  })();
  done.catch(() => undefined); // a caller that never waits is not told
  const stdin = new WritableStream<Uint8Array>({
    write: (piece) => process.write(piece),
    close: () => process.closeStdin(),
    abort: () => process.closeStdin(),
  });
  return { handle: { pid: process.pid, stdout: streams.stdout.stream, stderr: streams.stderr.stream, wait: () => done, kill }, stdin };
}

/** A stream to push into. A reader that has left does not stop the process. */
function source() {
  let controller!: ReadableStreamDefaultController<Uint8Array>;
  let open = true;
  const stream = new ReadableStream<Uint8Array>({ start: (given) => void (controller = given), cancel: () => void (open = false) });
  return {
    stream,
    push: (piece: Uint8Array) => void (open && controller.enqueue(piece)),
    close: () => {
      if (open) controller.close();
      open = false;
    },
  };
}

/** A generator, whose first piece was taken, as a stream that reads as fast as it is read. */
function readable(pieces: AsyncGenerator<Uint8Array>, first: IteratorResult<Uint8Array, unknown>): ReadableStream<Uint8Array> {
  let next: IteratorResult<Uint8Array, unknown> | undefined = first;
  return new ReadableStream<Uint8Array>({
    async pull(controller) {
      const piece: IteratorResult<Uint8Array, unknown> = next ?? (await pieces.next());
      next = undefined;
      if (piece.done) controller.close();
      else controller.enqueue(piece.value);
    },
    cancel: async () => void (await pieces.return(undefined)),
  });
}

/** The pieces of a stream; a writer that fails lets go of it. */
async function* chunks(stream: ReadableStream<Uint8Array>): AsyncGenerator<Uint8Array> {
  const reader = stream.getReader();
  let whole = false;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) {
        whole = true;
        return;
      }
      yield value;
    }
  } finally {
    if (!whole) await reader.cancel().catch(() => undefined);
    reader.releaseLock();
  }
}
