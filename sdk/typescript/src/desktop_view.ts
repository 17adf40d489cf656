/** What people see of a sandbox's desktop: links to the live view, who is in control, recordings. */
import { fromWire, type Control, type Link, type Recording, type Signal } from "./models.js";
import { bytes, type Transport } from "./transport.js";

export class DesktopView {
  constructor(
    protected readonly transport: Transport,
    protected readonly sandboxPath: string,
  ) {}

  private async ask<T>(method: string, name: string, body?: object, signal?: Signal): Promise<T> {
    const text = body === undefined ? undefined : JSON.stringify(body);
    return fromWire<T>(await this.transport.json<object>(method, `${this.sandboxPath}/desktop/${name}`, { body: text, signal }));
  }

  /**
   * A link to the live view, for a browser. It needs no token until it expires: who has it has access. `viewOnly: false`: the link
   * also permits to take control. `recording`: the link plays that recording instead.
   */
  async url(options: { viewOnly?: boolean; expiresSeconds?: number; recording?: string } = {}): Promise<string> {
    const body = { view_only: options.viewOnly, expires_seconds: options.expiresSeconds, recording: options.recording };
    return (await this.ask<Link>("POST", "url", body)).url;
  }

  /** Who is in control, and whether a person was asked for. */
  async control(): Promise<Control> {
    return this.ask("GET", "control");
  }

  /**
   * Takes control for a person, or prolongs it for the same holder. Until it is given back or expires, actions of agents fail with
   * ConflictError, which says who is in control.
   */
  async takeOver(name: string, options: { holder?: string; ttlSeconds?: number } = {}): Promise<Control> {
    return this.ask("PUT", "control", { name, holder: options.holder, ttl_seconds: options.ttlSeconds });
  }

  /** Without a holder: whoever is in control. */
  async giveBack(holder?: string): Promise<void> {
    const answer = await this.transport.open("DELETE", `${this.sandboxPath}/desktop/control`, { query: { holder } });
    answer.resume();
  }

  /**
   * For an agent that cannot continue, such as at a login: asks for a person, and waits until one has taken control and given it back
   * (`request.state` is "done"), or the time is over (600 seconds at most).
   */
  async requestHuman(reason: string, options: { waitSeconds?: number; signal?: Signal } = {}): Promise<Control> {
    return this.ask("POST", "control/request", { reason, wait_seconds: options.waitSeconds }, options.signal);
  }

  /** Begins to record the screen. It ends by `stopRecording`, a limit, or the end of the desktop. */
  async record(options: { maxSeconds?: number; maxBytes?: number | string } = {}): Promise<Recording> {
    return this.ask("POST", "recordings", { max_seconds: options.maxSeconds, max_bytes: options.maxBytes });
  }

  async stopRecording(recording: string): Promise<Recording> {
    return this.ask("POST", `recordings/${encodeURIComponent(recording)}/stop`);
  }

  async recordings(): Promise<Recording[]> {
    return (await this.ask<{ recordings: Recording[] }>("GET", "recordings")).recordings;
  }

  /** The recorded screen: an RFB stream with times (FBS 001.001). */
  async readRecording(recording: string): Promise<Uint8Array> {
    const path = `${this.sandboxPath}/desktop/recordings/${encodeURIComponent(recording)}/screen`;
    return bytes(await this.transport.open("GET", path));
  }

  /** The recording as a video ("mp4" or "webm"), or as a document with its actions ("json"). */
  async exportRecording(recording: string, format: "mp4" | "webm" | "json" = "mp4", signal?: Signal): Promise<Uint8Array> {
    const path = `${this.sandboxPath}/desktop/recordings/${encodeURIComponent(recording)}/export`;
    return bytes(await this.transport.open("GET", path, { query: { format }, signal }));
  }

  async removeRecording(recording: string): Promise<void> {
    const path = `${this.sandboxPath}/desktop/recordings/${encodeURIComponent(recording)}`;
    (await this.transport.open("DELETE", path)).resume();
  }
}
