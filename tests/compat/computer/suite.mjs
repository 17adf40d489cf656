// suite.mjs SHAPE URL SANDBOX: as suite.py, with the packages of npm and our TypeScript SDK.
import { Anthropic } from "@anthropic-ai/sdk";
import { BetaAbstractComputerToolset20260801 } from "@anthropic-ai/sdk/helpers/beta/toolsets";
import { GoogleGenAI } from "@google/genai";
import { Sandbox } from "@husk/sdk";
import { anthropicComputer, GeminiComputer, OpenAIComputer } from "@husk/sdk/computer-use";
import OpenAI from "openai";
import { ComputerToolset } from "openai/helpers/computer";

const [shape, url, id] = process.argv.slice(2);
const sandbox = await Sandbox.connect(id);
const prompt = "fill in the form, download the report, and show it";
const asked = [];
const approve = (question) => {
  asked.push(question);
  return true;
};
const must = (found, wanted) => {
  if (found !== wanted) throw new Error(`expected ${wanted}: ${JSON.stringify(found)}`);
};

const shapes = {
  async "ts-anthropic"() {
    const members = new Set();
    // A smaller picture: the model's coordinates are within it.
    const options = { confirm: (context) => members.add(context.member) && true, maxEdge: 1000 };
    const computer = anthropicComputer(BetaAbstractComputerToolset20260801, sandbox, options);
    const client = new Anthropic({ baseURL: url, apiKey: "k" });
    const messages = [{ role: "user", content: prompt }];
    const message = await client.beta.messages.toolRunner({ model: "m", max_tokens: 1000, messages, tools: [computer] });
    must(message.content[0].text, "done");
    asked.push([...members].sort());
  },
  async "ts-openai"() {
    const toolset = new ComputerToolset(new OpenAIComputer(sandbox));
    const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "k" });
    const approveSafetyChecks = (call) => approve(call.pending_safety_checks.map((each) => each.message));
    const response = await toolset.run(client, { model: "m", input: prompt }, { maxSteps: 90, approveSafetyChecks });
    must(response.output_text, "done");
  },
  async "ts-gemini"() {
    const client = new GoogleGenAI({ apiKey: "k", httpOptions: { baseUrl: url } });
    const response = await new GeminiComputer(sandbox, { confirm: approve }).run(client, "m", prompt);
    must(response.text, "done");
  },
  async "ts-plain"() {
    for (let picture = null; ; ) {
      const wanted = await (await fetch(`${url}/plain`, { method: "POST", body: JSON.stringify({ picture }) })).json();
      if (wanted.done) return;
      picture = (await sandbox.desktop.act(wanted.actions, { screenshot: true })).screenshot.data;
    }
  },
};
await shapes[shape]();
console.log(JSON.stringify(asked));
