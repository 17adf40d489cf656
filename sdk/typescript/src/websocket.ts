/**
 * The little of RFC 6455 that a terminal needs, as a client over the transport's connection: text and binary messages,
 * ping, close. Node 18 has no WebSocket of its own, and none that speaks over a unix socket.
 */
import { createHash, randomBytes } from "node:crypto";
import type { Socket } from "node:net";

import { HuskError } from "./errors.js";
import type { Query, Transport } from "./transport.js";

const GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const TEXT = 1;
const BINARY = 2;
const CLOSE = 8;
const PING = 9;
const PONG = 10;

export type Message = { text: string } | { bytes: Uint8Array };

export class WebSocketClient {
  private readonly messages: Message[] = [];
  private waiting: (() => void) | undefined;
  private buffered: Buffer;
  private partial: { opcode: number; pieces: Buffer[] } | undefined;
  private ended = false;
  private error: Error | undefined;

  private constructor(private readonly socket: Socket, head: Buffer) {
    this.buffered = head;
    socket.on("data", (piece: Buffer) => {
      this.buffered = this.buffered.length ? Buffer.concat([this.buffered, piece]) : piece;
      this.parse();
    });
    socket.on("error", (error) => this.end(error));
    socket.on("close", () => this.end());
    this.parse();
  }

  static connect(transport: Transport, path: string, query: Query): Promise<WebSocketClient> {
    const key = randomBytes(16).toString("base64");
    const target = transport.target("GET", path, query, {
      Connection: "Upgrade",
      Upgrade: "websocket",
      "Sec-WebSocket-Version": "13",
      "Sec-WebSocket-Key": key,
    });
    return new Promise((resolve, reject) => {
      const request = transport.request({ ...target, agent: false });
      request.on("error", (error) => reject(transport.unreachable(error)));
      request.on("response", (answer) => void transport.failure(answer).then(reject, reject));
      request.on("upgrade", (answer, socket, head) => {
        const expected = createHash("sha1").update(key + GUID).digest("base64");
        if (answer.headers["sec-websocket-accept"] !== expected) {
          socket.destroy();
          reject(new HuskError("the server's WebSocket handshake is wrong", { code: "protocol" }));
        } else {
          resolve(new WebSocketClient(socket as Socket, head));
        }
      });
      request.end();
    });
  }

  private end(error?: Error): void {
    this.error ??= error;
    this.ended = true;
    this.waiting?.();
  }

  private parse(): void {
    for (;;) {
      const b = this.buffered;
      if (b.length < 2) return;
      let size = b[1]! & 0x7f;
      let at = 2;
      if (size === 126) {
        if (b.length < 4) return;
        size = b.readUInt16BE(2);
        at = 4;
      } else if (size === 127) {
        if (b.length < 10) return;
        size = Number(b.readBigUInt64BE(2));
        at = 10;
      }
      if (b.length < at + size) return;
      const first = b[0]!;
      this.frame((first & 0x80) !== 0, first & 0x0f, b.subarray(at, at + size));
      this.buffered = b.subarray(at + size);
    }
  }

  private frame(last: boolean, opcode: number, payload: Buffer): void {
    if (opcode === PING) return this.write(PONG, payload);
    if (opcode === CLOSE) {
      this.write(CLOSE, payload.subarray(0, 2));
      this.socket.end();
      return this.end();
    }
    if (opcode !== TEXT && opcode !== BINARY && opcode !== 0) return;
    if (opcode !== 0) this.partial = { opcode, pieces: [] };
    if (!this.partial) return;
    this.partial.pieces.push(payload);
    if (!last) return;
    const whole = Buffer.concat(this.partial.pieces);
    this.messages.push(this.partial.opcode === TEXT ? { text: whole.toString() } : { bytes: whole });
    this.partial = undefined;
    this.waiting?.();
  }

  private write(opcode: number, payload: Buffer): void {
    if (this.socket.destroyed) return;
    const mask = randomBytes(4);
    const long = payload.length > 65535 ? 10 : payload.length > 125 ? 4 : 2;
    const frame = Buffer.alloc(long + 4 + payload.length);
    frame[0] = 0x80 | opcode;
    if (long === 2) frame[1] = 0x80 | payload.length;
    else if (long === 4) {
      frame[1] = 0x80 | 126;
      frame.writeUInt16BE(payload.length, 2);
    } else {
      frame[1] = 0x80 | 127;
      frame.writeBigUInt64BE(BigInt(payload.length), 2);
    }
    mask.copy(frame, long);
    for (let i = 0; i < payload.length; i++) frame[long + 4 + i] = payload[i]! ^ mask[i & 3]!;
    this.socket.write(frame);
  }

  sendText(text: string): void {
    this.write(TEXT, Buffer.from(text));
  }

  sendBytes(bytes: Uint8Array): void {
    this.write(BINARY, Buffer.from(bytes));
  }

  /** The next message; undefined after the end. */
  async next(): Promise<Message | undefined> {
    while (this.messages.length === 0) {
      if (this.error) throw new HuskError(`the connection broke: ${this.error.message}`, { code: "gone", cause: this.error });
      if (this.ended) return undefined;
      await new Promise<void>((resolve) => (this.waiting = resolve));
      this.waiting = undefined;
    }
    return this.messages.shift();
  }

  close(): void {
    this.write(CLOSE, Buffer.from([0x03, 0xe8]));
    this.socket.end();
  }
}
