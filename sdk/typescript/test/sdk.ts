// The SDK against a real server, started by tests/e2e/86_sdk_typescript.py. One line per test, as tests/run counts them.
import assert from "node:assert/strict";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createServer, request } from "node:http";
import type { AddressInfo } from "node:net";
import {
  AuthenticationError, ConnectionError, ExecError, HuskError, InvalidError, NotFoundError, Sandbox, UnavailableError, snapshots,
  templates, toolbox, volumes,
  type Pty, type FileChange,
} from "@husk/sdk";

const tests: [string, () => Promise<void>][] = [];
const test = (name: string, run: () => Promise<void>) => tests.push([name, run]);
let box: Sandbox;

test("create, exec and the result's fields", async () => {
  const done = await box.exec("echo out; echo err >&2; exit 3");
  assert.deepEqual([done.stdout, done.stderr, done.exitCode, done.timedOut], ["out\n", "err\n", 3, false]);
  assert.ok(done.durationMs >= 0);
  assert.equal((await box.exec(["printf", "%s", "a b"])).stdout, "a b");
  assert.equal(box.info.metadata.suite, "typescript");
});

test("options of exec", async () => {
  const done = await box.exec("pwd; echo $WORD; cat", { cwd: "/tmp", env: { WORD: "w" }, stdin: "in" });
  assert.equal(done.stdout, "/tmp\nw\nin");
  assert.equal((await box.exec("cat | od -An -tx1", { stdin: new Uint8Array([0, 255]) })).stdout.trim(), "00 ff");
  assert.equal((await box.exec("sleep 60", { timeoutSeconds: 0.3 })).timedOut, true);
  await assert.rejects(box.exec("echo no >&2; exit 4", { check: true }), (error: unknown) => error instanceof ExecError && /no/.test(error.message));
});

test("a command that runs out of memory is told with what to do", async () => {
  await using small = await Sandbox.create({ memory: "128M", ttlSeconds: 120 });
  const eater = "python3 -c 'bytearray(10**9)'";
  assert.equal((await small.exec(eater)).outOfMemory, true);
  await assert.rejects(small.exec(eater, { check: true }), /exit code 137 \(out of memory: Sandbox\.create\(\{ memory \}\)/);
});

test("output as it comes, by callback and by iteration", async () => {
  const seen: string[] = [];
  const done = await box.exec("echo one; sleep 0.2; echo zwei ü", { onStdout: (text) => seen.push(text) });
  assert.equal(seen.join(""), "one\nzwei ü\n");
  assert.equal(done.stdout, "one\nzwei ü\n");
  const kinds: string[] = [];
  for await (const event of box.execStream("echo a; echo b >&2")) kinds.push(event.type);
  assert.equal(kinds[0], "start");
  assert.equal(kinds.at(-1), "exit");
  assert.ok(kinds.includes("stdout") && kinds.includes("stderr"));
});

test("a desktop, where there is none", async () => {
  const none = (error: unknown) => error instanceof UnavailableError && /-t desktop/.test(error.message);
  await assert.rejects(box.desktop.act([{ action: "left_click", coordinate: [1, 2] }], { screenshot: { maxWidth: 100 } }), none);
  await assert.rejects(box.desktop.screenshot({ format: "jpeg", region: [0, 0, 5, 5] }), none);
  await assert.rejects(box.desktop.click({ x: 1, y: 2, button: "right" }), none);
  await assert.rejects(box.desktop.setClipboard("x"), none);
  await assert.rejects(box.desktop.windows(), none);
  await assert.rejects(box.desktop.act([], { space: { width: 0, height: 1 } }), HuskError);
});

test("aborting kills the command", async () => {
  const abort = new AbortController();
  const going = box.exec("echo $$ >/tmp/aborted.pid; exec sleep 600", { signal: abort.signal });
  while (!(await box.filesystem.exists("/tmp/aborted.pid"))) await new Promise((resolve) => setTimeout(resolve, 50));
  abort.abort();
  await assert.rejects(going, { name: "AbortError" });
  await box.exec("until ! kill -0 $(cat /tmp/aborted.pid); do sleep 0.1; done", { timeoutSeconds: 20, check: true });
});

test("background processes: attach, stdin, signal", async () => {
  const going = await box.start("read line; echo got $line; sleep 600", { stdin: true, label: "worker" });
  await going.write("hello\n");
  for await (const event of going.output()) if (event.type === "stdout" && event.text.includes("got hello")) break;
  assert.ok((await box.processes()).some((each) => each.pid === going.pid && each.running && each.label === "worker"));
  await going.kill("KILL");
  const done = await box.process(going.pid).wait();
  assert.deepEqual([done.stdout, done.signal], ["got hello\n", 9]);
});

test("a terminal: resize, leave, attach again", async () => {
  const terminal = await box.pty({ cmd: "sh", rows: 30, columns: 100 });
  const read = async (pty: Pty, wanted: RegExp) => {
    let seen = "";
    for await (const piece of pty) {
      seen += Buffer.from(piece).toString();
      if (wanted.test(seen)) return seen;
    }
    throw new Error(`ended after ${JSON.stringify(seen)}`);
  };
  terminal.write("stty size; echo do''ne\n");
  assert.match(await read(terminal, /done/), /30 100/);
  terminal.resize(40, 120);
  terminal.write("stty size; echo ag''ain\n");
  assert.match(await read(terminal, /again/), /40 120/);
  terminal.close();
  const back = await box.pty({ pid: terminal.pid });
  back.write("echo re''turned; exit 5\n");
  await read(back, /returned/);
  for await (const _ of back);
  assert.equal(back.exit?.exitCode, 5);
});

test("files", async () => {
  const files = box.filesystem;
  const entry = await files.write("/root/d/a.txt", "text", { mode: 0o600 });
  assert.deepEqual([entry.size, entry.mode, entry.type], [4, "0600", "file"]);
  assert.equal(await files.readText("/root/d/a.txt"), "text");
  const big = Buffer.alloc(3_000_000, 7);
  await files.write("/root/d/big", (async function* () { yield big.subarray(0, 1_000_000); yield big.subarray(1_000_000); })());
  assert.ok(big.equals(await files.read("/root/d/big")));
  let part = Buffer.alloc(0);
  for await (const piece of files.stream("/root/d/a.txt", { start: 1, end: 3 })) part = Buffer.concat([part, piece]);
  assert.equal(part.toString(), "ex");
  assert.deepEqual((await files.list("/root/d")).map((each) => each.name).sort(), ["a.txt", "big"]);
  await files.move("/root/d/a.txt", "/root/d/b.txt");
  await files.chmod("/root/d/b.txt", "0644");
  assert.equal((await files.stat("/root/d/b.txt")).mode, "0644");
  await files.mkdir("/root/e/f");
  const tar: Uint8Array[] = [];
  for await (const piece of files.readTar("/root/d")) tar.push(piece);
  await files.writeTar("/root/e", Buffer.concat(tar));
  assert.match((await box.exec("find /root/e -name b.txt")).stdout, /b\.txt/);
  await files.remove("/root/d");
  assert.equal(await files.exists("/root/d"), false);
});

test("watching a directory", async () => {
  await box.filesystem.mkdir("/root/w");
  const seen: FileChange[] = [];
  const poke = setInterval(() => void box.exec("touch /root/w/x$(date +%N)"), 200);
  try {
    for await (const change of box.filesystem.watch("/root/w")) {
      seen.push(change);
      break;
    }
  } finally {
    clearInterval(poke);
  }
  assert.match(seen[0]!.path, /x/);
});

test("run_code keeps its state and shows errors", async () => {
  await box.runCode("x = 20");
  const done = await box.runCode("print('hi'); x + 1");
  assert.deepEqual([done.stdout, done.text, done.error], ["hi\n", "21", null]);
  assert.equal((await box.runCode("1/0")).error?.name, "ZeroDivisionError");
  assert.ok((await box.contexts()).length > 0);
});

test("volumes", async () => {
  const volume = await volumes.create("ts-volume", { size: "64M" });
  try {
    await using one = await Sandbox.create({ volumes: [{ volume: "ts-volume", path: "/data" }], ttlSeconds: 120 });
    await one.exec("echo kept >/data/a", { check: true });
    await using two = await Sandbox.create({ volumes: [{ volume: volume.id, path: "/data", read_only: true }], ttlSeconds: 120 });
    assert.equal((await two.exec("cat /data/a")).stdout, "kept\n");
    assert.deepEqual(two.info.volumes, [{ volume: "ts-volume", path: "/data", read_only: true }]);
    assert.equal((await volumes.list()).find((each) => each.id === volume.id)?.sandboxes.length, 2);
  } finally {
    await volumes.remove(volume.id);
  }
});

test("fork, snapshot, hibernate, wake", async () => {
  await box.exec("echo before >/root/state");
  const child = await box.fork();
  const [one, two] = (await box.fork(2, { ttlSeconds: 120 })) as [Sandbox, Sandbox];
  try {
    await child.exec("echo child >/root/state");
    assert.equal((await box.exec("cat /root/state")).stdout, "before\n");
    assert.equal((await one.exec("cat /root/state")).stdout, "before\n");
    assert.equal(one.info.parent, box.id);
    const family = await one.tree();
    assert.deepEqual([family.id, family.children.find((each) => each.asked)?.id], [box.id, one.id]);
    assert.notEqual(one.id, two.id);
    await one.hibernate();
    assert.equal(one.info.state, "hibernated");
    assert.equal((await one.exec("cat /root/state")).stdout, "before\n");
  } finally {
    await Promise.all([child, one, two].map((each) => each.kill()));
  }
  const snapshot = await box.snapshot("ts-snapshot");
  try {
    await using again = await Sandbox.create({ snapshot: "ts-snapshot", ttlSeconds: 120 });
    assert.equal((await again.exec("cat /root/state")).stdout, "before\n");
    assert.ok((await snapshots.list()).some((each) => each.id === snapshot.id));
    const file = `${tmpdir()}/husk-ts-${process.pid}.tar`;
    try {
      await snapshots.export("ts-snapshot", file);
      await assert.rejects(snapshots.import(file, { name: "ts-copy" })); // the instance's owner alone may
    } finally {
      await rm(file, { force: true });
    }
  } finally {
    await snapshots.remove(snapshot.id);
  }
});

test("a directory of ours: in, as a patch, and back", async () => {
  const place = await mkdtemp(join(tmpdir(), "husk-workspace-"));
  const directory = join(place, "project");
  process.env.XDG_STATE_HOME = join(place, "state");
  try {
    await mkdir(directory);
    await writeFile(join(directory, "notes"), "one\ntwo\nthree\n");
    await using work = await Sandbox.create({ workspace: `${directory}:/srv/work`, ttlSeconds: 300 });
    assert.deepEqual((await work.history()).map((each) => each.label), ["workspace"]);
    assert.equal(await work.workspace.diff(), "");
    await work.exec("sed -i s/one/ONE/ notes; echo new >result", { cwd: "/srv/work", check: true });
    assert.match(await work.workspace.diff(), /-one\n\+ONE\n/);
    assert.deepEqual((await work.workspace.changes()).map((each) => [each.path, each.change]), [["notes", "changed"], ["result", "added"]]);
    assert.equal((await work.workspace.apply({ dryRun: true })).written, false);
    await writeFile(join(directory, "result"), "mine\n");
    const refused = await work.workspace.apply();
    assert.deepEqual([refused.written, refused.conflicts], [false, 1]);
    assert.equal(await readFile(join(directory, "notes"), "utf8"), "one\ntwo\nthree\n");
    assert.equal((await work.workspace.apply({ conflicts: "ours" })).written, true);
    assert.equal(await readFile(join(directory, "notes"), "utf8"), "ONE\ntwo\nthree\n");
    assert.equal(await readFile(join(directory, "result"), "utf8"), "mine\n");
    await writeFile(join(directory, "mine"), "here\n");
    await work.exec("echo there >theirs; echo two >both", { cwd: "/srv/work", check: true });
    await writeFile(join(directory, "both"), "one\n");
    const carried = (await work.workspace.sync()).map((each) => [each.path, each.change, each.to]);
    assert.deepEqual(carried.sort(), [["both", "changed", "neither"], ["mine", "added", "sandbox"], ["result", "changed", "sandbox"], ["theirs", "added", "directory"]]);
    assert.equal((await work.exec("cat mine", { cwd: "/srv/work" })).stdout, "here\n");
    assert.deepEqual((await work.workspace.sync({ conflicts: "ours" })).map((each) => [each.path, each.to, each.conflict]), [["both", "sandbox", null]]);
    assert.deepEqual(await work.workspace.sync(), []);
    await assert.rejects(work.workspace.sync({ limit: "many" }), /limit/);
    await assert.rejects(Sandbox.create({ workspace: join(place, "nowhere") }), /nowhere/);
    await assert.rejects(box.workspace.apply(), NotFoundError);
    const program = process.env.HUSK_PROGRAM;
    process.env.HUSK_PROGRAM = "/nowhere/husk";
    await assert.rejects(Sandbox.create({ workspace: directory }), UnavailableError);
    process.env.HUSK_PROGRAM = program;
  } finally {
    await rm(place, { recursive: true, force: true });
  }
});

test("checkpoints, and back to them", async () => {
  await box.exec("echo one >/root/point");
  const first = await box.checkpoint("first");
  assert.deepEqual([first.number, first.label, first.current], [1, "first", true]);
  await box.exec("echo two >/root/point");
  assert.equal((await box.checkpoint()).parent, 1);
  const [, second] = await box.history({ files: true });
  assert.deepEqual([second!.filesChanged, second!.files], [1, [{ path: "/root/point", change: "changed" }]]);
  const done = await box.rewind("first");
  assert.deepEqual([done.checkpoint, done.dropped, done.notUndone], [1, 0, []]);
  assert.equal((await box.exec("cat /root/point")).stdout, "one\n");
  assert.equal((await box.rewind(2)).checkpoint, 2);
  assert.equal((await box.exec("cat /root/point")).stdout, "two\n");
  assert.equal((await box.rewind(1, { dropLater: true })).dropped, 1);
  assert.deepEqual((await box.history()).map((each) => each.number), [1]);
  await box.removeCheckpoint("first");
  assert.deepEqual(await box.history(), []);
});

test("what changed", async () => {
  const [child] = await box.fork(1);
  await child!.exec("echo x >/root/diff-me");
  assert.deepEqual((await child!.diff({ against: box })).map((each) => [each.path, each.change]), [["/root/diff-me", "added"]]);
  assert.deepEqual((await child!.diff({ path: "/root/diff-me" })).map((each) => each.type), ["file"]);
  assert.deepEqual((await child!.promote({ keep: true })).ended, [child!.id]);
  assert.equal((await box.exec("cat /root/diff-me")).stdout, "x\n");
  assert.deepEqual([await box.effects(), await box.sendEffects(), await box.dropEffects()], [[], [], []]);
  await assert.rejects(box.sendEffects([1]), /no effect 1/);
});

test("merge and explore", async () => {
  const [left, right] = await box.fork(2);
  await left!.exec("echo l >/root/left");
  assert.deepEqual((await right!.merge(left!, { path: "/root", dryRun: true })).written, false);
  assert.deepEqual((await right!.merge(left!, { path: "/root" })).changes.map((each) => each.path), ["/root/left"]);
  assert.equal((await right!.exec("cat /root/left")).stdout, "l\n");
  await Promise.all([left!.kill(), right!.kill()]);

  const branches = await box.explore(["echo 2 >/root/best", "exit 1", "echo 30 >/root/best"], "cat /root/best");
  assert.deepEqual(branches.map((each) => [each.score, each.kept]), [[30, true], [2, false], [undefined, false]]);
  assert.equal((await box.exec("cat /root/best")).stdout, "30\n");
  const beam = await box.explore([async (fork) => (await fork.exec("echo 7")).stdout, "true"], (_, result) => Number(result) || 0, { keep: 2 });
  assert.deepEqual(beam.map((each) => each.kept), [true, true]);
  await Promise.all(beam.map((each) => each.sandbox.kill()));
});

test("extend, metadata, stats, events, logs, list, connect", async () => {
  assert.ok(Date.parse((await box.extend(900))!) > Date.now());
  await box.resize({ memory: "640M" });
  assert.match((await box.exec("head -1 /proc/meminfo")).stdout, /655360 kB/);
  await box.setMetadata({ suite: "typescript", step: "2" });
  assert.equal((await box.refresh()).metadata.step, "2");
  assert.ok((await box.stats()).memoryBytes > 0);
  const kinds: string[] = [];
  for await (const event of box.events()) kinds.push(event.kind);
  assert.ok(kinds.includes("created"), kinds.join());
  assert.match(await box.logs(), /created/);
  assert.equal(typeof (await box.logs("console")), "string");
  const found: string[] = [];
  for await (const each of Sandbox.list({ metadata: { step: "2" } })) found.push(each.id);
  assert.deepEqual(found, [box.id]);
  assert.equal((await (await Sandbox.connect(box.id)).exec("echo same")).stdout, "same\n");
  assert.ok((await templates.list()).some((each) => each.name === "base" && each.built));
});

test("a URL to a server inside", async () => {
  await box.filesystem.write("/root/www/index.html", "from inside");
  const server = await box.start("cd /root/www && exec python3 -m http.server 8123");
  await box.exec("until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8123))' 2>/dev/null; do sleep 0.1; done", { timeoutSeconds: 30 });
  const url = await box.getUrl(8123, { expiresSeconds: 60 });
  // The name under .localhost is resolved here, since not every resolver knows it.
  const { hostname, port, pathname, search } = new URL(url);
  const body = await new Promise<string>((resolve, reject) => {
    request({ host: "127.0.0.1", port, path: pathname + search, headers: { Host: `${hostname}:${port}` } }, (answer) => {
      let text = "";
      answer.on("data", (piece) => (text += piece)).on("end", () => resolve(text));
    }).on("error", reject).end();
  });
  assert.equal(body, "from inside");
  const byPath = new URL(await box.getUrl(8123, { byPath: true }));
  byPath.hostname = "127.0.0.1";
  assert.equal(await (await fetch(byPath)).text(), "from inside");
  await server.kill("KILL");
});

test("the network: denied unless allowed, and said so", async () => {
  assert.equal((await box.egress()).mode, "off");
  const policy = await box.setEgress({ allow: ["example.test"], limits: { connections: 8 } });
  assert.deepEqual([policy.mode, policy.allow], ["allow", ["example.test"]]);
  const line = "blocked: denied.test is not allowed; it requires --allow denied.test";
  const failed = await box.exec("getent hosts denied.test");
  assert.deepEqual(failed.denied.map((each) => each.text), [line]);
  assert.deepEqual((await box.exec("true")).denied, []);
  await assert.rejects(box.exec("getent hosts denied.test", { check: true, onStdout: () => {} }), (error: Error) => error.message.includes(line));
  assert.ok((await toolbox(box).call("run_shell", { command: "getent hosts denied.test" })).text.includes(line));
  assert.ok((await toolbox(box).call("run_code", { code: "import socket; socket.getaddrinfo('denied.test', 80)" })).text.includes(line));
  const log = await box.egressLog({ limit: 20 });
  assert.ok(log.some((each) => each.verdict === "denied" && each.host === "denied.test" && each.rule === "denied.test"), JSON.stringify(log));
  await assert.rejects(box.setEgress({ allow: ["not a host"] }), InvalidError);
  await box.setEgress({ mode: "off" });
});

test("tools for agent loops", async () => {
  const box2 = toolbox(box);
  assert.deepEqual(box2.anthropic.map((tool) => tool.name), ["run_code", "run_shell", "read_file", "write_file"]);
  assert.equal(box2.openai[0]!.function.parameters.required[0], "code");
  assert.match((await box2.call("run_shell", { command: "echo tool; exit 2" })).text, /tool\n+\(exit code 2\)/);
  assert.match((await box2.call("write_file", '{"path":"/root/t","content":"abc"}')).text, /3 bytes/);
  assert.equal((await box2.call("read_file", { path: "/root/t" })).text, "abc");
  assert.equal((await box2.call("read_file", { path: "/root/none" })).isError, true);
  assert.match((await box2.call("run_code", { code: "6*7" })).text, /42/);
  assert.match((await box2.call("nothing", {})).text, /there is no tool/);
});

test("errors are typed and say what to do", async () => {
  await assert.rejects(Sandbox.connect("sb-nothing"), NotFoundError);
  await assert.rejects(Sandbox.create({ ttlSeconds: -1 }), (error: unknown) => error instanceof InvalidError && error.field === "ttl_seconds");
  await assert.rejects(Sandbox.create({ token: "husk_wrong" }), AuthenticationError);
  await assert.rejects(Sandbox.create({ socketPath: "/nowhere.sock" }), (error: unknown) => error instanceof ConnectionError && /husk serve/.test(error.message));
  await assert.rejects(box.filesystem.read("/none"), NotFoundError);
});

test("await using kills it, unless it is persistent", async () => {
  let id: string;
  {
    await using short = await Sandbox.create({ ttlSeconds: 60 });
    id = short.id;
    assert.equal((await short.exec("true")).exitCode, 0);
  }
  assert.equal((await Sandbox.connect(id)).info.state, "ended");
  let kept: string;
  {
    await using long = await Sandbox.create({ persistent: true });
    kept = long.id;
  }
  const again = await Sandbox.connect(kept);
  assert.equal(again.info.state, "running");
  await again.kill();
});

test("a server that does not speak our language is told apart", async () => {
  const odd = createServer((_, answer) => { answer.statusCode = 502; answer.end("<html>"); }).listen(0, "127.0.0.1");
  await new Promise((resolve) => odd.once("listening", resolve));
  await assert.rejects(Sandbox.create({ url: `http://127.0.0.1:${(odd.address() as AddressInfo).port}` }), /answered 502/);
  odd.close();
});

let failed = 0;
box = await Sandbox.create({ template: process.env.HUSK_TEST_TEMPLATE ?? "base", ttlSeconds: 600, metadata: { suite: "typescript" } });
for (const [name, run] of tests) {
  try {
    await run();
    console.log(`ok ${name}`);
  } catch (error) {
    failed++;
    console.log(`not ok ${name}: ${String(error instanceof Error ? error.message : error).split("\n")[0]}`);
    console.log(error);
  }
}
await box.kill();
process.exit(failed ? 1 : 0);
