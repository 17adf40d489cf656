/**
 * Requests to huskd over TCP or its unix socket, on kept-alive connections: JSON calls, raw bytes both ways, and
 * server-sent events. Nothing here knows what a sandbox is.
 */
import * as http from "node:http";
import * as https from "node:https";
import { existsSync } from "node:fs";
import { Readable } from "node:stream";
import type { Signal } from "./models.js";

import { ConnectionError, errorFrom, HuskError, type ErrorDetail } from "./errors.js";

/** Where the server is and who is calling; what is left out comes from HUSK_URL, HUSK_TOKEN and HUSK_SOCKET. */
export interface ConnectionOptions {
  /** "http://127.0.0.1:7820". Without it and HUSK_URL the local unix socket is used. */
  url?: string;
  token?: string;
  /** Path of the server's unix socket. */
  socketPath?: string;
}

export type Query = Record<string, string | number | boolean | undefined>;
export type Body = Uint8Array | string | AsyncIterable<Uint8Array> | undefined;

export interface RequestOptions {
  query?: Query;
  json?: unknown;
  body?: Body;
  headers?: Record<string, string>;
  signal?: Signal;
}

export interface ServerEvent {
  event: string;
  id: string | undefined;
  data: unknown;
}

function socketPath(): string {
  if (process.env.HUSK_SOCKET) return process.env.HUSK_SOCKET;
  const home = process.env.HUSK_HOME;
  return home && home !== "/var/lib/husk" ? `${home}/run/huskd.sock` : "/run/husk/huskd.sock";
}

export class Transport {
  /** @internal */
  readonly url: URL | undefined;
  private readonly token: string | undefined;
  private readonly socketPath: string | undefined;
  private readonly agent: http.Agent;

  constructor(options: ConnectionOptions = {}) {
    const url = options.url ?? (options.socketPath ? undefined : process.env.HUSK_URL);
    this.token = options.token ?? process.env.HUSK_TOKEN;
    if (url) {
      this.url = new URL(url);
      if (this.url.protocol !== "http:" && this.url.protocol !== "https:")
        throw new HuskError(`url '${url}' is not http or https`, { code: "invalid" });
    } else {
      this.socketPath = options.socketPath ?? socketPath();
    }
    const kind = this.url?.protocol === "https:" ? https.Agent : http.Agent;
    this.agent = new kind({ keepAlive: true, maxFreeSockets: 16 });
  }

  /** @internal What http.request needs to reach the server, for a path below its root. */
  target(method: string, path: string, query: Query = {}, headers: Record<string, string> = {}): http.RequestOptions {
    const search = new URLSearchParams();
    for (const [name, value] of Object.entries(query)) if (value !== undefined) search.set(name, String(value));
    const text = search.toString();
    const all: Record<string, string> = { Accept: "application/json", ...headers };
    if (this.token) all.Authorization = `Bearer ${this.token}`;
    const where: http.RequestOptions = this.url
      ? { protocol: this.url.protocol, hostname: this.url.hostname.replace(/^\[|\]$/g, ""), port: this.url.port || undefined }
      : { socketPath: this.socketPath, host: "localhost" };
    const base = this.url ? this.url.pathname.replace(/\/$/, "") : "";
    return { ...where, agent: this.agent, method, path: `${base}${path}${text ? `?${text}` : ""}`, headers: all };
  }

  /** @internal The server and the token, as the husk program takes them from its environment. */
  forHusk(): Record<string, string> {
    const host = this.url ? this.url.href.replace(/\/$/, "") : `unix://${this.socketPath}`;
    return { HUSK_HOST: host, ...(this.token ? { HUSK_TOKEN: this.token } : {}) };
  }

  /** @internal */
  request(options: http.RequestOptions): http.ClientRequest {
    return (options.protocol === "https:" ? https : http).request(options);
  }

  /** @internal Sends it and waits for the head of the answer; an error answer is thrown. */
  async open(method: string, path: string, options: RequestOptions = {}): Promise<http.IncomingMessage> {
    const headers = { ...options.headers };
    let body = options.body;
    if (options.json !== undefined) {
      body = JSON.stringify(options.json);
      headers["Content-Type"] = "application/json";
    }
    if (typeof body === "string") body = Buffer.from(body);
    if (body instanceof Uint8Array) headers["Content-Length"] = String(body.length);
    const answer = await this.send(this.target(method, path, options.query, headers), body, options.signal);
    if ((answer.statusCode ?? 0) >= 400) throw await this.failure(answer);
    return answer;
  }

  private send(target: http.RequestOptions, body: Body, signal?: Signal): Promise<http.IncomingMessage> {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(signal.reason);
      const request = this.request(target);
      const abort = () => request.destroy(signal?.reason instanceof Error ? signal.reason : new Error("aborted"));
      signal?.addEventListener("abort", abort, { once: true });
      request.on("response", (answer) => {
        answer.once("close", () => signal?.removeEventListener("abort", abort));
        resolve(answer);
      });
      request.on("error", (error) => {
        signal?.removeEventListener("abort", abort);
        reject(signal?.aborted ? signal.reason : this.unreachable(error));
      });
      if (body === undefined || typeof body === "string" || body instanceof Uint8Array) request.end(body);
      else Readable.from(body).on("error", (error) => request.destroy(error)).pipe(request);
    });
  }

  unreachable(error: Error): HuskError {
    const code = (error as NodeJS.ErrnoException).code;
    if (this.socketPath && (code === "ENOENT" || code === "ECONNREFUSED") && !existsSync(this.socketPath))
      return new ConnectionError(`no server at ${this.socketPath}; start one with 'husk serve', or set HUSK_URL and HUSK_TOKEN`, {
        cause: error,
      });
    return new ConnectionError(`cannot reach ${this.url ?? this.socketPath}: ${error.message}`, { cause: error });
  }

  /** @internal The error that an answer's body describes. */
  async failure(answer: http.IncomingMessage): Promise<HuskError> {
    const status = answer.statusCode ?? 0;
    const id = answer.headers["x-request-id"];
    const text = (await bytes(answer)).toString();
    let detail: ErrorDetail | undefined;
    try {
      detail = (JSON.parse(text) as { error?: ErrorDetail }).error;
    } catch {
      /* not from huskd itself: the status has to do */
    }
    return errorFrom(
      detail ?? { code: "internal", message: `the server answered ${status}: ${text.slice(0, 200)}` },
      status,
      typeof id === "string" ? id : undefined,
    );
  }

  async json<T>(method: string, path: string, options: RequestOptions = {}): Promise<T> {
    const text = (await bytes(await this.open(method, path, options))).toString();
    return (text ? JSON.parse(text) : undefined) as T;
  }

  /** The answer's events until it ends. Leaving the loop early drops the connection. */
  async *events(method: string, path: string, options: RequestOptions = {}): AsyncGenerator<ServerEvent, void, undefined> {
    const headers = { ...options.headers, Accept: "text/event-stream" };
    const answer = await this.open(method, path, { ...options, headers });
    try {
      yield* parseEvents(answer);
    } catch (error) {
      throw options.signal?.aborted ? options.signal.reason : error instanceof HuskError ? error : this.unreachable(error as Error);
    } finally {
      answer.destroy();
    }
  }

  close(): void {
    this.agent.destroy();
  }
}

/** @internal */
export async function bytes(stream: AsyncIterable<Buffer>): Promise<Buffer> {
  const pieces: Buffer[] = [];
  for await (const piece of stream) pieces.push(piece);
  return Buffer.concat(pieces);
}

async function* lines(stream: AsyncIterable<Buffer>): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const piece of stream) {
    rest += decoder.decode(piece, { stream: true });
    let end: number;
    while ((end = rest.indexOf("\n")) >= 0) {
      yield rest.slice(0, end).replace(/\r$/, "");
      rest = rest.slice(end + 1);
    }
  }
}

async function* parseEvents(stream: AsyncIterable<Buffer>): AsyncGenerator<ServerEvent> {
  let event = "message";
  let id: string | undefined;
  let data: string[] = [];
  for await (const line of lines(stream)) {
    if (line === "") {
      if (data.length > 0) {
        const document: unknown = JSON.parse(data.join("\n"));
        if (event === "error" && isErrorDocument(document)) throw errorFrom(document.error, 200);
        yield { event, id, data: document };
      }
      event = "message";
      data = [];
      continue;
    }
    const colon = line.indexOf(":");
    if (colon === 0) continue; // a comment that keeps the line warm
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "event") event = value;
    else if (name === "data") data.push(value);
    else if (name === "id") id = value;
  }
}

function isErrorDocument(document: unknown): document is { error: ErrorDetail } {
  const error = (document as { error?: ErrorDetail } | null)?.error;
  return typeof error === "object" && error !== null && typeof error.message === "string" && typeof error.code === "string";
}
