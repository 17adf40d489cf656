/** Commands in a sandbox: their events, background processes, and terminals. */
import { GoneError } from "./errors.js";
import { fromWire, type ExecEvent, type Exit, type Signal } from "./models.js";
import type { ServerEvent, Transport } from "./transport.js";
import { WebSocketClient } from "./websocket.js";

export async function* execEvents(events: AsyncIterable<ServerEvent>): AsyncGenerator<ExecEvent, void, undefined> {
  const decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() };
  for await (const { event, data } of events) {
    const document = data as Record<string, unknown>;
    if (event === "start") yield { type: "start", pid: document.pid as number };
    else if (event === "stdout" || event === "stderr") {
      const exact = document.base64 as string | undefined;
      const bytes = exact === undefined ? Buffer.from(document.text as string) : Buffer.from(exact, "base64");
      // A character may be cut in two by the pieces: the decoder keeps its first half.
      yield { type: event, bytes, text: decoders[event].decode(bytes, { stream: true }) };
    } else if (event === "exit") {
      yield { type: "exit", ...fromWire<Exit>(document) };
      return;
    }
  }
  throw new GoneError("the stream ended before the process did", { code: "gone" });
}

export interface FollowOptions {
  /** Where to start; -1: the oldest byte still buffered. */
  stdoutOffset?: number;
  stderrOffset?: number;
  signal?: Signal;
}

/** A process in the background; it continues without this client. */
export class Process {
  constructor(
    private readonly transport: Transport,
    private readonly sandboxPath: string,
    readonly pid: number,
  ) {}

  private get path(): string {
    return `${this.sandboxPath}/processes/${this.pid}`;
  }

  /** Its output from the start of what is buffered (or an offset) on, then as it comes, then its exit. */
  output(options: FollowOptions = {}): AsyncGenerator<ExecEvent, void, undefined> {
    const query = { stdout_offset: options.stdoutOffset, stderr_offset: options.stderrOffset };
    return execEvents(this.transport.events("GET", `${this.path}/output`, { query, signal: options.signal }));
  }

  async wait(options: { onStdout?: (text: string) => void; onStderr?: (text: string) => void; signal?: Signal } = {}) {
    let stdout = "";
    let stderr = "";
    for await (const event of this.output(options)) {
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
    throw new GoneError("the stream ended before the process did", { code: "gone" });
  }

  /** Bytes for its stdin; it must have been started with `stdin: true`. */
  async write(data: Uint8Array | string): Promise<void> {
    await this.transport.json("POST", `${this.path}/stdin`, { body: data });
  }

  async closeStdin(): Promise<void> {
    await this.transport.json("POST", `${this.path}/stdin`, { body: new Uint8Array(), query: { close: true } });
  }

  /** Signals its whole process group. */
  async kill(signal: number | string = "TERM"): Promise<void> {
    await this.transport.json("POST", `${this.path}/signal`, { json: { signal } });
  }
}

export interface PtyOptions {
  cmd?: string;
  rows?: number;
  columns?: number;
  cwd?: string;
  user?: string;
  /** Attach again to a terminal that was left, from `offset` on. */
  pid?: number;
  offset?: number;
}

/** A terminal: iterate over it for its bytes; close() leaves it running. */
export class Pty implements AsyncIterable<Uint8Array> {
  private constructor(
    private readonly socket: WebSocketClient,
    readonly pid: number,
    /** Set once it has ended. */
    public exit: Exit | undefined,
  ) {}

  static async open(transport: Transport, path: string, options: PtyOptions): Promise<Pty> {
    const socket = await WebSocketClient.connect(transport, `${path}/pty`, { rows: 24, columns: 80, ...options });
    for (;;) {
      const message = await socket.next();
      if (!message) throw new GoneError("the terminal ended before it began", { code: "gone" });
      if (!("text" in message)) continue;
      const control = JSON.parse(message.text) as { start?: { pid: number } };
      if (control.start) return new Pty(socket, control.start.pid, undefined);
    }
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array, void, undefined> {
    for (;;) {
      const message = await this.socket.next();
      if (!message) return;
      if ("bytes" in message) {
        yield message.bytes;
        continue;
      }
      const control = JSON.parse(message.text) as { exit?: object };
      if (control.exit) {
        this.exit = fromWire<Exit>(control.exit);
        return;
      }
    }
  }

  write(data: Uint8Array | string): void {
    this.socket.sendBytes(typeof data === "string" ? Buffer.from(data) : data);
  }

  resize(rows: number, columns: number): void {
    this.socket.sendText(JSON.stringify({ resize: { rows, columns } }));
  }

  kill(signal = "TERM"): void {
    this.socket.sendText(JSON.stringify({ signal }));
  }

  close(): void {
    this.socket.close();
  }
}
