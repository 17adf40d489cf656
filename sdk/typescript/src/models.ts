/** The values of the API in this language's spelling, and how they are read from its documents. */

import type { EgressEvent, SandboxInfo } from "./shapes.js";

export * from "./shapes.js";

export type State = SandboxInfo["state"];

export type EgressMode = SandboxInfo["egress"];

/** What a sandbox may reach. */
export interface EgressPolicy {
  /** "allow" when there are rules, else "off". */
  mode?: EgressMode;
  /** Hosts ("example.com", "*.example.com:8443") and address ranges ("10.1.2.0/24:5432"). */
  allow?: string[];
  /** Mode open: address ranges that are not reached, unless `allow` has them. */
  deny?: string[];
  /** Values that never enter the sandbox: inside, the variable holds a placeholder, or the header is set on the way out. */
  secrets?: { name: string; value?: string; hosts: string[]; header?: string }[];
  /** Hosts whose changing requests are answered 202 and wait as `effects`; mode allow only. */
  hold?: string[];
  limits?: { bytes?: number | string; rate?: number | string; connections?: number };
  /** Certificates (PEM) that its programs trust besides those of the template. Unset: the machine's setting network.trust; "": none. */
  trust?: string;
}

export interface FileChange {
  kind: "create" | "write" | "remove" | "rename" | "chmod" | "overflow";
  path: string;
}

/** What cancels a call: an AbortSignal. Spelled out, so that neither Node's types nor the browser's are needed. */
export interface Signal {
  readonly aborted: boolean;
  readonly reason?: unknown;
  addEventListener(type: "abort", listener: () => void, options?: { once?: boolean }): void;
  removeEventListener(type: "abort", listener: () => void): void;
}

export interface Exit {
  exitCode: number;
  /** What ended it, if a signal did. */
  signal: number | null;
  timedOut: boolean;
  outOfMemory: boolean;
  durationMs: number;
  /** What the network policy denied it meanwhile, when it failed; `text` is the line for people. */
  denied: EgressEvent[];
}

export interface ExecResult extends Exit {
  stdout: string;
  stderr: string;
}

export type ExecEvent =
  | { type: "start"; pid: number }
  | { type: "stdout" | "stderr"; text: string; bytes: Uint8Array }
  | ({ type: "exit" } & Exit);

export interface CodeOutput {
  /** The value of the last expression. */
  main: boolean;
  text: string | null;
  /** Representations by MIME type; images are base64. */
  data: Record<string, unknown>;
}

export interface CodeError {
  name: string;
  value: string;
  traceback: string;
}

export interface CodeContext {
  name: string;
  language: string;
  cwd: string | null;
  pid: number;
}

function camel(key: string): string {
  return key.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
}

/** A document of the API with its keys in camelCase; what its values hold (metadata, detail) is the user's own and stays as it is. */
export function fromWire<T>(document: object): T {
  return Object.fromEntries(Object.entries(document).map(([key, value]) => [camel(key), value as unknown])) as T;
}

/** Options as the API spells them (snake_case); what is undefined is left out. */
export function toWire(options: object, skip: readonly string[] = []): Record<string, unknown> {
  const document: Record<string, unknown> = {};
  for (const [key, value] of Object.entries(options))
    if (value !== undefined && !skip.includes(key)) document[key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)] = value;
  return document;
}
