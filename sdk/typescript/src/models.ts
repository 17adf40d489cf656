/** The shapes of the API in this language's spelling, and how they are read from its documents. */

export type State = "creating" | "running" | "paused" | "hibernated" | "ended";

export interface SandboxInfo {
  id: string;
  name: string | null;
  tenant: string | null;
  template: string | null;
  parent: string | null;
  isolation: string;
  boundary: string | null;
  state: State;
  /** Why it ended: killed, ttl, oom, crashed. */
  endReason: string | null;
  createdAt: string;
  expiresAt: string | null;
  endedAt: string | null;
  idleSeconds: number;
  persistent: boolean;
  memoryBytes: number;
  diskBytes: number;
  cpus: number;
  pids: number;
  metadata: Record<string, string>;
  /** Names only. */
  environment: string[];
  egress: EgressMode;
  volumes: Mount[];
}

/** A volume as a directory of a sandbox. */
export interface Mount {
  /** Id or name. */
  volume: string;
  path: string;
  read_only?: boolean;
}

/** A directory that outlives sandboxes. */
export interface VolumeInfo {
  id: string;
  name: string;
  tenant: string | null;
  createdAt: string;
  limitBytes: number;
  usedBytes: number;
  /** Live ones that have it. */
  sandboxes: string[];
}

export type EgressMode = "off" | "allow" | "open";

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
  limits?: { bytes?: number | string; rate?: number | string; connections?: number };
}

export interface Egress extends EgressPolicy {
  mode: EgressMode;
  allow: string[];
  traffic: { host: string; port: number; sent: number; received: number; connections: number; denied: number }[];
}

export interface EgressEvent {
  at: string;
  verdict: "allowed" | "denied" | "failed";
  kind: string;
  host: string;
  port: number;
  reason: string;
  /** What would allow it; "" when nothing would. */
  rule: string;
  count: number;
}

export interface SnapshotInfo {
  id: string;
  name: string | null;
  sandbox: string | null;
  template: string;
  isolation: string;
  createdAt: string;
  bytes: number;
  memoryBytes: number;
  diskBytes: number;
}

export interface TemplateInfo {
  name: string;
  built: boolean;
  description: string | null;
  digest?: string | null;
  isolation?: string | null;
  bytes?: number;
  diskBytes?: number;
  createdAt?: string | null;
}

export interface Stats {
  cpuUs: number;
  memoryBytes: number;
  memoryLimit: number;
  diskBytes: number;
  diskLimit: number;
  processes: number;
  networkSent: number;
  networkReceived: number;
  networkConnections: number;
  networkDenied: number;
}

export interface HuskEvent {
  sequence: number;
  at: string;
  sandbox: string | null;
  kind: string;
  detail: Record<string, unknown> | null;
}

export interface Entry {
  path: string;
  name: string;
  type: "file" | "directory" | "symlink" | "other";
  size: number;
  mode: string;
  uid: number;
  gid: number;
  user: string | null;
  group: string | null;
  target: string | null;
  modifiedAt: string;
}

export interface FileChange {
  kind: "create" | "write" | "remove" | "rename" | "chmod" | "overflow";
  path: string;
}

export interface ProcessInfo {
  pid: number;
  label: string | null;
  argv: string[];
  cwd: string | null;
  user: string | null;
  startedAt: string;
  running: boolean;
  exitCode: number | null;
  timedOut: boolean;
  outOfMemory: boolean;
  terminal: boolean;
  stdoutBytes: number;
  stderrBytes: number;
}

export interface Exit {
  exitCode: number;
  /** What ended it, if a signal did. */
  signal: number | null;
  timedOut: boolean;
  outOfMemory: boolean;
  durationMs: number;
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

/** Renames the keys of one document; what its values hold (metadata, detail) is the user's own and stays as it is. */
export function spelled<T>(document: object): T {
  return Object.fromEntries(Object.entries(document).map(([key, value]) => [camel(key), value as unknown])) as T;
}

/** The other way; what is undefined is left out. */
export function spelledBack(options: object, skip: readonly string[] = []): Record<string, unknown> {
  const document: Record<string, unknown> = {};
  for (const [key, value] of Object.entries(options))
    if (value !== undefined && !skip.includes(key)) document[key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)] = value;
  return document;
}
