/**
 * The screen of a sandbox (template "desktop") for the computer tools of the model vendors.
 *
 *     import { BetaAbstractComputerToolset20260801 } from "@anthropic-ai/sdk/helpers/beta/toolsets";
 *     import { anthropicComputer } from "@husk/sdk/computer-use";
 *     const computer = anthropicComputer(BetaAbstractComputerToolset20260801, sandbox, { confirm: askTheUser });
 *     const message = await client.beta.messages.toolRunner({ model, max_tokens, messages, tools: [computer] });
 *
 *     const toolset = new ComputerToolset(new OpenAIComputer(sandbox));
 *     const response = await toolset.run(client, { model, input }, { approveSafetyChecks: askTheUser });
 *
 *     const computer = new GeminiComputer(sandbox, { confirm: askTheUser });
 *     const response = await computer.run(ai, "gemini-3.5-flash", prompt);
 *
 * This module loads no package of a vendor: Anthropic's class is given to it, and the others' calls are read by their fields.
 */
import { fitted, geminiActions, openaiActions, type Fields, type Size } from "./computer_actions.js";
import type { Desktop, DesktopAction, DesktopAnswer, Picture } from "./desktop.js";
import { HuskError } from "./errors.js";

type HasDesktop = { readonly desktop: Desktop };

export interface ComputerOptions {
  /** "png" unless given. */
  format?: "png" | "jpeg" | "webp";
  /** Pictures are scaled to this length, and the model's coordinates are within them. */
  maxEdge?: number;
}

/** A desktop as a model sees it: pictures that are not larger than the model takes, and coordinates within them. */
class Screen {
  size: Size | undefined;

  constructor(
    private readonly desktop: Desktop,
    private readonly options: ComputerOptions,
    private readonly edge: number,
    private readonly patches: number,
  ) {}

  async act(actions: DesktopAction[], picture = false, space?: Size): Promise<DesktopAnswer> {
    this.size ??= await this.desktop.size();
    const { width, height } = fitted(this.size, this.options.maxEdge ?? this.edge, this.patches);
    const format = this.options.format ?? "png";
    const made = actions.map((each) =>
      each.action === "screenshot" || each.action === "zoom" ? { ...each, format, max_width: width, max_height: height } : each,
    );
    const screenshot = picture && { format, maxWidth: width, maxHeight: height };
    const answer = await this.desktop.act(made, { space: space ?? { width, height }, screenshot });
    this.size = { width: answer.width, height: answer.height };
    return answer;
  }

  async picture(): Promise<Picture> {
    return (await this.act([], true)).screenshot as Picture;
  }
}

// ---- Anthropic ----

/** What a model takes without making it smaller. Newer ones take more; with less, coordinates are right everywhere. */
const ANTHROPIC_EDGE = 1568;
const ANTHROPIC_PATCHES = 1568;

/** `BetaAbstractComputerToolset20260801` of @anthropic-ai/sdk, or a class that extends it. */
// eslint-disable-next-line @typescript-eslint/no-explicit-any
type ToolsetClass = abstract new (...options: any[]) => any;

/**
 * A toolset with all members of computer_toolset_20260801. `Base` is Anthropic's class; the options are those of its constructor
 * (`confirm`, `configs`, `toolConfigs`), and ours. An action that is not possible is told to the model as an error.
 */
export function anthropicComputer<Base extends ToolsetClass>(
  Base: Base,
  sandbox: HasDesktop,
  options: ConstructorParameters<Base>[0] & ComputerOptions = {},
): InstanceType<Base> {
  const { format, maxEdge, ...rest } = options as ComputerOptions;
  const screen = new Screen(sandbox.desktop, { format, maxEdge }, ANTHROPIC_EDGE, ANTHROPIC_PATCHES);
  abstract class HuskComputer extends Base {
    async execute(_context: unknown, name: string, input: Fields): Promise<unknown> {
      const { results } = await screen.act([{ action: name, ...input }]);
      const result: Fields = results[0] ?? {};
      if (name === "screenshot" || name === "zoom") {
        const { data, type } = result.screenshot as Picture;
        return { data, mediaType: type };
      }
      if (name !== "cursor_position") return undefined;
      const [x, y] = result.coordinate as [number, number];
      return { x, y };
    }
  }
  // Abstract in types alone: a class that extends one of unknown members must be.
  return new (HuskComputer as unknown as new (options: object) => InstanceType<Base>)(rest);
}

// ---- OpenAI ----

/** A driver for `ComputerToolset` of the package openai. What is not possible throws HuskError, which ends the run. */
export class OpenAIComputer {
  private readonly screen: Screen;

  constructor(sandbox: HasDesktop, options: ComputerOptions = {}) {
    this.screen = new Screen(sandbox.desktop, options, 4096, Infinity);
  }

  private async perform(action: object): Promise<void> {
    await this.screen.act(openaiActions(action as Fields));
  }

  // Fields, not methods: the toolset may call them without this object.
  readonly click = (action: object): Promise<void> => this.perform(action);
  readonly double_click = (action: object): Promise<void> => this.perform(action);
  readonly drag = (action: object): Promise<void> => this.perform(action);
  readonly keypress = (action: object): Promise<void> => this.perform(action);
  readonly move = (action: object): Promise<void> => this.perform(action);
  readonly scroll = (action: object): Promise<void> => this.perform(action);
  readonly type = (action: object): Promise<void> => this.perform(action);
  readonly wait = (action: object): Promise<void> => this.perform(action);

  readonly screenshot = async (): Promise<{ type: "computer_screenshot"; image_url: string }> => {
    const { type, data } = await this.screen.picture();
    return { type: "computer_screenshot", image_url: `data:${type};base64,${data}` };
  };
}

// ---- Gemini ----

export interface SafetyDecision {
  decision?: string;
  explanation?: string;
}

export interface GeminiOptions extends ComputerOptions {
  /** Is asked about each action for which Gemini wants a confirmation. Without it, or if it is false, such an action is not done. */
  confirm?: (decision: SafetyDecision) => boolean | Promise<boolean>;
}

/** What is used of `GoogleGenAI` of the package @google/genai. */
export interface GeminiClient<Response> {
  models: { generateContent(request: { model: string; contents: never; config: never }): Promise<Response> };
}

interface GeminiResponse {
  functionCalls?: GeminiCall[];
  candidates?: { content?: object }[];
}

export interface GeminiCall {
  id?: string;
  name?: string;
  args?: Record<string, unknown>;
}

interface GeminiPart {
  functionResponse: { name?: string; id?: string; response: Fields; parts?: { inlineData: { mimeType: string; data: string } }[] };
}

/** Gemini's computer use. `tool` belongs to the tools of generateContent, and `respond` answers a function call; `run` is the loop. */
export class GeminiComputer {
  readonly tool = { computerUse: { environment: "ENVIRONMENT_DESKTOP" } };
  private readonly screen: Screen;

  constructor(
    sandbox: HasDesktop,
    private readonly options: GeminiOptions = {},
  ) {
    this.screen = new Screen(sandbox.desktop, options, 4096, Infinity);
  }

  /** One function: what the model is told, and the picture afterwards. */
  async perform(name: string, args: Fields): Promise<{ said: Fields; picture: Picture }> {
    const decision = args.safety_decision as SafetyDecision | undefined;
    const said: Fields = {};
    if (decision && (decision.decision ?? "require_confirmation") === "require_confirmation") {
      if ((await this.options.confirm?.(decision)) !== true) {
        return { said: { error: "the user did not confirm this action; it was not done" }, picture: await this.screen.picture() };
      }
      said.safety_acknowledgement = true;
    }
    try {
      if (!this.screen.size) await this.screen.act([]);
      const actions = geminiActions(name, args, this.screen.size as Size);
      const answer = await this.screen.act(actions, true, { width: 1000, height: 1000 });
      return { said: { status: "done", ...said }, picture: answer.screenshot as Picture };
    } catch (error) {
      if (!(error instanceof HuskError)) throw error;
      return { said: { error: error.message, ...said }, picture: await this.screen.picture() };
    }
  }

  /** The part that answers a function call of generateContent. */
  async respond(call: GeminiCall): Promise<GeminiPart> {
    const { said, picture } = await this.perform(call.name ?? "", call.args ?? {});
    const parts = [{ inlineData: { mimeType: picture.type, data: picture.data } }];
    return { functionResponse: { name: call.name, id: call.id, response: said, parts } };
  }

  /**
   * Asks the model, does what it wants and asks again, until it calls no function; returns its last response. Pictures of older turns
   * are left out. `config`: more fields of the request.
   */
  async run<Response extends GeminiResponse>(
    client: GeminiClient<Response>,
    model: string,
    prompt: string,
    options: { config?: { tools?: unknown[] } & Fields; maxTurns?: number; keepPictures?: number } = {},
  ): Promise<Response> {
    const { config = {}, maxTurns = 100, keepPictures = 3 } = options;
    const contents: object[] = [{ role: "user", parts: [{ text: prompt }] }];
    const answers: GeminiPart[][] = [];
    for (let turn = 0; turn < maxTurns; turn++) {
      const settings = { ...config, tools: [this.tool, ...(config.tools ?? [])] };
      const response = await client.models.generateContent({ model, contents: contents as never, config: settings as never });
      const calls = response.functionCalls ?? [];
      if (!calls.length) return response;
      contents.push(response.candidates?.[0]?.content ?? { role: "model", parts: [] });
      const parts: GeminiPart[] = [];
      for (const call of calls) parts.push(await this.respond(call));
      contents.push({ role: "user", parts });
      answers.push(parts);
      for (const part of answers[answers.length - 1 - keepPictures] ?? []) delete part.functionResponse.parts;
    }
    throw new Error(`the model has not finished after ${maxTurns} turns`);
  }
}
