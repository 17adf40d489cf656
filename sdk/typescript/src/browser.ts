/** The browser of a sandbox's desktop for programs: Chromium's DevTools protocol, for Playwright, Puppeteer and other clients of it. */
import { fromWire, type BrowserInfo } from "./models.js";
import { bytes, type Transport } from "./transport.js";

export class Browser {
  constructor(
    private readonly transport: Transport,
    private readonly sandboxPath: string,
  ) {}

  /** Starts the browser if it does not run. `url`: a page to open. */
  async start(url?: string, options: { expiresSeconds?: number } = {}): Promise<BrowserInfo> {
    const body = JSON.stringify({ url, expires_seconds: options.expiresSeconds });
    return fromWire<BrowserInfo>(await this.transport.json<object>("POST", `${this.sandboxPath}/browser`, { body }));
  }

  /** As `start`: the address of the protocol, which needs no token until it expires. */
  async cdpUrl(url?: string, options: { expiresSeconds?: number } = {}): Promise<string> {
    return (await this.start(url, options)).cdpUrl;
  }

  /** Its cookies, logins, history and settings, as a tar for `loadProfile` of this or another sandbox. Ends the browser. */
  async saveProfile(): Promise<Uint8Array> {
    return bytes(await this.transport.open("GET", `${this.sandboxPath}/browser/profile`));
  }

  /** Replaces its profile. Ends the browser; it starts again when it is next used. */
  async loadProfile(profile: Uint8Array): Promise<void> {
    (await this.transport.open("PUT", `${this.sandboxPath}/browser/profile`, { body: profile })).resume();
  }
}
