/**
 * What the computer tools of OpenAI and Gemini ask for, as actions of docs/desktop.md. Anthropic's tool has those names already. Calls
 * are read by their fields, so nothing here needs a package of a vendor. `sdk/python/husk/_computer.py` is the same in Python.
 */
import type { DesktopAction } from "./desktop.js";
import { InvalidError } from "./errors.js";

export type Fields = Record<string, unknown>;
export type Size = { width: number; height: number };

/** One notch of the wheel in Chromium, which is what the models' pixels are about. */
const NOTCH_PIXELS = 120;
const NOTCHES_MAX = 200;
const SEARCH = "https://www.google.com/";

/** The largest size of these proportions with no side longer than `edge` and at most `patches` squares of 28 pixels. */
export function fitted(screen: Size, edge: number, patches: number): Size {
  for (let width = screen.width; width > 0; width--) {
    const height = Math.max(1, Math.round((screen.height * width) / screen.width));
    if (Math.max(width, height) <= edge && Math.ceil(width / 28) * Math.ceil(height / 28) <= patches) return { width, height };
  }
  return { width: 1, height: 1 };
}

function keysOf(keys: unknown): string | undefined {
  if (typeof keys === "string") return keys;
  return Array.isArray(keys) && keys.length ? keys.join("+") : undefined;
}

function notches(pixels: number): number {
  return Math.min(NOTCHES_MAX, Math.max(1, Math.round(Math.abs(pixels) / NOTCH_PIXELS)));
}

function invalid(message: string): InvalidError {
  return new InvalidError(message, { code: "invalid" });
}

// ---- OpenAI ----

const OPENAI_CLICKS: Record<string, string> = { left: "left_click", right: "right_click", wheel: "middle_click" };
const HISTORY: Record<string, string> = { back: "alt+Left", forward: "alt+Right", go_back: "alt+Left", go_forward: "alt+Right" };

function openaiClick(action: Fields, coordinate: unknown[], text: string | undefined): DesktopAction[] {
  const button = String(action.button ?? "left");
  const keys = HISTORY[button];
  // The buttons at the side of a mouse.
  if (keys) return [{ action: "mouse_move", coordinate }, { action: "key", text: keys }];
  const name = OPENAI_CLICKS[button];
  if (!name) throw invalid(`button '${button}' is not known (left, right, wheel, back, forward)`);
  return [{ action: name, coordinate, text }];
}

function openaiScroll(action: Fields, coordinate: unknown[], text: string | undefined): DesktopAction[] {
  const axes = [
    [Number(action.scroll_y ?? 0), "up", "down"],
    [Number(action.scroll_x ?? 0), "left", "right"],
  ] as const;
  return axes
    .filter(([pixels]) => pixels !== 0)
    .map(([pixels, back, on]) => ({
      action: "scroll",
      coordinate,
      scroll_direction: pixels > 0 ? on : back,
      scroll_amount: notches(pixels),
      text,
    }));
}

/** An action of a computer_call. A screenshot is no action: the picture is taken at the end. */
export function openaiActions(action: Fields): DesktopAction[] {
  const text = keysOf(action.keys);
  const coordinate = [action.x ?? 0, action.y ?? 0];
  switch (action.type) {
    case "click":
      return openaiClick(action, coordinate, text);
    case "double_click":
      return [{ action: "double_click", coordinate, text }];
    case "drag":
      return [{ action: "left_click_drag", path: (action.path as { x: number; y: number }[]).map(({ x, y }) => [x, y]), text }];
    case "keypress":
      return [{ action: "key", text: text ?? "" }];
    case "move": {
      const move = { action: "mouse_move", coordinate };
      return text ? [{ action: "key_down", text }, move, { action: "key_up", text }] : [move];
    }
    case "scroll":
      return openaiScroll(action, coordinate, text);
    case "type":
      return [{ action: "type", text: action.text }];
    case "wait":
      return [{ action: "wait", duration: 1 }];
    case "screenshot":
      return [];
    default:
      throw invalid(`the action '${String(action.type)}' of OpenAI's computer tool is not known`);
  }
}

// ---- Gemini ----

/** Actions that differ by name only: 3.5's names, then 2.5's. */
const GEMINI_POINTED: Record<string, string> = {
  click: "left_click",
  double_click: "double_click",
  triple_click: "triple_click",
  middle_click: "middle_click",
  right_click: "right_click",
  mouse_down: "left_mouse_down",
  mouse_up: "left_mouse_up",
  move: "mouse_move",
  click_at: "left_click",
  hover_at: "mouse_move",
};
const GEMINI_KEYS: Record<string, string> = { press_key: "key", key_down: "key_down", key_up: "key_up", hotkey: "key", key_combination: "key" };

function pointOf(args: Fields, x = "x", y = "y"): unknown[] | undefined {
  return args[x] === undefined || args[y] === undefined ? undefined : [args[x], args[y]];
}

function geminiScroll(name: string, args: Fields, screen: Size): DesktopAction {
  const direction = String(args.direction ?? "down");
  // In thousandths of the screen, like coordinates.
  const magnitude = Number(args.magnitude_in_pixels ?? args.magnitude ?? (name === "scroll" ? 300 : 800));
  const side = direction === "up" || direction === "down" ? screen.height : screen.width;
  const amount = args.magnitude_in_wheel_clicks ?? notches((magnitude * side) / 1000);
  return { action: "scroll", coordinate: pointOf(args), scroll_direction: direction, scroll_amount: amount };
}

function geminiType(name: string, args: Fields): DesktopAction[] {
  const older = name === "type_text_at";
  const made: DesktopAction[] = [];
  const coordinate = pointOf(args);
  if (coordinate) made.push({ action: "left_click", coordinate });
  if (older && (args.clear_before_typing ?? true)) made.push({ action: "key", text: "ctrl+a" }, { action: "key", text: "BackSpace" });
  made.push({ action: "type", text: args.text });
  if (args.press_enter ?? older) made.push({ action: "key", text: "Return" });
  return made;
}

function geminiOther(name: string, args: Fields): DesktopAction[] {
  switch (name) {
    case "drag_and_drop":
      return [
        {
          action: "left_click_drag",
          start_coordinate: pointOf(args, "start_x", "start_y") ?? pointOf(args),
          coordinate: pointOf(args, "end_x", "end_y") ?? pointOf(args, "destination_x", "destination_y"),
        },
      ];
    case "long_press":
      return [
        { action: "left_mouse_down", coordinate: pointOf(args) },
        { action: "wait", duration: args.seconds ?? 2 },
        { action: "left_mouse_up" },
      ];
    case "wait":
      return [{ action: "wait", duration: args.seconds ?? 1 }];
    case "wait_5_seconds":
      return [{ action: "wait", duration: 5 }];
    case "navigate":
    case "search":
    case "open_web_browser":
      return [{ action: "open", url: args.url ?? (name === "search" ? SEARCH : "about:blank") }];
    case "take_screenshot":
      return [];
    default:
      throw invalid(`the function '${name}' of Gemini's computer use is not supported on a desktop`);
  }
}

/** A function of Gemini's computer use, of 3.5 (desktop, browser) or 2.5. The picture is taken at the end. */
export function geminiActions(name: string, args: Fields, screen: Size): DesktopAction[] {
  const pointed = GEMINI_POINTED[name];
  if (pointed) return [{ action: pointed, coordinate: pointOf(args) }];
  const keys = GEMINI_KEYS[name];
  if (keys) return [{ action: keys, text: keysOf(args.keys ?? args.key) ?? "" }];
  if (name === "scroll" || name === "scroll_at" || name === "scroll_document") return [geminiScroll(name, args, screen)];
  if (name === "type" || name === "type_text_at") return geminiType(name, args);
  const back = HISTORY[name];
  return back ? [{ action: "key", text: back }] : geminiOther(name, args);
}
