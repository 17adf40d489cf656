// A recording of a screen (FBS 001.001, as huskd writes it) as a channel that noVNC can be attached to: the bytes that the VNC server
// sent come again, at the times at which they came. What noVNC says to it goes nowhere.

const HEAD = "FBS 001.001\n";
const STEP_MS = 40;

export class Recording {
    constructor(buffer) {
        this.blocks = [];
        this.onprogress = () => {};
        this.onend = () => {};
        const bytes = new Uint8Array(buffer);
        const view = new DataView(buffer);
        if (new TextDecoder().decode(bytes.subarray(0, HEAD.length)) !== HEAD)
            throw new Error("this is not a recording");
        // A recording that was cut off ends with half a block, which is left out.
        for (let at = HEAD.length; at + 8 <= bytes.length;) {
            const size = view.getUint32(at);
            const next = at + 4 + Math.ceil(size / 4) * 4 + 4;
            if (next > bytes.length)
                break;
            this.blocks.push({ bytes: bytes.slice(at + 4, at + 4 + size), ms: view.getUint32(next - 4) });
            at = next;
        }
        this.duration = this.blocks.length ? this.blocks[this.blocks.length - 1].ms : 0;
    }

    // With the members of a WebSocket that noVNC uses.
    channel() {
        const channel = {
            readyState: "open",
            binaryType: "arraybuffer",
            protocol: "",
            onopen: null,
            onmessage: null,
            onclose: null,
            onerror: null,
            send: () => {},
            close: () => {
                channel.readyState = "closed";
                clearTimeout(channel.timer);
            },
        };
        const begun = performance.now();
        let next = 0;
        const step = () => {
            const ms = performance.now() - begun;
            while (next < this.blocks.length && this.blocks[next].ms <= ms && channel.readyState === "open") {
                const { bytes } = this.blocks[next++];
                channel.onmessage?.({ data: bytes.buffer });
            }
            this.onprogress(Math.min(ms, this.duration));
            if (next < this.blocks.length)
                channel.timer = setTimeout(step, STEP_MS);
            else
                this.onend();
        };
        channel.timer = setTimeout(step, STEP_MS);
        return channel;
    }
}
