/** The screen of a sandbox (template "desktop"): look at it, click and type. Coordinates are pixels from the upper left. */
import { DesktopView } from "./desktop_view.js";
import { type Element, type Signal, type Window } from "./models.js";
import { bytes, type Query } from "./transport.js";

/** One of the actions of docs/desktop.md, such as `{ action: "left_click", coordinate: [640, 400] }`. */
export interface DesktopAction {
  action: string;
  [field: string]: unknown;
}

export interface PictureOptions {
  format?: "png" | "jpeg" | "webp";
  /** Of jpeg and webp: 1 to 100. */
  quality?: number;
  /** [x0, y0, x1, y1]; the whole screen unless given. */
  region?: [number, number, number, number];
  maxWidth?: number;
  maxHeight?: number;
  /** With the pointer; true unless given. */
  cursor?: boolean;
}

export interface Picture {
  type: string;
  width: number;
  height: number;
  /** Base64, as models take it. */
  data: string;
}

export interface ActOptions {
  /** What coordinates are relative to, such as 1000 by 1000; the screen's pixels unless given. */
  space?: { width: number; height: number };
  /** Wait until the screen is still; true unless given. */
  settle?: boolean | { quietMs?: number; timeoutMs?: number };
  screenshot?: boolean | PictureOptions;
  signal?: Signal;
}

export interface DesktopAnswer {
  /** One for each action. */
  results: ({ action: string } & Record<string, unknown>)[];
  width: number;
  height: number;
  settled?: boolean;
  screenshot?: Picture;
}

export interface ClickOptions {
  x?: number;
  y?: number;
  /** The id of an element of `tree`, or its role and name, which only one may have. */
  element?: string | { role?: string; name?: string };
  button?: "left" | "middle" | "right";
  /** 2 and 3 with the left button. */
  count?: 1 | 2 | 3;
  /** Held meanwhile, such as "ctrl". */
  keys?: string;
}

function pictureToWire(options: boolean | PictureOptions | undefined): unknown {
  if (typeof options !== "object") return options;
  const { maxWidth, maxHeight, ...rest } = options;
  return { ...rest, max_width: maxWidth, max_height: maxHeight };
}

function place(x: number | undefined, y: number | undefined): [number, number] | undefined {
  return x === undefined || y === undefined ? undefined : [x, y];
}

export class Desktop extends DesktopView {
  private get path(): string {
    return `${this.sandboxPath}/desktop`;
  }

  /** One action after the other. The first that is not possible throws an error that names it and its place; those before are done. */
  async act(actions: DesktopAction[], options: ActOptions = {}): Promise<DesktopAnswer> {
    const settle = options.settle ?? true;
    const json = {
      actions,
      space: options.space,
      settle: typeof settle === "object" ? { quiet_ms: settle.quietMs, timeout_ms: settle.timeoutMs } : settle,
      screenshot: pictureToWire(options.screenshot),
    };
    return this.transport.json<DesktopAnswer>("POST", `${this.path}/actions`, { json, signal: options.signal });
  }

  private async one(action: DesktopAction, settle = true): Promise<Record<string, unknown>> {
    return (await this.act([action], { settle })).results[0] ?? {};
  }

  /** A picture, as bytes. */
  async screenshot(options: PictureOptions & { settle?: boolean; signal?: Signal } = {}): Promise<Uint8Array> {
    const { signal, region, maxWidth, maxHeight, ...rest } = options;
    const query: Query = { ...rest, region: region?.join(","), max_width: maxWidth, max_height: maxHeight };
    return bytes(await this.transport.open("GET", `${this.path}/screenshot`, { query, signal }));
  }

  async click(options: ClickOptions = {}): Promise<void> {
    const { button = "left", count = 1 } = options;
    const names: Record<string, string> = {
      left1: "left_click",
      left2: "double_click",
      left3: "triple_click",
      middle1: "middle_click",
      right1: "right_click",
    };
    const action = names[`${button}${count}`];
    if (!action) throw new TypeError("count is 1, and 2 or 3 with the left button");
    await this.one({ action, coordinate: place(options.x, options.y), element: options.element, text: options.keys });
  }

  async move(x: number, y: number): Promise<void> {
    await this.one({ action: "mouse_move", coordinate: [x, y] });
  }

  async drag(start: [number, number], end: [number, number], options: { keys?: string } = {}): Promise<void> {
    await this.one({ action: "left_click_drag", start_coordinate: start, coordinate: end, text: options.keys });
  }

  /** `amount` is in notches of the wheel; 3 unless given. */
  async scroll(
    direction: "up" | "down" | "left" | "right",
    options: { amount?: number; x?: number; y?: number; keys?: string } = {},
  ): Promise<void> {
    const coordinate = place(options.x, options.y);
    await this.one({ action: "scroll", scroll_direction: direction, scroll_amount: options.amount ?? 3, coordinate, text: options.keys });
  }

  async cursorPosition(): Promise<[number, number]> {
    return (await this.one({ action: "cursor_position" }, false)).coordinate as [number, number];
  }

  /** Text of any script, as if it were typed; a line break is Return. */
  async type(text: string): Promise<void> {
    await this.one({ action: "type", text });
  }

  /** "Return", "ctrl+s", "alt+F4". */
  async key(keys: string, options: { repeat?: number } = {}): Promise<void> {
    await this.one({ action: "key", text: keys, repeat: options.repeat });
  }

  async clipboard(): Promise<string> {
    return (await this.transport.json<{ text: string }>("GET", `${this.path}/clipboard`)).text;
  }

  async setClipboard(text: string): Promise<void> {
    await this.transport.json("PUT", `${this.path}/clipboard`, { json: { text } });
  }

  async size(): Promise<{ width: number; height: number }> {
    const { width, height } = await this.transport.json<{ width: number; height: number }>("GET", this.path);
    return { width, height };
  }

  async resize(width: number, height: number): Promise<void> {
    await this.transport.json("PUT", `${this.path}/size`, { json: { width, height } });
  }

  /** From the bottom to the top. */
  async windows(): Promise<Window[]> {
    return (await this.transport.json<{ windows: Window[] }>("GET", `${this.path}/windows`)).windows;
  }

  /**
   * The elements on the screen, as programs describe them to assistive technology: roles, names, boxes, states. `window`: only windows
   * whose title contains this. `all`: with elements that only hold others.
   */
  async tree(options: { window?: string; maxElements?: number; all?: boolean } = {}): Promise<Element[]> {
    const query: Query = { window: options.window, max_elements: options.maxElements, all: options.all };
    return (await this.transport.json<{ elements: Element[] }>("GET", `${this.path}/tree`, { query })).elements;
  }

  async focusWindow(window: number): Promise<void> {
    await this.transport.json("PUT", `${this.path}/windows/${window}`, { json: { focus: true } });
  }

  async moveWindow(window: number, place: { x?: number; y?: number; width?: number; height?: number }): Promise<void> {
    await this.transport.json("PUT", `${this.path}/windows/${window}`, { json: place });
  }

  async closeWindow(window: number): Promise<void> {
    await this.transport.json("DELETE", `${this.path}/windows/${window}`);
  }

  /** Opens an address in the browser: in a new tab, if it runs. */
  async open(url = "about:blank"): Promise<void> {
    await this.one({ action: "open", url });
  }
}
