/** The files of one sandbox. Paths are absolute, in the sandbox. */
import { NotFoundError } from "./errors.js";
import { fromWire, type Entry, type FileChange, type Signal } from "./models.js";
import { bytes, type Body, type Query, type Transport } from "./transport.js";

export interface WriteOptions {
  /** "0755", or 0o755. */
  mode?: string | number;
  user?: string;
  signal?: Signal;
}

function modeText(mode: string | number | undefined): string | undefined {
  return typeof mode === "number" ? `0${mode.toString(8)}` : mode;
}

export class Filesystem {
  constructor(
    private readonly transport: Transport,
    private readonly sandboxPath: string,
  ) {}

  private get path(): string {
    return `${this.sandboxPath}/files`;
  }

  async read(path: string, options: { signal?: Signal } = {}): Promise<Uint8Array> {
    return bytes(await this.transport.open("GET", this.path, { query: { path }, ...options }));
  }

  async readText(path: string, options: { signal?: Signal } = {}): Promise<string> {
    return (await this.read(path, options)).toString();
  }

  /** As it comes, for files of any size; `start` and `end` (exclusive) select a range. */
  async *stream(path: string, range: { start?: number; end?: number; signal?: Signal } = {}): AsyncGenerator<Uint8Array> {
    const headers: Record<string, string> = {};
    if (range.start !== undefined || range.end !== undefined)
      headers.Range = `bytes=${range.start ?? 0}-${range.end === undefined ? "" : range.end - 1}`;
    const answer = await this.transport.open("GET", this.path, { query: { path }, headers, signal: range.signal });
    try {
      yield* answer as AsyncIterable<Buffer>;
    } finally {
      answer.destroy();
    }
  }

  /** Replaces the file as a whole: a reader sees the old one or the new one. */
  async write(path: string, data: Body, options: WriteOptions = {}): Promise<Entry> {
    const query: Query = { path, mode: modeText(options.mode), user: options.user };
    return fromWire(await this.transport.json<object>("PUT", this.path, { query, body: data ?? "", signal: options.signal }));
  }

  async list(path: string, options: { depth?: number } = {}): Promise<Entry[]> {
    const answer = await this.transport.json<{ entries: object[] }>("GET", `${this.path}/list`, { query: { path, ...options } });
    return answer.entries.map((entry) => fromWire<Entry>(entry));
  }

  async stat(path: string, options: { follow?: boolean } = {}): Promise<Entry> {
    return fromWire(await this.transport.json<object>("GET", `${this.path}/stat`, { query: { path, ...options } }));
  }

  async exists(path: string): Promise<boolean> {
    try {
      await this.stat(path);
      return true;
    } catch (error) {
      if (error instanceof NotFoundError) return false;
      throw error;
    }
  }

  async mkdir(path: string, options: { mode?: string | number; user?: string } = {}): Promise<void> {
    await this.transport.json("POST", `${this.path}/mkdir`, {
      json: { path, ...(options.mode === undefined ? {} : { mode: modeText(options.mode) }), ...(options.user ? { user: options.user } : {}) },
    });
  }

  async move(path: string, target: string): Promise<void> {
    await this.transport.json("POST", `${this.path}/move`, { json: { path, target } });
  }

  async chmod(path: string, mode: string | number): Promise<void> {
    await this.transport.json("POST", `${this.path}/chmod`, { json: { path, mode: modeText(mode) } });
  }

  /** A file, or a directory with everything in it. */
  async remove(path: string): Promise<void> {
    await this.transport.json("DELETE", this.path, { query: { path } });
  }

  /** A directory (or file) as a tar stream. */
  async *readTar(path: string): AsyncGenerator<Uint8Array> {
    yield* (await this.transport.open("GET", `${this.path}/tar`, { query: { path } })) as AsyncIterable<Buffer>;
  }

  /** A tar stream into a directory. */
  async writeTar(path: string, tar: Body, options: { user?: string } = {}): Promise<void> {
    await this.transport.json("PUT", `${this.path}/tar`, { query: { path, ...options }, body: tar });
  }

  /** Changes as they happen; leave the loop, or abort, to stop. */
  async *watch(path: string, options: { recursive?: boolean; signal?: Signal } = {}): AsyncGenerator<FileChange> {
    const query = { path, recursive: options.recursive };
    for await (const { event, data } of this.transport.events("GET", `${this.path}/watch`, { query, signal: options.signal }))
      if (event === "change") yield data as FileChange;
  }
}
