/**
 * A directory of the caller in a sandbox: `sandbox.workspace`. Files are compared and merged on this machine by the husk program, as they
 * are for the command line. The token goes to it through the environment, where other users do not see it.
 */
import { execFile } from "node:child_process";

import { HuskError, InvalidError, NotFoundError, UnavailableError } from "./errors.js";
import { fromWire, type Change, type Merged } from "./models.js";
import type { Transport } from "./transport.js";

const OUTPUT_MAX = 1 << 30;
const FAILED = 1; // exit codes of husk
const USAGE = 2;
const MISSING = 3;

interface Ended {
  code: number;
  stdout: string;
  stderr: string;
}

function execute(program: string, words: string[], env: NodeJS.ProcessEnv): Promise<Ended> {
  return new Promise((resolve, reject) => {
    execFile(program, words, { env, maxBuffer: OUTPUT_MAX }, (error, stdout, stderr) => {
      const code = error ? (error as { code?: unknown }).code : 0;
      if (typeof code === "number") resolve({ code, stdout, stderr });
      else if (code === "ENOENT" || code === "EACCES")
        reject(
          new UnavailableError(
            `workspaces need the husk program on this machine, and '${program}' was not found; install Husk here too, or name the program in HUSK_PROGRAM`,
            { code: "unavailable" },
          ),
        );
      else reject(new HuskError(`husk ${words[0]} was ended: ${error?.message}`, { cause: error }));
    }).stdin?.end();
  });
}

export interface ApplyOptions {
  /** Only tell what would be done. */
  dryRun?: boolean;
  /** Write in spite of conflicts: markers in text, or "ours" (the directory's version), or "theirs". */
  conflicts?: "markers" | "ours" | "theirs";
  /** Bytes of the changed files, or "2G"; 1 GiB unless told. */
  limit?: number | string;
}

/** A path that `workspace.sync` carried over, or could not. */
export interface Synced {
  path: string;
  change: "added" | "removed" | "changed";
  /** "neither": a conflict, and both sides keep their version. */
  to: "sandbox" | "directory" | "neither";
  /** Both had changed it, and have the same now. */
  merged: boolean;
  conflict: string | null;
}

/** A copy of a directory of yours, and the way back for what the sandbox changed in it. Nothing of this machine is mounted. Needs the husk
 *  program on this machine: HUSK_PROGRAM, or husk of the PATH. */
export class Workspace {
  constructor(
    private readonly transport: Transport,
    private readonly sandbox: string,
  ) {}

  /** @internal Fails if the husk program is not there. */
  static async check(): Promise<void> {
    await execute(process.env.HUSK_PROGRAM || "husk", ["version"], process.env);
  }

  /** What husk prints. With exit code 1 and a result that has `told` of them, it has found conflicts. */
  private async run(words: string[], told: (output: string) => boolean = Boolean): Promise<string> {
    const { HUSK_HOST, HUSK_TOKEN, ...rest } = process.env;
    const done = await execute(process.env.HUSK_PROGRAM || "husk", words, { ...rest, ...this.transport.forHusk() });
    if (done.code === 0 || (done.code === FAILED && told(done.stdout))) return done.stdout;
    const said = done.stderr.split("\n").filter((line) => line.startsWith("husk: "));
    const message = said.at(-1)?.slice("husk: ".length) ?? `husk ${words[0]} ended with status ${done.code}`;
    if (done.code === USAGE) throw new InvalidError(message, { code: "invalid" });
    if (done.code === MISSING) throw new NotFoundError(message, { code: "not_found" });
    throw new HuskError(message);
  }

  /** Copies "DIR" or "DIR:/path" in, without what git ignores unless `all`. The answer is where it is in the sandbox. `create` does this with
   *  its `workspace`. */
  async bring(directory: string, options: { all?: boolean } = {}): Promise<string> {
    const words = ["workspace", "--json", ...(options.all ? ["--all"] : []), "--", this.sandbox, directory];
    return (JSON.parse(await this.run(words)) as { path: string }).path;
  }

  /** What the sandbox changed, as a patch for `git apply`; "" if nothing. */
  diff(): Promise<string> {
    return this.run(["diff", "--workspace", this.sandbox]);
  }

  /** The files that the sandbox changed; their paths are relative to the directory. */
  async changes(): Promise<Change[]> {
    const list = JSON.parse(await this.run(["diff", "--workspace", "--json", this.sandbox])) as object[];
    return list.map((document) => fromWire<Change>(document));
  }

  /** Writes what the sandbox changed back to the directory: three-way against what you changed meanwhile, all or nothing. With conflicts
   *  nothing is written (`written` is false), unless `conflicts` says how. Never written: .git, links that lead outside, devices, and
   *  new files that git ignores. */
  async apply(options: ApplyOptions = {}): Promise<Merged> {
    const words = ["apply", "--json", this.sandbox];
    if (options.dryRun) words.push("--dry-run");
    if (options.conflicts !== undefined) words.push("--conflicts", options.conflicts);
    if (options.limit !== undefined) words.push("--limit", String(options.limit));
    return fromWire<Merged>(JSON.parse(await this.run(words)) as object);
  }
  /** Carries your changes of the directory into the sandbox, and the sandbox's into the directory, once. The answer is what was carried
   *  over, and conflicts, which change neither side and hold back no other path, unless `conflicts` says how. */
  async sync(options: Omit<ApplyOptions, "dryRun"> = {}): Promise<Synced[]> {
    const words = ["sync", "--json", this.sandbox];
    if (options.conflicts !== undefined) words.push("--conflicts", options.conflicts);
    if (options.limit !== undefined) words.push("--limit", String(options.limit));
    // One document for each line; those without a path are remarks for people.
    const parse = (output: string): Synced[] =>
      output.split("\n").filter(Boolean).map((line) => fromWire<Synced>(JSON.parse(line) as object)).filter((each) => each.path !== undefined);
    return parse(await this.run(words, (output) => parse(output).some((each) => each.conflict)));
  }
}
