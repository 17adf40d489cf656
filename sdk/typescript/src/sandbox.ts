/// <reference lib="esnext.disposable" preserve="true" />
/** A throwaway computer. */
import { randomUUID } from "node:crypto";
import { createReadStream, createWriteStream } from "node:fs";
import { rename, rm } from "node:fs/promises";
import { pipeline } from "node:stream/promises";

import { ExecError } from "./errors.js";
import { Browser } from "./browser.js";
import { Desktop } from "./desktop.js";
import { explore, type Branch, type ExploreOptions, type Plan, type Score } from "./explore.js";
import { Filesystem } from "./filesystem.js";
import {
  fromWire,
  toWire,
  type Change,
  type Difference,
  type Checkpoint,
  type CodeContext,
  type CodeError,
  type CodeOutput,
  type Effect,
  type Egress,
  type EgressEvent,
  type EgressMode,
  type EgressPolicy,
  type ExecEvent,
  type ExecResult,
  type HuskEvent,
  type Mount,
  type ProcessInfo,
  type Merged,
  type Promoted,
  type Rewound,
  type SandboxInfo,
  type SnapshotInfo,
  type State,
  type Stats,
  type TemplateInfo,
  type TreeNode,
  type VolumeInfo,
  type Signal,
} from "./models.js";
import { execEvents, Process, Pty, type PtyOptions } from "./process.js";
import { bytes, Transport, type ConnectionOptions, type Query } from "./transport.js";
import { Workspace } from "./workspace.js";

// Node 18 has no Symbol.asyncDispose yet; what compilers emit for `await using` looks for this one.
(Symbol as { asyncDispose?: symbol }).asyncDispose ??= Symbol.for("Symbol.asyncDispose");

export interface LimitOptions {
  /** Killed after this long; an hour unless told. */
  ttlSeconds?: number;
  /** Not reaped by TTL or idle time; `await using` leaves it alone. */
  persistent?: boolean;
  /** What happens when its time is over: "kill" unless told. One that hibernates has no end while it sleeps. */
  onExpiry?: "kill" | "hibernate";
  /** "each-call": a checkpoint before every exec and code call. */
  checkpoints?: "off" | "each-call";
  /** Hibernate after this long without a call. */
  idleSeconds?: number;
  /** Bytes, or "512M", "2G". */
  memory?: number | string;
  cpus?: number;
  pids?: number;
  metadata?: Record<string, string>;
  env?: Record<string, string>;
  /** What it may reach: "off" unless told. */
  egress?: EgressMode | EgressPolicy;
  name?: string;
}

export interface CreateOptions extends LimitOptions, ConnectionOptions {
  template?: string;
  /** Continue from this snapshot instead of a template. */
  snapshot?: string;
  isolation?: string;
  disk?: number | string;
  /** Directories that outlive it; see `volumes`. */
  volumes?: Mount[];
  /** A directory of yours, "DIR" or "DIR:/path", that is copied in, without what git ignores; see `sandbox.workspace`. */
  workspace?: string;
  /** Also the files that git ignores. */
  workspaceAll?: boolean;
  signal?: Signal;
}

export interface ListOptions extends ConnectionOptions {
  state?: State;
  template?: string;
  metadata?: Record<string, string>;
  /** Those that have ended too. */
  ended?: boolean;
}

export interface ExecOptions {
  timeoutSeconds?: number;
  env?: Record<string, string>;
  cwd?: string;
  user?: string;
  stdin?: string | Uint8Array;
  /** Called with output as it comes. */
  onStdout?: (text: string) => void;
  onStderr?: (text: string) => void;
  /** Throw an ExecError when the exit code is not 0. */
  check?: boolean;
  /** Aborting kills the command. */
  signal?: Signal;
}

export interface StreamOptions extends Omit<ExecOptions, "onStdout" | "onStderr" | "check"> {
  /** Keep its stdin open for Process.write. */
  keepStdin?: boolean;
  /** Kill the command when its events are no longer read: true unless told. */
  killOnDisconnect?: boolean;
}

export interface StartOptions extends Pick<ExecOptions, "timeoutSeconds" | "env" | "cwd" | "user"> {
  /** Shown in the process list. */
  label?: string;
  /** Bytes of each output stream that can be read later, on the sandbox's disk; 1 MiB unless told. */
  keepOutput?: number;
  /** Keep its stdin open for Process.write. */
  stdin?: boolean;
}

export interface CodeOptions {
  language?: "python" | "javascript" | "typescript" | "bash" | "r" | "java";
  /** State lasts between calls of one context. */
  context?: string;
  env?: Record<string, string>;
  cwd?: string;
  timeoutSeconds?: number;
  onStdout?: (text: string) => void;
  onStderr?: (text: string) => void;
  onResult?: (result: CodeOutput) => void;
  signal?: Signal;
}

/** What code came to. */
export class CodeResult {
  constructor(
    readonly stdout: string,
    readonly stderr: string,
    readonly results: CodeOutput[],
    readonly error: CodeError | null,
    readonly timedOut: boolean,
    readonly durationMs: number,
    /** What the network policy denied meanwhile, when it failed. */
    readonly denied: EgressEvent[] = [],
  ) {}

  /** The value of the last expression, as text. */
  get text(): string | null {
    return this.results.find((result) => result.main)?.text ?? null;
  }

  /** Every PNG among the results. */
  get images(): Uint8Array[] {
    return this.results.flatMap(({ data }) => (typeof data["image/png"] === "string" ? [Buffer.from(data["image/png"], "base64")] : []));
  }
}

type Command = string | readonly string[];

function execDocument(command: Command, options: Omit<ExecOptions, "stdin">): Record<string, unknown> {
  return {
    ...(typeof command === "string" ? { cmd: command } : { argv: command }),
    ...toWire(options, ["onStdout", "onStderr", "check", "signal", "stdin"]),
  };
}

function connectionOf(options: ConnectionOptions): ConnectionOptions {
  const { url, token, socketPath } = options;
  return { url, token, socketPath };
}

export class Sandbox {
  readonly filesystem: Filesystem;
  readonly desktop: Desktop;
  /** The browser of the desktop, for programs. */
  readonly browser: Browser;
  /** A directory of yours in it: its changes as a patch, and written back. */
  readonly workspace: Workspace;

  private constructor(
    private readonly transport: Transport,
    private latest: SandboxInfo,
  ) {
    this.filesystem = new Filesystem(transport, this.path);
    this.desktop = new Desktop(transport, this.path);
    this.browser = new Browser(transport, this.path);
    this.workspace = new Workspace(transport, latest.id);
  }

  get id(): string {
    return this.latest.id;
  }

  /** As it was when last asked; see refresh(). */
  get info(): SandboxInfo {
    return this.latest;
  }

  private get path(): string {
    return `/v1/sandboxes/${encodeURIComponent(this.latest.id)}`;
  }

  // ---- making and finding ----

  static async create(options: CreateOptions = {}): Promise<Sandbox> {
    if (options.workspace !== undefined) await Workspace.check(); // before a sandbox is made
    const transport = new Transport(connectionOf(options));
    const document = await transport.json<object>("POST", "/v1/sandboxes", {
      json: toWire(options, ["url", "token", "socketPath", "signal", "workspace", "workspaceAll"]),
      headers: { "Idempotency-Key": randomUUID() },
      signal: options.signal,
    });
    const made = new Sandbox(transport, fromWire(document));
    if (options.workspace !== undefined) await made.bring(options.workspace, options.workspaceAll ?? false);
    return made;
  }

  /** The workspace, and a checkpoint to come back to. A sandbox without its workspace is removed again. */
  private async bring(workspace: string, all: boolean): Promise<void> {
    try {
      await this.workspace.bring(workspace, { all });
      await this.checkpoint("workspace");
    } catch (error) {
      await this.kill();
      throw error;
    }
  }

  /** An existing sandbox, by id or name. */
  static async connect(id: string, options: ConnectionOptions = {}): Promise<Sandbox> {
    const transport = new Transport(options);
    return new Sandbox(transport, fromWire(await transport.json<object>("GET", `/v1/sandboxes/${encodeURIComponent(id)}`)));
  }

  /** Newest first. */
  static async *list(options: ListOptions = {}): AsyncGenerator<SandboxInfo, void, undefined> {
    const transport = new Transport(connectionOf(options));
    const query: Query = { state: options.state, template: options.template, ended: options.ended };
    for (const [key, value] of Object.entries(options.metadata ?? {})) query[`metadata.${key}`] = value;
    try {
      for (let cursor: string | null = ""; cursor !== null; ) {
        const page: { sandboxes: object[]; next_cursor: string | null } = await transport.json("GET", "/v1/sandboxes", {
          query: { ...query, cursor: cursor || undefined },
        });
        for (const document of page.sandboxes) yield fromWire<SandboxInfo>(document);
        cursor = page.next_cursor;
      }
    } finally {
      transport.close(); // also when the caller stops early, or the server fails
    }
  }

  async refresh(): Promise<SandboxInfo> {
    return (this.latest = fromWire(await this.transport.json<object>("GET", this.path)));
  }

  private async change(method: string, path: string, json?: unknown): Promise<this> {
    this.latest = fromWire(await this.transport.json<object>(method, this.path + path, json === undefined ? {} : { json }));
    return this;
  }

  // ---- life ----

  async kill(): Promise<void> {
    await this.transport.json("DELETE", this.path);
  }

  /** A new TTL, counted from now. */
  async extend(ttlSeconds: number): Promise<string | null> {
    return (await this.transport.json<{ expires_at: string | null }>("POST", `${this.path}/ttl`, { json: { ttl_seconds: ttlSeconds } })).expires_at;
  }

  /** Other limits: at once if it runs, else when it wakes. */
  resize(limits: Pick<LimitOptions, "memory" | "cpus">): Promise<this> {
    return this.change("PATCH", "", { memory: limits.memory, cpus: limits.cpus });
  }

  pause(): Promise<this> {
    return this.change("POST", "/pause");
  }

  resume(): Promise<this> {
    return this.change("POST", "/resume");
  }

  hibernate(): Promise<this> {
    return this.change("POST", "/hibernate");
  }

  wake(): Promise<this> {
    return this.change("POST", "/wake");
  }

  /** Starts it anew with its files, also if it is hibernated; processes and memory are gone. */
  reboot(): Promise<this> {
    return this.change("POST", "/reboot");
  }

  setMetadata(metadata: Record<string, string>): Promise<this> {
    return this.change("PUT", "/metadata", metadata);
  }

  /** A copy of it as it runs: memory, processes and disk. With a count, so many, from one pause. */
  async fork(): Promise<Sandbox>;
  async fork(options: LimitOptions): Promise<Sandbox>;
  async fork(count: number, options?: LimitOptions): Promise<Sandbox[]>;
  async fork(first?: number | LimitOptions, options?: LimitOptions): Promise<Sandbox | Sandbox[]> {
    const many = typeof first === "number";
    const json = { ...toWire((many ? options : first) ?? {}), count: many ? first : 1 };
    const answer = await this.transport.json<{ sandboxes: object[] }>("POST", `${this.path}/fork`, { json });
    const children = answer.sandboxes.map((document) => new Sandbox(this.transport, fromWire(document)));
    return many ? children : children[0]!;
  }

  /** Memory, processes and disk, to create from later; it runs on. */
  async snapshot(name?: string): Promise<SnapshotInfo> {
    return fromWire(await this.transport.json<object>("POST", `${this.path}/snapshots`, { json: name ? { name } : {} }));
  }

  /** Saves a numbered checkpoint; the sandbox keeps running. Checkpoints are removed with the sandbox. */
  async checkpoint(label?: string): Promise<Checkpoint> {
    return fromWire(await this.transport.json<object>("POST", `${this.path}/checkpoints`, { json: label ? { label } : {} }));
  }

  /** Its checkpoints, by number. files: also what changed before each one (filesChanged, and the first 100 as files). The first time,
   *  this takes a copy of each checkpoint. */
  async history(options: { files?: boolean } = {}): Promise<Checkpoint[]> {
    const query = options.files ? { files: "true" } : {};
    const answer = await this.transport.json<{ checkpoints: object[] }>("GET", `${this.path}/checkpoints`, { query });
    return answer.checkpoints.map((document) => fromWire<Checkpoint>(document));
  }

  /** By number or label. */
  async removeCheckpoint(checkpoint: number | string): Promise<void> {
    await this.transport.json("DELETE", `${this.path}/checkpoints/${encodeURIComponent(String(checkpoint))}`);
  }

  /** Puts this same sandbox back to a checkpoint (number or label; the last one unless told): memory, processes and disk. Later
   *  checkpoints stay, unless dropLater. The answer's notUndone says what could not be taken back. */
  async rewind(checkpoint?: number | string, options: { dropLater?: boolean } = {}): Promise<Rewound> {
    const json = { ...(checkpoint === undefined ? {} : { checkpoint: String(checkpoint) }), ...toWire(options) };
    return fromWire(await this.transport.json<object>("POST", `${this.path}/rewind`, { json }));
  }

  /** Puts this fork into the place of the sandbox that it was forked from, which continues with its memory, processes and disk.
   *  This sandbox ends, and so do the other forks of the parent, unless keep. */
  async promote(options: { keep?: boolean } = {}): Promise<Promoted> {
    return fromWire(await this.transport.json<object>("POST", `${this.path}/promote`, { json: toWire(options) }));
  }

  /** Its requests to held hosts (`egress.hold`): those that wait, and the newest of those that are done. */
  async effects(): Promise<Effect[]> {
    const document = await this.transport.json<{ effects: object[] }>("GET", `${this.path}/effects`);
    return document.effects.map((each) => fromWire<Effect>(each));
  }

  /** Sends held effects in order, each at most once; all of them unless told. Ends at the first one that could not be sent: the
   *  state of each tells what became of it. */
  async sendEffects(numbers?: number[]): Promise<Effect[]> {
    return this.actOnEffects("send", numbers);
  }

  /** Drops held effects; all of them unless told. */
  async dropEffects(numbers?: number[]): Promise<Effect[]> {
    return this.actOnEffects("drop", numbers);
  }

  private async actOnEffects(action: "send" | "drop", numbers?: number[]): Promise<Effect[]> {
    const json = { effects: numbers };
    const document = await this.transport.json<{ effects: object[] }>("POST", `${this.path}/effects/${action}`, { json });
    return document.effects.map((each) => fromWire<Effect>(each));
  }

  /** Merges the files that another sandbox changed into this one, three-way against `base`: the sandbox that both were forked from, or
   *  else the template. With a conflict nothing is written, unless `conflicts` says how: "ours" is this sandbox's version. */
  async merge(
    from: string | Sandbox,
    options: { base?: string | Sandbox; path?: string; conflicts?: "markers" | "ours" | "theirs"; dryRun?: boolean } = {},
  ): Promise<Merged> {
    const { base, ...rest } = options;
    const common = base instanceof Sandbox ? base.id : base;
    const json = { from: from instanceof Sandbox ? from.id : from, ...(common ? { base: common } : {}), ...toWire(rest) };
    return fromWire(await this.transport.json<object>("POST", `${this.path}/merge`, { json }));
  }

  /** Tries each plan in a fork of its own, scores the forks, and keeps the best: best-of-N, or a step of a beam search. A plan is a
   *  command, or a function that gets the fork. The score is a function of (fork, result), or a command whose last line of output is the
   *  number; a plan that fails, is over `budgetSeconds` (for all of them) or has no score counts as the worst. The `keep` best forks stay
   *  (1 unless told), and the others end. With keep 1 the winner takes the place of this sandbox, unless promote is false. All branches
   *  are returned, the best one first. */
  async explore(plans: Plan[], score: Score, options: ExploreOptions = {}): Promise<Branch[]> {
    return explore(this, plans, score, options);
  }

  /** The files that differ since its fork or snapshot, or else from its template: added, removed and changed ones, by path.
   * `against`: another sandbox, a checkpoint ("ID@NUMBER"), a snapshot or a template. `path`: only this path, and what is below. */
  async diff(options: { against?: string | Sandbox; path?: string } = {}): Promise<Change[]> {
    const against = options.against instanceof Sandbox ? options.against.id : options.against;
    const query = { ...(against ? { against } : {}), ...(options.path ? { path: options.path } : {}) };
    const answer = await this.transport.json<{ changes: object[] }>("GET", `${this.path}/diff`, { query });
    return answer.changes.map((document) => fromWire<Change>(document));
  }

  /** The packages (Debian, pip, npm), processes and listening ports that differ, as `diff` compares files. */
  async diffSystem(options: { against?: string | Sandbox; packages?: boolean; processes?: boolean } = {}): Promise<Difference[]> {
    const against = options.against instanceof Sandbox ? options.against.id : options.against;
    const query = {
      ...(against ? { against } : {}),
      packages: String(options.packages ?? true),
      processes: String(options.processes ?? true),
    };
    const answer = await this.transport.json<{ differences: object[] }>("GET", `${this.path}/diff/system`, { query });
    return answer.differences.map((document) => fromWire<Difference>(document));
  }

  /** Its family from the first one on: what each came from, and what came from it. */
  async tree(): Promise<TreeNode> {
    const answer = await this.transport.json<{ families: TreeNode[] }>("GET", "/v1/tree", { query: { of: this.id } });
    return answer.families[0]!;
  }

  async stats(): Promise<Stats> {
    return fromWire(await this.transport.json<object>("GET", `${this.path}/stats`));
  }

  /** What Husk logged for it, or what its guest wrote on the console; also after its end. */
  async logs(source: "log" | "console" = "log"): Promise<string> {
    return (await bytes(await this.transport.open("GET", `${this.path}/logs`, { query: { source } }))).toString();
  }

  /** What happened to it; with `follow`, also what happens from now on. */
  async *events(options: { after?: number; follow?: boolean; signal?: Signal } = {}): AsyncGenerator<HuskEvent, void, undefined> {
    const query = { after: options.after };
    if (!options.follow) {
      yield* (await this.transport.json<{ events: HuskEvent[] }>("GET", `${this.path}/events`, { query })).events;
      return;
    }
    const request = { query: { ...query, follow: true }, signal: options.signal };
    for await (const { data } of this.transport.events("GET", `${this.path}/events`, request)) yield data as HuskEvent;
  }

  // ---- commands ----

  /** Runs a command to its end: a string goes to the shell, a list is taken as it is. */
  async exec(command: Command, options: ExecOptions = {}): Promise<ExecResult> {
    const streamed = options.onStdout ?? options.onStderr;
    const result = streamed || options.signal ? await this.execStreamed(command, options) : await this.execWhole(command, options);
    if (options.check && result.exitCode !== 0) throw new ExecError(typeof command === "string" ? command : command.join(" "), result);
    return result;
  }

  private async execWhole(command: Command, options: ExecOptions): Promise<ExecResult> {
    const json = { ...execDocument(command, options), ...stdinOf(options.stdin) };
    return fromWire(await this.transport.json<object>("POST", `${this.path}/exec`, { json }));
  }

  private async execStreamed(command: Command, options: ExecOptions): Promise<ExecResult> {
    let stdout = "";
    let stderr = "";
    for await (const event of this.execStream(command, options)) {
      if (event.type === "stdout") {
        stdout += event.text;
        options.onStdout?.(event.text);
      } else if (event.type === "stderr") {
        stderr += event.text;
        options.onStderr?.(event.text);
      } else if (event.type === "exit") {
        const { type: _, ...exit } = event;
        return { stdout, stderr, ...exit };
      }
    }
    throw new Error("unreachable: the stream ends with an exit or throws");
  }

  /** The same as events while it runs. Leaving the loop, or aborting, kills the command, unless killOnDisconnect is false. */
  execStream(command: Command, options: StreamOptions = {}): AsyncGenerator<ExecEvent, void, undefined> {
    const json = { kill_on_disconnect: true, ...execDocument(command, options), ...stdinOf(options.stdin), stream: true };
    return execEvents(this.transport.events("POST", `${this.path}/exec`, { json, signal: options.signal }));
  }

  /** Starts a command in the background. */
  async start(command: Command, options: StartOptions = {}): Promise<Process> {
    const { stdin, ...rest } = options;
    const json = { ...execDocument(command, rest), detach: true, ...(stdin ? { keep_stdin: true } : {}) };
    const { pid } = await this.transport.json<{ pid: number }>("POST", `${this.path}/exec`, { json });
    return this.process(pid);
  }

  /** One that was started before. */
  process(pid: number): Process {
    return new Process(this.transport, this.path, pid);
  }

  async processes(): Promise<ProcessInfo[]> {
    const answer = await this.transport.json<{ processes: object[] }>("GET", `${this.path}/processes`);
    return answer.processes.map((document) => fromWire<ProcessInfo>(document));
  }

  /** A terminal; a login shell unless told otherwise. */
  pty(options: PtyOptions = {}): Promise<Pty> {
    return Pty.open(this.transport, this.path, options);
  }

  // ---- code ----

  /** Runs code in a context that keeps its state; an exception in it is in `error`, not thrown. */
  async runCode(code: string, options: CodeOptions = {}): Promise<CodeResult> {
    const json = { code, ...toWire(options, ["onStdout", "onStderr", "onResult", "signal"]), stream: true };
    let stdout = "";
    let stderr = "";
    const results: CodeOutput[] = [];
    let error: CodeError | null = null;
    for await (const { event, data } of this.transport.events("POST", `${this.path}/code`, { json, signal: options.signal })) {
      const document = data as Record<string, unknown>;
      if (event === "stdout") {
        stdout += document.text as string;
        options.onStdout?.(document.text as string);
      } else if (event === "stderr") {
        stderr += document.text as string;
        options.onStderr?.(document.text as string);
      } else if (event === "result") {
        results.push(document as unknown as CodeOutput);
        options.onResult?.(document as unknown as CodeOutput);
      } else if (event === "error") {
        error = document as unknown as CodeError;
      } else if (event === "done") {
        const denied = (document.denied ?? []) as EgressEvent[];
        return new CodeResult(stdout, stderr, results, error, Boolean(document.timed_out), Number(document.duration_ms ?? 0), denied);
      }
    }
    return new CodeResult(stdout, stderr, results, error, false, 0);
  }

  async contexts(): Promise<CodeContext[]> {
    return (await this.transport.json<{ contexts: CodeContext[] }>("GET", `${this.path}/contexts`)).contexts;
  }

  async restartContext(name: string): Promise<void> {
    await this.transport.json("POST", `${this.path}/contexts/${encodeURIComponent(name)}/restart`);
  }

  async removeContext(name: string): Promise<void> {
    await this.transport.json("DELETE", `${this.path}/contexts/${encodeURIComponent(name)}`);
  }

  // ---- the network ----

  async egress(): Promise<Egress> {
    return this.transport.json<Egress>("GET", `${this.path}/egress`);
  }

  /** Replaces what it may reach; it holds when this resolves. */
  async setEgress(policy: EgressPolicy): Promise<Egress> {
    return this.transport.json<Egress>("PUT", `${this.path}/egress`, { json: policy });
  }

  /** What it tried to reach, oldest first, and why some of it was denied. */
  async egressLog(options: { limit?: number } = {}): Promise<EgressEvent[]> {
    return (await this.transport.json<{ events: EgressEvent[] }>("GET", `${this.path}/egress/log`, { query: options })).events;
  }

  // ---- ports ----

  /**
   * A URL, good without a token until it expires, of a server that listens on this port in the sandbox. Its host name is
   * the port's own, which suits pages; `byPath`: below the server's own name, for programs that cannot look up *.localhost.
   */
  async getUrl(port: number, options: { expiresSeconds?: number; byPath?: boolean } = {}): Promise<string> {
    const json = toWire(options, ["byPath"]);
    const { url } = await this.transport.json<{ url: string }>("POST", `${this.path}/ports/${port}/url`, { json });
    if (!options.byPath) return url;
    const parts = new URL(url);
    const server = parts.host.slice(parts.host.indexOf(".") + 1);
    return `${parts.protocol}//${server}${this.path}/ports/${port}/${parts.search}`;
  }

  // ---- the end ----

  /** `await using`: kills it, unless it is persistent. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.latest.persistent) await this.kill();
    this.transport.close();
  }
}

function stdinOf(stdin: string | Uint8Array | undefined): Record<string, string> {
  if (stdin === undefined) return {};
  return typeof stdin === "string" ? { stdin } : { stdin_base64: Buffer.from(stdin).toString("base64") };
}

/** Snapshots of this tenant. */
export const snapshots = {
  async list(options: ConnectionOptions = {}): Promise<SnapshotInfo[]> {
    const answer = await new Transport(options).json<{ snapshots: object[] }>("GET", "/v1/snapshots");
    return answer.snapshots.map((document) => fromWire<SnapshotInfo>(document));
  },
  async remove(id: string, options: ConnectionOptions = {}): Promise<void> {
    await new Transport(options).json("DELETE", `/v1/snapshots/${encodeURIComponent(id)}`);
  },
  /** Writes it into a file, for another host. `files`: also its files alone, for hosts that cannot continue its memory. */
  async export(id: string, file: string, options: ConnectionOptions & { files?: boolean } = {}): Promise<void> {
    const { files, ...connection } = options;
    await download(connection, `/v1/snapshots/${encodeURIComponent(id)}/export${files ? "?files=true" : ""}`, file);
  },
  /** Takes a snapshot that `export` wrote. The server must trust the key that signed it; for its owner only. */
  async import(file: string, options: ConnectionOptions & { name?: string } = {}): Promise<SnapshotInfo> {
    return fromWire(await upload("/v1/snapshots/import", file, options));
  },
};

async function download(options: ConnectionOptions, path: string, file: string): Promise<void> {
  const partial = `${file}.partial`;
  try {
    await pipeline(await new Transport(options).open("GET", path), createWriteStream(partial));
    await rename(partial, file);
  } finally {
    await rm(partial, { force: true });
  }
}

async function upload(path: string, file: string, options: ConnectionOptions & { name?: string }): Promise<object> {
  const { name, ...connection } = options;
  const query = name === undefined ? "" : `?name=${encodeURIComponent(name)}`;
  const headers = { "Content-Type": "application/x-tar" };
  return new Transport(connection).json<object>("POST", path + query, { body: createReadStream(file), headers });
}

/** Directories that outlive sandboxes. */
export const volumes = {
  /** `size`: the most it may hold, bytes or "10G". */
  async create(name: string, options: ConnectionOptions & { size?: number | string } = {}): Promise<VolumeInfo> {
    const { size, ...connection } = options;
    return fromWire(await new Transport(connection).json<object>("POST", "/v1/volumes", { json: { name, size } }));
  },
  async list(options: ConnectionOptions = {}): Promise<VolumeInfo[]> {
    const answer = await new Transport(options).json<{ volumes: object[] }>("GET", "/v1/volumes");
    return answer.volumes.map((document) => fromWire<VolumeInfo>(document));
  },
  /** With what is in it; a ConflictError while sandboxes have it. */
  async remove(id: string, options: ConnectionOptions = {}): Promise<void> {
    await new Transport(options).json("DELETE", `/v1/volumes/${encodeURIComponent(id)}`);
  },
};

/** Templates, built and bundled. */
export const templates = {
  async list(options: ConnectionOptions = {}): Promise<TemplateInfo[]> {
    const answer = await new Transport(options).json<{ templates: object[] }>("GET", "/v1/templates");
    return answer.templates.map((document) => fromWire<TemplateInfo>(document));
  },
  /** Writes it into a file, for another host. */
  async export(name: string, file: string, options: ConnectionOptions = {}): Promise<void> {
    await download(options, `/v1/templates/${encodeURIComponent(name)}/export`, file);
  },
  /** Takes a template that `export` wrote, or the files of a snapshot that was exported with them; for the owner only. */
  async import(file: string, options: ConnectionOptions & { name?: string } = {}): Promise<TemplateInfo> {
    return fromWire(await upload("/v1/templates/import", file, options));
  },
};
