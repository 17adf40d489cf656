// The tools, as an agent's host sees them: node suite.mjs stdio|http legacy|modern. Drives the official SDK's client
// (client.mjs), which checks each structured result against its tool's schema. Prints a line per test, as all tests here do.

import assert from "node:assert/strict";
import http from "node:http";
import { call, close, connect } from "./client.mjs";

const [transport, era] = process.argv.slice(2);
const modern = era === "modern";
const host = await connect(transport, era);
let failures = 0;

const text = (result) => result.content.filter((block) => block.type === "text").map((block) => block.text).join("\n");
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** What the tool gave, which must be no error. */
async function ask(name, args, options) {
	const result = await call(host, name, args, options);
	assert.notEqual(result.isError, true, `${name}: ${text(result)}`);
	return { ...result, ...result.structuredContent, text: text(result) };
}

/** What it said was wrong, which must be for the model to read. */
async function refused(name, args, pattern) {
	const result = await call(host, name, args);
	assert.equal(result.isError, true, `${name} was not refused: ${text(result)}`);
	assert.match(text(result), pattern);
	return result;
}

async function test(name, body) {
	try {
		await body();
		console.log(`ok ${transport} ${era}: ${name}`);
	} catch (error) {
		failures++;
		console.log(`not ok ${transport} ${era}: ${name}: ${String(error.stack).slice(0, 1500).replaceAll("\n", " | ")}`);
	}
}

const tools = (await host.client.listTools()).tools;
const box = (await ask("run_command", { command: "true" })).sandbox;

await test("the newest version is spoken, and the server says who it is and how it is used", async () => {
	const version = modern ? host.client.getNegotiatedProtocolVersion() : undefined;
	if (modern) assert.equal(version, "2026-07-28");
	if (!modern && transport === "http") assert.equal(host.channel.protocolVersion, "2025-11-25");
	assert.equal(host.client.getServerVersion().name, "husk");
	assert.match(host.client.getInstructions(), /run_code/);
});

await test("every tool says what it is for, and what it takes and gives", async () => {
	const names = tools.map((tool) => tool.name);
	assert.deepEqual(names, [
		"run_code", "run_command", "read_file", "write_file", "list_files", "create_sandbox", "list_sandboxes", "fork_sandbox",
		"explore_sandbox", "snapshot_sandbox", "checkpoint_sandbox", "rewind_sandbox", "sandbox_history", "promote_sandbox",
		"merge_sandbox", "held_effects", "diff_sandbox", "hibernate_sandbox", "kill_sandbox", "expose_port", "egress_log", "computer",
		"browser_open", "request_human",
	]);
	for (const tool of tools) {
		assert.ok(tool.description.length > 80 && tool.title && tool.annotations, tool.name);
		assert.equal(tool.inputSchema.additionalProperties, false, tool.name);
		assert.equal(tool.outputSchema.type, "object", tool.name);
	}
	assert.deepEqual(tools, (await host.client.listTools()).tools, "the list is always the same");
});

await test(modern ? "a call that names no sandbox gets one of its own, and is told so" : "a session has a sandbox of its own", async () => {
	const first = await ask("run_command", { command: "echo kept > /tmp/state" });
	const second = await ask("run_command", { command: "cat /tmp/state || echo nothing" });
	assert.equal(second.sandbox === first.sandbox, !modern);
	if (!modern) assert.equal(first.sandbox, box);
	else assert.match(first.text, /pass "sandbox"/);
	const third = await ask("run_command", { command: "cat /tmp/state", sandbox: first.sandbox });
	assert.equal(third.stdout, "kept\n");
});

await test("a command has its directory, variables, input, user and exit code", async () => {
	const result = await ask("run_command", {
		command: 'pwd; echo "$WORD"; cat; whoami >&2; exit 7', cwd: "/tmp", env: { WORD: "from the caller" }, stdin: "typed\n", user: "nobody",
		sandbox: box,
	});
	assert.equal(result.stdout, "/tmp\nfrom the caller\ntyped\n");
	assert.equal(result.stderr, "nobody\n");
	assert.equal(result.exit_code, 7);
	assert.match(result.text, /exit code 7/);
});

await test("long output is shortened in the middle, on whole characters", async () => {
	const result = await ask("run_command", { command: "python3 -c \"print('begin'); print('ä' * 100000); print('end')\"", sandbox: box });
	assert.ok(result.stdout.startsWith("begin\nä") && result.stdout.endsWith("ä\nend\n"));
	assert.ok(result.stdout.length < 40000 && result.stdout_left_out > 100000 && !result.stdout.includes("�"));
	assert.match(result.stdout, /bytes left out/);
});

await test("bytes that are no text do no harm", async () => {
	const result = await ask("run_command", { command: "head -c 3000 /dev/urandom; printf '\\0\\377'", sandbox: box });
	assert.equal(result.exit_code, 0);
});

await test("a command that takes too long is killed, and the model told what to do", async () => {
	const result = await refused("run_command", { command: "echo started; sleep 60", timeout_seconds: 1, sandbox: box }, /background/);
	assert.match(text(result), /started/);
});

await test("a background command goes on", async () => {
	const result = await ask("run_command", { command: "sleep 600", background: true, sandbox: box });
	assert.equal(result.exit_code, null);
	const seen = await ask("run_command", { command: `kill -0 ${result.pid} && kill ${result.pid} && echo killed`, sandbox: box });
	assert.equal(seen.stdout, "killed\n");
});

await test("code keeps its variables, and shows the value of its last expression", async () => {
	await ask("run_code", { code: "numbers = [1, 2, 3]\nprint('hello')", sandbox: box });
	const result = await ask("run_code", { code: "sum(numbers)", sandbox: box });
	assert.equal(result.result, "6");
	const shell = await ask("run_code", { code: "echo $((6*7))", language: "bash", sandbox: box });
	assert.equal(shell.stdout, "42\n");
});

await test("an error in the code is the model's to read", async () => {
	const result = await refused("run_code", { code: "{}['missing']", sandbox: box }, /KeyError/);
	assert.equal(result.structuredContent.error.name, "KeyError");
});

// The smallest PNG there is.
const png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";

await test("a picture that code shows comes back as an image", async () => {
	const code = `import base64\nclass Picture:\n    def _repr_png_(self):\n        return base64.b64decode("${png}")\nPicture()`;
	const image = (await ask("run_code", { code, sandbox: box })).content.find((block) => block.type === "image");
	assert.equal(image.mimeType, "image/png");
	assert.deepEqual(Buffer.from(image.data, "base64"), Buffer.from(png, "base64"));
});

await test("files go in and come out as they are", async () => {
	const words = "zwei Zeilen\nmit ümläuten\n";
	assert.equal((await ask("write_file", { path: "/root/new/deep/notes.txt", content: words, sandbox: box })).size, Buffer.byteLength(words));
	const read = await ask("read_file", { path: "/root/new/deep/notes.txt", sandbox: box });
	assert.equal(read.structuredContent.text, words);
	assert.equal(read.truncated, false);
	await ask("write_file", { path: "/tmp/picture", content_base64: png, sandbox: box });
	const picture = await ask("read_file", { path: "/tmp/picture", sandbox: box });
	assert.equal(picture.kind, "image");
	assert.equal(picture.content.find((block) => block.type === "image").data, png);
	await ask("write_file", { path: "/tmp/tool", content: "#!/bin/sh\necho ran\n", executable: true, sandbox: box });
	assert.equal((await ask("run_command", { command: "/tmp/tool", sandbox: box })).stdout, "ran\n");
	const listed = await ask("list_files", { path: "/root/new", depth: 3, sandbox: box });
	assert.deepEqual(listed.entries.map((entry) => [entry.path, entry.type]), [["/root/new/deep", "directory"], ["/root/new/deep/notes.txt", "file"]]);
});

await test("a long file is read in pieces that end on characters", async () => {
	await ask("write_file", { path: "/tmp/long", content: "ä".repeat(1000), sandbox: box });
	let whole = "";
	for (let offset = 0; offset !== null; ) {
		const piece = await ask("read_file", { path: "/tmp/long", offset, limit: 333, sandbox: box });
		whole += piece.structuredContent.text;
		offset = piece.next_offset;
	}
	assert.equal(whole, "ä".repeat(1000));
});

await test("what is wrong with an argument is named, and how to put it right", async () => {
	await refused("run_command", { command: "true", cwdd: "/tmp", sandbox: box }, /cwdd.*did you mean 'cwd'/);
	await refused("run_command", { sandbox: box }, /'command' is missing/);
	await refused("run_command", { command: 5, sandbox: box }, /'command' must be a string/);
	await refused("run_command", { command: "true", timeout_seconds: 1e9, sandbox: box }, /at most 3600/);
	await refused("run_command", { command: "true", env: { A: 1 }, sandbox: box }, /'env.A' must be a string/);
	await refused("run_code", { code: "1", language: "cobol", sandbox: box }, /python.*javascript.*bash/);
	await refused("read_file", { path: "notes.txt", sandbox: box }, /absolute/);
	await refused("read_file", { path: "/nothing/there", sandbox: box }, /there/);
	await refused("read_file", { path: "/tmp", sandbox: box }, /list_files/);
	await refused("write_file", { path: "/tmp/x", sandbox: box }, /content/);
	await refused("write_file", { path: "/tmp/x", content_base64: "!!!", sandbox: box }, /base64/);
	await refused("run_command", { command: "true", sandbox: "sb-nothere" }, /no sandbox 'sb-nothere'.*list_sandboxes/);
	await refused("create_sandbox", { template: "not-there" }, /not-there/);
	await refused("create_sandbox", { snapshot: "not-there" }, /not-there/);
	await assert.rejects(call(host, "run_comand", { command: "true" }), /unknown tool.*did you mean 'run_command'/);
});

await test("null stands for an argument that is not given", async () => {
	assert.equal((await ask("run_command", { command: "echo fine", cwd: null, env: null, sandbox: box })).stdout, "fine\n");
});

await test("a fork has what its parent had, and goes its own way", async () => {
	await ask("run_code", { code: "state = 'before'", sandbox: box });
	const { forks } = await ask("fork_sandbox", { sandbox: box, count: 2 });
	assert.equal(forks.length, 2);
	await ask("run_code", { code: "state = 'after'", sandbox: forks[0] });
	assert.equal((await ask("run_code", { code: "state", sandbox: forks[1] })).result, "'before'");
	for (const fork of forks) assert.equal((await ask("kill_sandbox", { sandbox: fork })).state, "ended");
	await refused("run_command", { command: "true", sandbox: forks[0] }, /ended/);
});

await test("a snapshot starts new sandboxes", async () => {
	await ask("write_file", { path: "/root/kept", content: "in the snapshot", sandbox: box });
	const name = `mcp-${transport}-${era}-${process.pid}`;
	const saved = await ask("snapshot_sandbox", { sandbox: box, name });
	assert.ok((await ask("list_sandboxes")).snapshots.some((entry) => entry.snapshot === saved.snapshot));
	const made = await ask("create_sandbox", { snapshot: name, memory_mb: 512, ttl_seconds: 120 });
	assert.equal((await ask("read_file", { path: "/root/kept", sandbox: made.sandbox })).structuredContent.text, "in the snapshot");
	await ask("kill_sandbox", { sandbox: made.sandbox });
});

await test("a hibernated sandbox wakes when it is used", async () => {
	assert.equal((await ask("hibernate_sandbox", { sandbox: box })).state, "hibernated");
	const entry = (await ask("list_sandboxes")).sandboxes.find((one) => one.sandbox === box);
	assert.equal(entry.state, "hibernated");
	assert.equal((await ask("run_code", { code: "state", sandbox: box })).result, "'before'");
});

await test("progress is told while a command runs", async () => {
	const told = [];
	await ask("run_command", { command: "for i in 1 2 3; do echo line $i; sleep 1.1; done", sandbox: box }, { onprogress: (one) => told.push(one) });
	assert.ok(told.length >= 2, JSON.stringify(told));
	assert.ok(told.every((one, at) => at === 0 || one.progress > told[at - 1].progress), JSON.stringify(told));
	assert.match(told[0].message, /line 1/);
});

async function cancelled(name, args) {
	const stop = new AbortController();
	const running = call(host, name, args, { signal: stop.signal });
	const ended = assert.rejects(running);
	await pause(1500);
	stop.abort("enough");
	await ended;
}

await test("a cancelled command is killed, with its children", async () => {
	await cancelled("run_command", { command: "sh -c 'sleep 4321; true'; true", sandbox: box });
	await pause(500);
	const left = await ask("run_command", { command: "ps ax | grep -c '[s]leep 4321'; true", sandbox: box });
	assert.equal(left.stdout, "0\n");
});

await test("cancelled code stops, and its interpreter goes on", async () => {
	await ask("run_code", { code: "import time\nkept = 5", sandbox: box });
	await cancelled("run_code", { code: "time.sleep(600)", sandbox: box });
	assert.equal((await ask("run_code", { code: "kept", sandbox: box, timeout_seconds: 20 })).result, "5");
});

await test("several calls run at once", async () => {
	const outputs = await Promise.all([1, 2, 3, 4].map((n) => ask("run_command", { command: `sleep 0.5; echo ${n}`, sandbox: box })));
	assert.deepEqual(outputs.map((one) => one.stdout), ["1\n", "2\n", "3\n", "4\n"]);
});

await test("a port is linked to, where there is a server to link to", async () => {
	await ask("run_command", { command: "cd /root && echo served > page && exec python3 -m http.server 8123", background: true, sandbox: box });
	await ask("run_command", { command: "for i in $(seq 50); do curl -sf -o /dev/null http://127.0.0.1:8123/ && break; sleep 0.2; done", sandbox: box });
	if (transport === "stdio") {
		await refused("expose_port", { port: 8123, sandbox: box }, /husk serve/);
		return;
	}
	const url = new URL((await ask("expose_port", { port: 8123, sandbox: box })).url);
	// Not every resolver knows that names below localhost are this machine.
	const there = { host: "127.0.0.1", port: url.port, path: `/page${url.search}`, headers: { Host: url.host } };
	const said = await new Promise((resolve, reject) => {
		http.get(there, async (answer) => resolve((await answer.toArray()).join(""))).on("error", reject);
	});
	assert.equal(said, "served\n");
});

await test("what was blocked is said with the failure, and in the log", async () => {
	const result = await ask("run_command", { command: "curl -sS -m 5 https://blocked.example.com/", sandbox: box });
	assert.notEqual(result.exit_code, 0);
	const log = await ask("egress_log", { sandbox: box });
	assert.equal(log.mode, "off");
	assert.equal(log.sandbox, box);
});

await test("a client that names another's sandbox finds nothing", async () => {
	if (!process.env.HUSK_FOREIGN_SANDBOX) return;
	for (const name of ["run_command", "kill_sandbox", "fork_sandbox"])
		await refused(name, { sandbox: process.env.HUSK_FOREIGN_SANDBOX, ...(name === "run_command" ? { command: "id" } : {}) }, /no sandbox/);
	const seen = (await ask("list_sandboxes")).sandboxes.map((one) => one.sandbox);
	assert.ok(!seen.includes(process.env.HUSK_FOREIGN_SANDBOX));
});

if (!modern) {
	await test("when the session's sandbox is gone, the next call gets another and is told", async () => {
		await ask("kill_sandbox", { sandbox: box });
		const result = await ask("run_command", { command: "echo anew" });
		assert.notEqual(result.sandbox, box);
		assert.match(result.text, new RegExp(`${box}.*ended`));
	});
}

await close(host);
console.log(`# ${failures} failed`);
process.exit(failures ? 1 : 0);
