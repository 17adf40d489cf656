// Runs the user's JavaScript or TypeScript for kernel_relay.py: node's own REPL evaluator, which has top-level await and
// keeps const and let between calls. Types are first removed from TypeScript (by the `typescript` package, which does not
// check them). Requests are lines on descriptor 3, events are JSON lines on descriptor 4 (kernel_relay.py describes the
// protocol); descriptors 1 and 2 belong to the user's code. An error in a callback of a finished call is printed, never
// fatal.
'use strict';

const fs = require('fs');
const net = require('net');
const { PassThrough, Writable } = require('stream');
const repl = require('repl');
const util = require('util');

const typescript = process.argv[2] === 'typescript' ? require('typescript') : null;
const JSON_LIMIT = 1 << 20;
const DISPLAY = Symbol.for('Jupyter.display');

function emit(event) {
	const data = Buffer.from(JSON.stringify(event) + '\n');
	for (let sent = 0; sent < data.length;) {
		sent += fs.writeSync(4, data, sent);
	}
}

// The values that JSON can represent without loss: plain objects and arrays.
function asJson(value) {
	if (typeof value !== 'object' || value === null) {
		return undefined;
	}
	const prototype = Object.getPrototypeOf(value);
	if (!Array.isArray(value) && prototype !== null && prototype.constructor?.name !== 'Object') {
		return undefined;
	}
	try {
		const text = JSON.stringify(value);
		return text !== undefined && text.length <= JSON_LIMIT ? JSON.parse(text) : undefined;
	} catch {
		return undefined;
	}
}

async function showResult(value, main) {
	let bundle = {};
	if (typeof value?.[DISPLAY] === 'function') {
		bundle = { ...(await value[DISPLAY]()) };
	}
	const json = asJson(value);
	if (json !== undefined && !('application/json' in bundle)) {
		bundle['application/json'] = json;
	}
	bundle['text/plain'] ??= util.inspect(value, { depth: 4 });
	emit({ type: 'result', main, text: bundle['text/plain'], bundle });
}

// Writes to a pipe may still be queued inside node: they must be sent before the next event.
async function flush() {
	for (const stream of [process.stdout, process.stderr]) {
		if (stream.writable && stream.writableLength > 0) {
			await new Promise((resolve) => stream.write('', resolve));
		}
	}
}

// The part of the stack that belongs to the user's code.
function stackOf(error) {
	const lines = String(error.stack).split('\n');
	const ours = /\((node:vm|node:internal\/vm|node:repl|node:domain)|sigintHandlersWrap/;
	const end = lines.findIndex((line) => ours.test(line));
	return (end < 0 ? lines : lines.slice(0, end)).join('\n') + '\n';
}

function showError(error) {
	if (error?.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED') {
		emit({ type: 'error', name: 'KeyboardInterrupt', value: '', traceback: 'interrupted\n' });
		return;
	}
	const isError = util.types.isNativeError(error);
	emit({
		type: 'error',
		name: isError ? String(error.name) : 'Error',
		value: isError ? String(error.message) : util.inspect(error),
		traceback: isError ? stackOf(error) : `Uncaught ${util.inspect(error)}\n`,
	});
}

// The REPL's terminal: it provides no input, and its own output (an uncaught error) goes to the user's stderr.
const output = new Writable({
	write(chunk, encoding, done) {
		fs.writeSync(2, chunk);
		done();
	},
});
const server = repl.start({
	input: new PassThrough(),
	output,
	prompt: '',
	terminal: false,
	useGlobal: true,
	breakEvalOnSigint: true,
	ignoreUndefined: true,
});
globalThis.display = (value) => showResult(value, false);

// An exception of the user's code ends its call; an exception in a callback after the call is only printed.
let fail = null;
function caught(error) {
	if (fail) {
		fail(error);
	} else {
		fs.writeSync(2, `Uncaught ${util.inspect(error)}\n`);
	}
}
// The evaluator passes errors to the REPL's domain, whose own listener would print them; newer nodes have no domain.
server._domain?.removeAllListeners('error');
server._domain?.on('error', caught);
process.on('uncaughtException', caught);
process.on('unhandledRejection', (error) => fs.writeSync(2, `Unhandled rejection: ${util.inspect(error)}\n`));


let running = false;
let cells = 0;

// Idle: nothing to interrupt. Waiting for a promise: the REPL's own queue abandons it.
function interrupt() {
	if (running) {
		server.emit('SIGINT');
	}
}
process.on('SIGINT', interrupt);

function evaluate(code) {
	return new Promise((resolve, reject) => {
		fail = reject;
		// While code runs, the evaluator's own watchdog interrupts it; a listener would undo the watchdog's handler.
		process.removeListener('SIGINT', interrupt);
		try {
			server.eval(code + '\n', server.context, `cell ${cells}`,
				(error, value) => (error ? reject(error) : resolve(value)));
		} finally {
			process.on('SIGINT', interrupt);
		}
	});
}

// Static imports are for modules only; in a cell they are rewritten to equivalent code.
function rewriteImports(code) {
	const what = /(?:([\w$]+)\s*,?\s*)?(?:\*\s*as\s+([\w$]+)\s+|\{([^}]*)\}\s*)?/.source;
	const statement = new RegExp(`(?<=^|;)[ \\t]*import\\s+${what}(?:from\\s*)?(['"][^'"]+['"])[ \\t]*;?`, 'gm');
	return code.replace(statement,
		(line, main, all, names, module) => {
			const parts = [];
			if (main) {
				parts.push(`${main} = (await import(${module})).default`);
			}
			if (all) {
				parts.push(`${all} = await import(${module})`);
			}
			if (names !== undefined) {
				parts.push(`{ ${names.replace(/\s+as\s+/g, ': ')} } = await import(${module})`);
			}
			return parts.length ? `const ${parts.join(', ')};` : `await import(${module});`;
		});
}

// Returns the JavaScript. Imports stay, because a later cell may use them.
function stripTypes(code) {
	const { ModuleKind, ScriptTarget, flattenDiagnosticMessageText } = typescript;
	const { outputText, diagnostics } = typescript.transpileModule(code, {
		fileName: 'cell.ts',
		reportDiagnostics: true,
		compilerOptions: {
			target: ScriptTarget.ES2022, module: ModuleKind.ESNext, isolatedModules: true, preserveValueImports: true,
		},
	});
	if (diagnostics.length) {
		const [{ messageText, file, start }] = diagnostics;
		const { line } = file.getLineAndCharacterOfPosition(start);
		throw new SyntaxError(`${flattenDiagnosticMessageText(messageText, ' ')} (line ${line + 1})`);
	}
	return outputText.replace(/^export \{\};\n?/m, '');
}

function isImportError(error) {
	return error instanceof SyntaxError && /import statement/.test(error.message);
}

async function run(source) {
	running = true;
	cells += 1;
	try {
		const code = typescript ? stripTypes(source) : source;
		const value = await evaluate(code).catch((error) => {
			if (!isImportError(error)) {
				throw error;
			}
			return evaluate(rewriteImports(code));
		});
		await flush();
		if (value !== undefined) {
			await showResult(value, true);
		}
	} catch (error) {
		await flush();
		showError(error instanceof repl.Recoverable ? error.err : error);
	}
	running = false;
	fail = null;
}

function change(name, value) {
	if (value === undefined) {
		delete process.env[name];
	} else {
		process.env[name] = value;
	}
}

// A request: the file with the code, then variables, with names and values in hexadecimal.
async function answer(line) {
	const [file, ...words] = line.split(' ');
	const before = new Map();
	for (const word of words) {
		const [, kind, ...pair] = /^(set|unset|env):([0-9a-f]*)=?([0-9a-f]*)$/.exec(word);
		const [name, value] = pair.map((text) => Buffer.from(text, 'hex').toString());
		if (kind === 'env') {
			before.set(name, process.env[name]);
		}
		change(name, kind === 'unset' ? undefined : value);
	}
	await run(fs.readFileSync(file, 'utf8'));
	before.forEach((value, name) => change(name, value));
	emit({ type: 'end' });
}

let pending = Promise.resolve();
let partial = [];
new net.Socket({ fd: 3, readable: true, writable: false }).on('data', (chunk) => {
	let start = 0;
	for (let end; (end = chunk.indexOf(10, start)) >= 0; start = end + 1) {
		const line = Buffer.concat([...partial, chunk.subarray(start, end)]).toString();
		partial = [];
		pending = pending.then(() => answer(line));
	}
	partial.push(chunk.subarray(start));
}).on('end', () => process.exit(0));
emit({ type: 'ready' });
