/**
 * Ready tools for an agent loop: a JSON schema and a function each, in the shapes that the Anthropic and OpenAI SDKs take.
 */
import { HuskError } from "./errors.js";
import type { EgressEvent } from "./models.js";
import type { Sandbox } from "./sandbox.js";

const OUTPUT_MAX = 30_000; // characters of a result that go back to the model

export interface Tool {
  name: string;
  description: string;
  input_schema: { type: "object"; properties: Record<string, unknown>; required: string[] };
  run(input: Record<string, unknown>): Promise<ToolResult>;
}

export interface ToolResult {
  text: string;
  /** PNG, base64. */
  images: string[];
  isError: boolean;
}

function shortened(text: string): string {
  if (text.length <= OUTPUT_MAX) return text;
  const half = OUTPUT_MAX / 2;
  return `${text.slice(0, half)}\n… ${text.length - OUTPUT_MAX} characters left out …\n${text.slice(-half)}`;
}

function result(text: string, isError = false, images: string[] = []): ToolResult {
  return { text: shortened(text || "(no output)"), images, isError };
}

/** What the network policy denied, and what would allow it: a model that knows asks for it instead of trying again. */
function blocked({ denied }: { denied: EgressEvent[] }): string {
  return denied.map(({ text }) => text ?? "").join("\n");
}

function schema(properties: Record<string, string>, optional: Record<string, unknown> = {}): Tool["input_schema"] {
  const required = Object.entries(properties).map(([name, description]) => [name, { type: "string", description }]);
  return { type: "object", properties: { ...Object.fromEntries(required), ...optional }, required: Object.keys(properties) };
}

/** The four tools on one sandbox, as lists for either SDK, and the dispatcher for what the model calls. */
export function toolbox(sandbox: Sandbox) {
  const seconds = { timeout_seconds: { type: "number", description: "Give up after this long; 120 unless told." } };
  const limit = (input: Record<string, unknown>) => Number(input.timeout_seconds ?? 120);
  const tools: Tool[] = [
    {
      name: "run_code",
      description:
        "Run code in the sandbox and return what it prints and the value of its last expression. Variables, imports and files " +
        "last from one call to the next. An exception comes back as text, so that it can be fixed.",
      input_schema: schema({ code: "The code to run." }, { language: { type: "string", enum: ["python", "javascript", "typescript", "bash", "r", "java"] }, ...seconds }),
      async run(input) {
        const language = (input.language as "python" | undefined) ?? "python";
        const done = await sandbox.runCode(String(input.code), { language, timeoutSeconds: limit(input) });
        const parts = [done.stdout, done.stderr, done.text ?? "", done.error?.traceback ?? "", done.timedOut ? "(timed out)" : "", blocked(done)];
        const images = done.images.map((image) => Buffer.from(image).toString("base64"));
        return result(parts.filter(Boolean).join("\n"), done.error !== null || done.timedOut, images);
      },
    },
    {
      name: "run_shell",
      description: "Run a shell command in the sandbox and return its output and exit code. Each call is a fresh shell; files stay.",
      input_schema: schema({ command: "The command line, for /bin/sh." }, seconds),
      async run(input) {
        const done = await sandbox.exec(String(input.command), { timeoutSeconds: limit(input) });
        const state = done.timedOut ? "timed out" : `exit code ${done.exitCode}`;
        return result([done.stdout, done.stderr, `(${state})`, blocked(done)].filter(Boolean).join("\n"), done.exitCode !== 0);
      },
    },
    {
      name: "read_file",
      description: "Read a text file of the sandbox.",
      input_schema: schema({ path: "Absolute path." }),
      run: async (input) => result(await sandbox.filesystem.readText(String(input.path))),
    },
    {
      name: "write_file",
      description: "Write a text file in the sandbox, replacing what was there.",
      input_schema: schema({ path: "Absolute path.", content: "What it shall hold." }),
      async run(input) {
        const entry = await sandbox.filesystem.write(String(input.path), String(input.content));
        return result(`wrote ${entry.size} bytes to ${entry.path}`);
      },
    },
  ];

  return {
    tools,
    /** For `tools` of Anthropic's messages.create. */
    anthropic: tools.map(({ name, description, input_schema }) => ({ name, description, input_schema })),
    /** For `tools` of OpenAI's chat.completions.create. */
    openai: tools.map(({ name, description, input_schema }) => ({
      type: "function" as const,
      function: { name, description, parameters: input_schema },
    })),
    /** Runs what the model called; failures come back as text that the model can act on. */
    async call(name: string, input: Record<string, unknown> | string): Promise<ToolResult> {
      const tool = tools.find((candidate) => candidate.name === name);
      if (!tool) return result(`there is no tool '${name}'; there are ${tools.map((each) => each.name).join(", ")}`, true);
      try {
        const given = typeof input === "string" ? (JSON.parse(input) as Record<string, unknown>) : input;
        const missing = tool.input_schema.required.filter((field) => given[field] === undefined);
        if (missing.length > 0) return result(`missing: ${missing.join(", ")}`, true);
        return await tool.run(given);
      } catch (error) {
        if (error instanceof HuskError || error instanceof SyntaxError) return result(error.message, true);
        throw error;
      }
    },
  };
}
