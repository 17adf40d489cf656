/** What the server answers, field by field. Made from docs/openapi.json by scripts/house.py --write: edit it there. */

/** A volume as a directory of a sandbox. */
export interface Mount {
  /** Id or name. */
  volume: string;
  /** Absolute, in the guest. */
  path: string;
  read_only?: boolean;
  /** This directory of the volume alone, made if it is missing; all of it unless told. */
  subpath?: string;
}

/** A sandbox or snapshot, and what came from it; removed: all that is known is that something came from it. */
export interface TreeNode {
  id: string;
  kind: "sandbox" | "snapshot" | "removed";
  name: string | null;
  /** Of a sandbox. */
  state: string | null;
  end_reason: string | null;
  template: string | null;
  created_at: string | null;
  ended_at: string | null;
  /** Of a snapshot, on the host's disk. */
  bytes: number | null;
  /** The one that was asked for. */
  asked: boolean;
  /** Oldest first. */
  children: TreeNode[];
}

/** A sandbox as it was when the server was last asked. */
export interface SandboxInfo {
  id: string;
  name: string | null;
  /** Whose it is; null: the instance's own. */
  tenant: string | null;
  template: string | null;
  /** The sandbox or snapshot it came from. */
  parent: string | null;
  /** The state it began with, which diff compares with unless told otherwise: a snapshot, or SANDBOX@NUMBER; null: the template, or not known. */
  origin: string | null;
  isolation: string;
  /** What stands between it and the host. */
  boundary: string | null;
  state: "creating" | "running" | "paused" | "hibernated" | "ended";
  /** Why it ended: killed, ttl, oom, crashed. */
  endReason: string | null;
  createdAt: string;
  /** Null: persistent. */
  expiresAt: string | null;
  endedAt: string | null;
  /** Hibernates after so long without a call; 0: never. */
  idleSeconds: number;
  persistent: boolean;
  onExpiry: "kill" | "hibernate";
  /** Each-call: a checkpoint before each call that starts a program or gives one input; the newest 32, and at most 4 GiB, are kept besides those that were asked for. */
  checkpoints: "off" | "each-call";
  memoryBytes: number;
  diskBytes: number;
  cpus: number;
  pids: number;
  metadata: Record<string, string>;
  /** Names only; values are never given back. */
  environment: string[];
  egress: "off" | "allow" | "open";
  volumes: Mount[];
}

/** A directory that outlives sandboxes. */
export interface VolumeInfo {
  id: string;
  name: string;
  /** Whose it is; null: the instance's own. */
  tenant: string | null;
  createdAt: string;
  limitBytes: number;
  usedBytes: number;
  /** Live ones that have it. */
  sandboxes: string[];
}

/** What a sandbox uses, and its limits. */
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

/** What a sandbox may reach, and what it has sent and received by destination. */
export interface Egress {
  /** In mode allow, the rules say what is reached. */
  mode: "off" | "allow" | "open";
  /** Hosts ("example.com", "*.example.com:8443") and address ranges ("10.1.2.0/24:5432"). */
  allow: string[];
  /** Mode open: address ranges that are not reached, unless allow has them. */
  deny: string[];
  /** Names and hosts; values are never given back. */
  secrets: { name: string; hosts: string[]; header?: string }[];
  /** Hosts whose changing requests (all but GET, HEAD, OPTIONS and TRACE) are answered 202 and wait as effects; mode allow only. */
  hold: string[];
  limits: { bytes: number; rate: number; connections: number };
  /** Certificates (PEM, at most 64 KiB) that its programs trust besides those of the template; absent: none. */
  trust?: string;
  traffic: { host: string; port: number; sent: number; received: number; connections: number; denied: number }[];
}

/** Something a sandbox tried to reach. */
export interface EgressEvent {
  at: string;
  verdict: "allowed" | "denied" | "failed" | "held";
  /** The protocol: dns, http, tls, tcp, udp. */
  kind: string;
  host: string;
  port: number;
  reason: string;
  /** What would allow it; empty when nothing would. */
  rule: string;
  count: number;
  /** Only in 'denied' of a result: the line for people, 'blocked: … it requires --allow …'. */
  text?: string;
}

/** Something that happened: created, forked, checkpoint, rewound, hibernated, woken, ended and so on. */
export interface HuskEvent {
  sequence: number;
  at: string;
  sandbox: string | null;
  kind: string;
  detail: Record<string, unknown> | null;
}

/** A saved state of a sandbox. */
export interface SnapshotInfo {
  id: string;
  name: string | null;
  /** Further names. */
  tags: string[];
  /** Whose it is; null: the instance's own. */
  tenant: string | null;
  /** Taken from. */
  sandbox: string | null;
  template: string;
  isolation: string;
  createdAt: string;
  /** On the host's disk. */
  bytes: number;
  memoryBytes: number;
  diskBytes: number;
  cpus: number;
  /** For every tenant to create from, as tenant/name. */
  shared: boolean;
  /** Of the sandbox it was taken from. */
  metadata: Record<string, string>;
}

/** A point of a sandbox, kept with it to go back to. */
export interface Checkpoint {
  /** From 1 on. */
  number: number;
  label: string | null;
  /** The checkpoint that the sandbox was at before. */
  parent: number | null;
  createdAt: string;
  /** On the host's disk. */
  bytes: number;
  /** The one that the sandbox took or went back to last. */
  current: boolean;
  /** Taken before a call, and removed when there are many. */
  automatic: boolean;
  /** The call that it was taken before, shortened. */
  ran: string | null;
  /** Bytes that left between its parent and it. */
  sent: number;
  /** Requests that were read on their way out between its parent and it. */
  requests: number;
  /** How many files differ between its parent and it; null unless asked for with files=true, or if the state before is gone. */
  filesChanged: number | null;
  /** The first 100 of those files, by path. */
  files: { path: string; change: "added" | "removed" | "changed" }[];
}

/** What a rewind did, and what it could not take back. */
export interface Rewound {
  /** The number of the checkpoint that the sandbox went back to. */
  checkpoint: number;
  label: string | null;
  /** Later checkpoints that were removed. */
  dropped: number;
  /** What left the machine since the checkpoint, by destination. */
  traffic: { host: string; port: number; sent: number; received: number; connections: number; denied: number }[];
  /** Names of those that it can write to: their files are not part of a checkpoint. */
  volumes: string[];
  /** Held after the checkpoint, and dropped. */
  effects: Effect[];
  /** Requests since the checkpoint that were read on their way out (HTTP, and TLS that is opened for secrets or held hosts): the newest 500. */
  requests: { method: string; url: string; count: number }[];
  /** Older requests, of which only the number is known. */
  requestsMore: number;
  /** Connections from outside to ports of the sandbox since the checkpoint. */
  visits: { port: number; connections: number }[];
  /** The same in words: one sentence for each thing that stays done. */
  notUndone: string[];
}

/** What a promotion did. */
export interface Promoted {
  /** The parent, which continues as the fork was. */
  sandbox: string;
  /** Of the parent: the state that it took over. */
  checkpoint: number;
  /** Ids of the fork, and of the other forks of the parent. */
  ended: string[];
  /** Of the fork, and of the parent until the fork: what became of those that were held. */
  effects: Effect[];
}

/** A request to a held host. */
export interface Effect {
  number: number;
  /** Uncertain: it was cut off while it was being sent, may have been, and is never sent again. */
  state: "held" | "sending" | "sent" | "uncertain" | "dropped";
  method: string;
  url: string;
  /** Of its body. */
  bytes: number;
  /** Of the host's answer. */
  status: number | null;
  /** Why it is in this state. */
  detail: string | null;
  /** When the sandbox sent it. */
  at: string;
}

/** What a merge did, or would do. */
export interface Merged {
  /** The sandbox that was merged into. */
  target: string;
  /** False: nothing was written. */
  written: boolean;
  /** That are not resolved. */
  conflicts: number;
  /** By path. */
  changes: { path: string; change: "added" | "removed" | "changed"; merged: boolean; conflict: string | null; resolved: boolean }[];
  /** Paths that are never written, and why. */
  leftOut: { path: string; reason: string }[];
  /** New files that git ignores; 0 in a merge of sandboxes. */
  ignored: number;
}

/** A file that differs between two states. */
export interface Change {
  path: string;
  /** Removed: the other fields are as the file was. */
  change: "added" | "removed" | "changed";
  name: string;
  type: "file" | "directory" | "symlink" | "other";
  size: number;
  /** Octal, as in "0644". */
  mode: string;
  uid: number;
  gid: number;
  user: string | null;
  group: string | null;
  /** Of a symlink. */
  target: string | null;
  modifiedAt: string;
  /** Changed: as it was before; null: not known. */
  oldType: string | null;
  oldSize: number | null;
  oldMode: string | null;
  oldUid: number | null;
  oldGid: number | null;
  oldTarget: string | null;
}

/** What differs between two states besides files. */
export interface Difference {
  /** Deb, pip, npm: a package. */
  kind: "deb" | "pip" | "npm" | "process" | "port";
  change: "added" | "removed" | "changed";
  /** Of the package; the command line; the address and port. */
  name: string;
  /** The version of a package. */
  before: string | null;
  /** The version of a package. */
  after: string | null;
}

/** What sandboxes are created from. */
export interface TemplateInfo {
  name: string;
  /** Whose it is; null: the instance's own. */
  tenant?: string | null;
  built: boolean;
  digest?: string | null;
  description: string | null;
  isolation?: string | null;
  bytes?: number;
  diskBytes?: number;
  createdAt?: string | null;
  oldVersions?: number;
}

/** Who controls a desktop, and whether an agent has asked for a person. */
export interface Control {
  /** A person is in control: actions of agents get 409. */
  held: boolean;
  /** Of the person. */
  name: string | null;
  /** The key of the person's viewer; only in the answer to the one who took control. */
  holder: string | null;
  since: string | null;
  expiresAt: string | null;
  /** The last request for a person. */
  request: { state: "waiting" | "taken" | "done"; reason: string | null; at: string | null } | null;
}

/** A recording of a desktop's screen, made on the host. */
export interface Recording {
  id: string;
  /** Cut: the recorder was killed; what it wrote can be played. */
  state: "recording" | "complete" | "cut";
  /** Why it ended: stopped, time, size, disk, ended (the desktop). */
  reason: string | null;
  startedAt: string;
  durationSeconds: number;
  /** Of the screen's file. */
  bytes: number;
  /** At the beginning. */
  width: number;
  height: number;
}

/** A signed link to a desktop. */
export interface Link {
  url: string;
  viewOnly: boolean;
  expiresAt: string;
}

/** The browser of a desktop, for programs. */
export interface BrowserInfo {
  /** WebSocket of the DevTools protocol, signed. */
  cdpUrl: string;
  /** For clients that ask for /json/version themselves; needs a token. */
  url: string;
  expiresAt: string;
  /** Its version. */
  browser: string | null;
}

/** A process that was started in a sandbox, live or finished. */
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

/** A file or directory of a sandbox. */
export interface Entry {
  path: string;
  name: string;
  type: "file" | "directory" | "symlink" | "other";
  size: number;
  /** Octal, as in "0644". */
  mode: string;
  uid: number;
  gid: number;
  user: string | null;
  group: string | null;
  /** Of a symlink. */
  target: string | null;
  modifiedAt: string;
}

export interface Window {
  /** Of the window, for the actions on windows. */
  id: number;
  /** As its program set it. */
  title: string;
  /** The class of its program, such as Chromium. */
  program: string;
  /** Of its program; 0: unknown. */
  pid: number;
  /** Of its left edge, with the frame. */
  x: number;
  /** Of its upper edge. */
  y: number;
  /** With the frame. */
  width: number;
  /** With the frame. */
  height: number;
  /** It has the keyboard. */
  active: boolean;
  /** It is hidden. */
  minimized: boolean;
}

export interface Element {
  /** For the field element of an action. */
  id: string;
  /** How many elements of the list hold it. */
  depth: number;
  /** Such as push button, entry, link. */
  role: string;
  /** What is written on it, at most 200 characters. */
  name: string;
  /** Of its left edge on the screen. */
  x: number;
  /** Of its upper edge. */
  y: number;
  width: number;
  height: number;
  /** Such as focused, checked, selected, editable, disabled. */
  states: string[];
  /** Of a field to type into, at most 200 characters; absent for others. */
  text?: string;
}
