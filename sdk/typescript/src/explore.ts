// Branches of a sandbox: forks that try something each, are scored, and of which the best stay. Used by Sandbox.explore; it makes no
// requests of its own. Whatever happens, no fork is left over that the caller was not given.

import type { Sandbox } from "./sandbox.js";

type Command = string | readonly string[];

export type Plan = Command | ((sandbox: Sandbox) => Promise<unknown>);
export type Score = Command | ((sandbox: Sandbox, result: any) => Promise<number | undefined> | number | undefined);

export interface ExploreOptions {
  /** how many forks stay; 1 unless told */
  keep?: number;
  /** for all plans together */
  budgetSeconds?: number;
  /** how many run at a time; 8 unless told */
  parallel?: number;
  /** the winner takes the place of the sandbox; with keep 1 it does unless this is false */
  promote?: boolean;
}

/** One plan, and what came of it. */
export interface Branch {
  plan: Plan;
  /** the fork; it has ended unless `kept` */
  sandbox: Sandbox;
  /** of the command (ExecResult), or of the function */
  result?: unknown;
  /** undefined: it failed */
  score?: number;
  /** why there is no score */
  error?: string;
  /** its sandbox lives, or took the place of its parent */
  kept: boolean;
}

async function every<T>(items: T[], limit: number, call: (item: T) => Promise<void>): Promise<void> {
  const left = [...items];
  const worker = async () => {
    for (let item = left.shift(); item !== undefined; item = left.shift()) await call(item);
  };
  await Promise.all(Array.from({ length: Math.min(limit, items.length) }, worker));
}

async function attempt(branch: Branch, score: Score, deadline: number): Promise<void> {
  const timeout = () => (deadline === Infinity ? {} : { timeoutSeconds: Math.max((deadline - Date.now()) / 1000, 1) });
  if (Date.now() >= deadline) {
    branch.error = "the budget was used up before it began";
    return;
  }
  if (typeof branch.plan === "function") {
    branch.result = await branch.plan(branch.sandbox);
  } else {
    const result = (branch.result = await branch.sandbox.exec(branch.plan, timeout()));
    if (result.exitCode !== 0) {
      branch.error = `the command ended with ${result.exitCode}`;
      return;
    }
  }
  let found: number | undefined;
  if (typeof score === "function") {
    found = await score(branch.sandbox, branch.result);
  } else {
    const said = await branch.sandbox.exec(score, timeout());
    if (said.exitCode === 0) found = Number.parseFloat(said.stdout.trim().split("\n").at(-1) ?? "");
    else branch.error = `the scoring command ended with ${said.exitCode}`;
  }
  if (found !== undefined && !Number.isNaN(found)) branch.score = found;
  else branch.error ??= typeof score === "function" ? "it was given no score" : "the scoring command printed no number";
}

async function end(branch: Branch): Promise<void> {
  await branch.sandbox.kill().catch(() => undefined); // it has ended already, or its TTL ends it
}

export async function explore(sandbox: Sandbox, plans: Plan[], score: Score, options: ExploreOptions): Promise<Branch[]> {
  const { keep = 1, parallel = 8, budgetSeconds, promote } = options;
  if (!plans.length) throw new RangeError("explore needs at least one plan");
  if (keep < 0 || parallel < 1 || (promote && keep !== 1))
    throw new RangeError("keep is 0 or more, parallel 1 or more, and only one branch can be promoted");
  const deadline = budgetSeconds === undefined ? Infinity : Date.now() + budgetSeconds * 1000;
  const forks = await sandbox.fork(plans.length);
  const branches: Branch[] = plans.map((plan, index) => ({ plan, sandbox: forks[index]!, kept: false }));
  try {
    await every(branches, parallel, async (branch) => {
      // a plan is the caller's: one that fails is one that lost
      await attempt(branch, score, deadline).catch((error: unknown) => void (branch.error = String(error)));
    });
    branches.sort((a, b) => (b.score ?? -Infinity) - (a.score ?? -Infinity) || 0);
    for (const branch of branches.slice(0, keep)) branch.kept = branch.score !== undefined;
    await every(branches.filter((branch) => !branch.kept), parallel, end);
    const best = branches[0]!;
    if (keep === 1 && best.kept && promote !== false) {
      await best.sandbox.promote({ keep: true });
      best.sandbox = sandbox;
    }
    return branches;
  } catch (error) {
    await every(branches.filter((branch) => !branch.kept), parallel, end);
    throw error;
  }
}
