// Vercel's AI SDK, unmodified, with a sandbox of Husk as its `experimental_sandbox`: every function that the SDK's types name, then an
// agent whose tools use them. The model is a script (the SDK's own class for that). Prints `ok NAME` or `not ok NAME: why`.
import assert from "node:assert/strict";

import { Sandbox } from "@husk/sdk";
import { sandboxSession } from "@husk/sdk/ai";
import { generateText, stepCountIs, streamText, tool, ToolLoopAgent } from "ai";
import { convertArrayToReadableStream, MockLanguageModelV4 } from "ai/test";
import { z } from "zod";

const USER = "coder"; // the template `base` has no user of its own
const tests = [];
const test = (name, run) => tests.push([name, run]);
let sandbox, session;

const text = async (stream) => Buffer.concat(await Array.fromAsync(stream)).toString();
const stream = (...pieces) => new ReadableStream({ start: (to) => (pieces.forEach((each) => to.enqueue(Buffer.from(each))), to.close()) });
const until = async (what, seconds = 30) => {
  for (const end = Date.now() + seconds * 1000; !(await what()); await new Promise((resolve) => setTimeout(resolve, 100)))
    assert.ok(Date.now() < end, `waited in vain: ${what}`);
};

// ---- its functions ----

test("description", async () => {
  assert.match(session.description, /base/);
  assert.match(session.description, /coder/);
  assert.ok(session.description.includes("/home/coder/work"), session.description);
});

test("run", async () => {
  const { run } = session; // tools take it apart
  assert.deepEqual(await run({ command: "echo out; echo err >&2; exit 3" }), { exitCode: 3, stdout: "out\n", stderr: "err\n" });
  assert.equal((await run({ command: "id -un; pwd; echo $A $B", env: { B: "2" } })).stdout, "coder\n/home/coder/work\n1 2\n");
  await run({ command: "mkdir -p below && cd below" });
  assert.equal((await run({ command: "pwd", workingDirectory: "below" })).stdout, "/home/coder/work/below\n");
  assert.equal((await run({ command: "pwd", workingDirectory: "/tmp" })).stdout, "/tmp\n");
  assert.equal((await run({ command: "head -c 3000000 /dev/zero | tr '\\0' ü | wc -c; head -c 3000000 /dev/zero | tr '\\0' x" })).stdout.length, 3000008);
});

test("run, aborted", async () => {
  const abort = new AbortController();
  const going = session.run({ command: "echo $$ >aborted; exec sleep 600", abortSignal: abort.signal });
  await until(async () => (await session.readTextFile({ path: "aborted" }))?.trim());
  abort.abort(new Error("no longer wanted"));
  await assert.rejects(going, /no longer wanted/);
  await until(async () => (await session.run({ command: "kill -0 $(cat aborted)" })).exitCode !== 0);
});

test("files: text, bytes and streams", async () => {
  await session.writeTextFile({ path: "new/place/a.txt", content: "eins\nzwei ü\ndrei\n" });
  assert.equal(await session.readTextFile({ path: "/home/coder/work/new/place/a.txt" }), "eins\nzwei ü\ndrei\n");
  assert.equal(await session.readTextFile({ path: "new/place/a.txt", startLine: 2, endLine: 2 }), "zwei ü");
  assert.equal(await session.readTextFile({ path: "new/place/a.txt", startLine: 3, endLine: 99 }), "drei\n");
  assert.equal((await session.run({ command: "stat -c %U new new/place new/place/a.txt" })).stdout, "coder\ncoder\ncoder\n");
  const bytes = Uint8Array.from({ length: 70000 }, (_, at) => at);
  await session.writeBinaryFile({ path: "data", content: bytes });
  assert.deepEqual(new Uint8Array(await session.readBinaryFile({ path: "data" })), bytes);
  await session.writeFile({ path: "data", content: stream("one ", "two") });
  assert.equal(await text(await session.readFile({ path: "data" })), "one two");
  await session.writeTextFile({ path: "latin", content: "ü", encoding: "latin1" });
  assert.deepEqual([...(await session.readBinaryFile({ path: "latin" }))], [0xfc]);
  assert.equal(await session.readTextFile({ path: "latin", encoding: "latin1" }), "ü");
  await session.writeBinaryFile({ path: "empty", content: new Uint8Array() });
  assert.equal(await text(await session.readFile({ path: "empty" })), "");
  assert.equal(await session.readTextFile({ path: "empty" }), "");
});

test("files: stat, listDirectory, deleteFile", async () => {
  await session.run({ command: "mkdir -p listed/sub && cd listed && echo 12345 >f && ln -s f to-f && ln -s nowhere broken && mkfifo pipe && ln -s sub to-sub" });
  const found = (await session.listDirectory({ path: "listed" })).sort((a, b) => (a.name < b.name ? -1 : 1));
  const names = { broken: "symlink", f: "file", pipe: "other", sub: "directory", "to-f": "symlink", "to-sub": "symlink" };
  assert.deepEqual(found, Object.entries(names).map(([name, type]) => ({ name, type })));
  assert.deepEqual(await session.stat({ path: "listed/to-f" }), { type: "file", size: 6 });
  assert.equal((await session.stat({ path: "listed/to-sub" })).type, "directory");
  assert.equal((await session.stat({ path: "listed/pipe" })).type, "other");
  assert.equal(await session.stat({ path: "listed/broken" }), null);
  assert.equal(await session.deleteFile({ path: "listed/to-f" }), true);
  assert.deepEqual(await session.stat({ path: "listed/f" }), { type: "file", size: 6 });
  assert.equal(await session.deleteFile({ path: "listed/broken" }), true);
  assert.equal(await session.deleteFile({ path: "listed/to-f" }), false);
  await assert.rejects(async () => session.deleteFile({ path: "listed/sub" }), /directory/);
  assert.equal((await session.stat({ path: "listed/sub" })).type, "directory");
});

test("files: what is missing, and what is a directory", async () => {
  for (const name of ["readFile", "readBinaryFile", "readTextFile", "stat", "listDirectory"])
    assert.equal(await session[name]({ path: "no/such/thing" }), null, name);
  await session.run({ command: "mkdir -p folder; touch plain" });
  await assert.rejects(async () => session.listDirectory({ path: "plain" }));
  await assert.rejects(async () => session.readTextFile({ path: "folder" }));
  await assert.rejects(async () => session.writeTextFile({ path: "folder", content: "x" }));
  await assert.rejects(async () => session.writeTextFile({ path: "x", content: "x", encoding: "ebcdic" }), /ebcdic/);
  assert.equal((await session.stat({ path: "folder" })).type, "directory");
});

test("spawn", async () => {
  const going = await session.spawn({ command: "echo one; sleep 0.5; echo two >&2; echo three; exit 4", env: { A: "x" } });
  assert.ok(going.pid > 0);
  assert.equal("stdin" in going, false);
  assert.deepEqual([await text(going.stderr), await text(going.stdout), await going.wait()], ["two\n", "one\nthree\n", { exitCode: 4 }]);
  await going.kill(); // of one that has ended: nothing
});

test("spawn: streams while it runs, kill, abort", async () => {
  const going = await session.spawn({ command: "echo ready; exec sleep 600" });
  const { value } = await going.stdout.getReader().read();
  assert.equal(Buffer.from(value).toString(), "ready\n");
  await going.kill();
  await going.kill();
  assert.notEqual((await going.wait()).exitCode, 0);
  const abort = new AbortController();
  const other = await session.spawn({ command: "sleep 600", abortSignal: abort.signal });
  abort.abort(new Error("enough"));
  await assert.rejects(async () => other.wait(), /enough/);
  await until(async () => (await session.run({ command: `kill -0 ${other.pid}` })).exitCode !== 0);
  await assert.rejects(async () => session.spawn({ command: "true", abortSignal: abort.signal }), /enough/);
});

test("spawn: stdin", async () => {
  const going = await session.spawn({ command: "wc -c; echo done", stdin: true });
  const writer = going.stdin.getWriter();
  for (let piece = 0; piece < 20; piece++) await writer.write(Buffer.alloc(50_000, 120));
  await writer.close();
  assert.equal(await text(going.stdout), "1000000\ndone\n");
  assert.deepEqual(await going.wait(), { exitCode: 0 });
});

test("a killed sandbox is an error, and not a missing file", async () => {
  const other = await Sandbox.create({ ttlSeconds: 300 });
  const its = await sandboxSession(other);
  assert.equal((await its.run({ command: "id -un" })).stdout, "root\n");
  const going = await its.spawn({ command: "sleep 600" });
  await other.kill();
  await assert.rejects(async () => going.wait());
  await assert.rejects(async () => its.readTextFile({ path: "/etc/hostname" }));
  await assert.rejects(async () => its.stat({ path: "/nowhere" }));
  await assert.rejects(async () => its.run({ command: "true" }));
});

// ---- the SDK's own loop ----

const tools = {
  shell: tool({
    description: ({ experimental_sandbox }) => `Runs a command. ${experimental_sandbox.description}`,
    inputSchema: z.object({ command: z.string() }),
    execute: ({ command }, { experimental_sandbox, abortSignal }) => experimental_sandbox.run({ command, abortSignal }),
  }),
  write: tool({
    inputSchema: z.object({ path: z.string(), content: z.string() }),
    execute: async (input, { experimental_sandbox }) => (await experimental_sandbox.writeTextFile(input), "written"),
  }),
};
const PRIMES = "found = [n for n in range(2, 230) if all(n % d for d in range(2, n))]\nprint(len(found), found[-1])\n";
const usage = { inputTokens: { total: 1 }, outputTokens: { total: 1 } };
const call = (toolName, input) => ({ type: "tool-call", toolCallId: `call-${toolName}`, toolName, input: JSON.stringify(input) });
const STEPS = [call("write", { path: "primes.py", content: PRIMES }), call("shell", { command: "python3 primes.py" })];

/** A model that writes a program, runs it, and says what it printed. */
function answer({ prompt }) {
  const results = prompt.filter(({ role }) => role === "tool").flatMap(({ content }) => content);
  const step = STEPS[results.length];
  return step ?? { type: "text", text: `It says ${results[1].output.value.stdout.trim()}.` };
}

const finish = (part) => ({ unified: part.type === "text" ? "stop" : "tool-calls", raw: undefined });
const scripted = () =>
  new MockLanguageModelV4({
    doGenerate: async (options) => {
      const part = answer(options);
      return { content: [part], finishReason: finish(part), usage, warnings: [] };
    },
    doStream: async (options) => {
      const part = answer(options);
      const spoken = [{ type: "text-start", id: "1" }, { type: "text-delta", id: "1", delta: part.text }, { type: "text-end", id: "1" }];
      const parts = [{ type: "stream-start", warnings: [] }, ...(part.type === "text" ? spoken : [part]), { type: "finish", finishReason: finish(part), usage }];
      return { stream: convertArrayToReadableStream(parts) };
    },
  });

test("generateText with tools in the sandbox", async () => {
  const model = scripted();
  const done = await generateText({ model, tools, experimental_sandbox: session, stopWhen: stepCountIs(5), prompt: "The primes?" });
  assert.equal(done.text, "It says 50 229.");
  assert.match(model.doGenerateCalls[0].tools[0].description, /home\/coder\/work/);
});

test("streamText with tools in the sandbox", async () => {
  const done = streamText({ model: scripted(), tools, experimental_sandbox: session, stopWhen: stepCountIs(5), prompt: "The primes?" });
  assert.equal(await done.text, "It says 50 229.");
});

test("ToolLoopAgent with tools in the sandbox", async () => {
  const agent = new ToolLoopAgent({ model: scripted(), tools });
  assert.equal((await agent.generate({ prompt: "The primes?", experimental_sandbox: session })).text, "It says 50 229.");
});

sandbox = await Sandbox.create({ ttlSeconds: 900 });
let failed = 0;
try {
  await sandbox.exec(`useradd -m ${USER}`, { check: true });
  session = await sandboxSession(sandbox, { user: USER, workingDirectory: "/home/coder/work", env: { A: "1" } });
  for (const [name, run] of tests) {
    try {
      await run();
      console.log(`ok ${name}`);
    } catch (error) {
      failed++;
      console.log(`not ok ${name}: ${String(error?.stack ?? error).replaceAll("\n", " | ")}`);
    }
  }
} finally {
  await sandbox.kill();
}
process.exit(failed ? 1 : 0);
