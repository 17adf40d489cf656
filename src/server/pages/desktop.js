// The page of a desktop: live view, take-over, replay of a recording. huskd decides what a viewer may do; this page only shows it.
// The query of its own address is its key (husk_access, husk_expires, husk_signature) and goes with each request.
import RFB from "./novnc/core/rfb.js";
import { Recording } from "./replay.js";

const CONTROL_SECONDS = 60;
const LOOK_MS = 2000;

const page = new URL(location.href);
const element = (id) => document.getElementById(id);
const mayControl = page.searchParams.get("husk_access") === "control";
const holder = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

let rfb = null;
let inControl = false;
let renewed = 0;

// An address beside this page, with its key.
function address(name, more = {}) {
    const url = new URL(name, page);
    for (const key of ["husk_access", "husk_expires", "husk_signature"])
        if (page.searchParams.has(key))
            url.searchParams.set(key, page.searchParams.get(key));
    for (const [key, value] of Object.entries(more))
        url.searchParams.set(key, value);
    return url;
}

async function call(method, name, { query, body } = {}) {
    const answer = await fetch(address(name, query), {
        method,
        headers: body ? { "Content-Type": "application/json" } : {},
        body: body ? JSON.stringify(body) : undefined,
    });
    const text = await answer.text();
    const document = text ? JSON.parse(text) : null;
    if (!answer.ok)
        throw new Error(document?.error?.message ?? `status ${answer.status}`);
    return document;
}

function say(text) {
    element("status").textContent = text;
}

function setControl(on) {
    inControl = on;
    document.body.classList.toggle("control", on);
    element("take").hidden = element("who").hidden = on || !mayControl;
    element("give").hidden = !on;
    if (rfb) {
        rfb.viewOnly = !on;
        if (on)
            rfb.focus();
    }
}

async function takeControl() {
    try {
        const name = element("name").value.trim() || "a person";
        await call("PUT", "control", { body: { name, holder, ttl_seconds: CONTROL_SECONDS } });
        renewed = Date.now();
        setControl(true);
        say("You are in control");
    } catch (error) {
        say(error.message);
    }
}

async function giveBack() {
    setControl(false);
    try {
        await call("DELETE", "control", { query: { holder } });
        say("Watching");
    } catch (error) {
        say(error.message);
    }
}

// Who is in control, and what an agent asks for. Control that this page has is prolonged before it expires.
async function look() {
    try {
        if (inControl && Date.now() - renewed > (CONTROL_SECONDS * 1000) / 3)
            await takeControl();
        const control = await call("GET", "control");
        if (inControl && !control.held)
            setControl(false);
        if (!inControl)
            say(control.held ? `${control.name} is in control` : "Watching");
        element("take").disabled = control.held && !inControl;
        const asked = control.request?.state === "waiting";
        element("request").hidden = !asked;
        element("request").textContent = asked ? `The agent asks for a person: ${control.request.reason}` : "";
    } catch (error) {
        say(error.message);
    }
    if (rfb)
        setTimeout(look, LOOK_MS);
}

function show(channel, viewOnly) {
    const screen = new RFB(element("screen"), channel, { shared: true });
    screen.viewOnly = viewOnly;
    screen.scaleViewport = true;
    screen.background = "transparent";
    return screen;
}

function watch() {
    const socket = address("vnc", mayControl ? { holder } : {});
    socket.protocol = socket.protocol === "https:" ? "wss:" : "ws:";
    rfb = show(socket.href, true);
    rfb.addEventListener("connect", () => {
        document.body.dataset.state = "connected";
        setControl(false);
        look();
    });
    rfb.addEventListener("disconnect", () => {
        document.body.dataset.state = "disconnected";
        rfb = null;
        setControl(false);
        element("take").hidden = element("who").hidden = true;
        say("Disconnected; reload the page to connect again");
    });
    element("take").addEventListener("click", takeControl);
    element("give").addEventListener("click", giveBack);
    addEventListener("pagehide", () => {
        if (inControl)
            fetch(address("control", { holder }), { method: "DELETE", keepalive: true });
    });
}

async function replay(id) {
    say("Loading the recording…");
    const answer = await fetch(address(`recordings/${encodeURIComponent(id)}/screen`));
    if (!answer.ok) {
        const document = await answer.json().catch(() => null);
        say(document?.error?.message ?? `status ${answer.status}`);
        return;
    }
    const recording = new Recording(await answer.arrayBuffer());
    const seconds = (ms) => `${(ms / 1000).toFixed(1)} s`;
    for (const shown of ["play", "progress", "time"])
        element(shown).hidden = false;
    recording.onprogress = (ms) => {
        element("progress").value = recording.duration ? ms / recording.duration : 1;
        element("time").textContent = `${seconds(ms)} of ${seconds(recording.duration)}`;
    };
    recording.onend = () => {
        document.body.dataset.state = "played";
        element("play").disabled = false;
        say("The recording has ended");
    };
    element("play").addEventListener("click", () => {
        element("play").disabled = true;
        element("screen").replaceChildren();
        document.body.dataset.state = "playing";
        say("Playing");
        show(recording.channel(), true);
    });
    document.body.dataset.state = "loaded";
    say("Recording");
}

if (page.searchParams.has("recording"))
    replay(page.searchParams.get("recording"));
else
    watch();
