// What a person's browser and a program's Playwright do with a desktop: `suite.mjs WORD ARGUMENT…` prints one JSON document.
import { chromium } from "playwright-core";

const LIMIT = { timeout: 60000 };

async function person(work) {
    const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox", "--disable-dev-shm-usage"] });
    const page = await browser.newPage({ viewport: { width: 1300, height: 880 } });
    const complaints = [];
    page.on("console", (message) => message.type() === "error" && complaints.push(message.text()));
    page.on("pageerror", (error) => complaints.push(error.message));
    page.on("request", (request) => {
        if (!request.url().startsWith("data:") && new URL(request.url()).host !== new URL(page.url()).host && page.url() !== "about:blank")
            complaints.push(`a request to ${request.url()}`);
    });
    try {
        return { ...(await work(page)), complaints };
    } finally {
        await browser.close();
    }
}

const connected = (page) => page.waitForSelector("body[data-state=connected]", LIMIT);

// Where a place of the desktop is in the page that shows it.
async function place(page, x, y) {
    const box = await page.locator("#screen canvas").boundingBox();
    return [box.x + (x * box.width) / 1280, box.y + (y * box.height) / 800];
}

const words = {
    // Takes control, clicks at a place of the desktop and types; gives control back, and types again.
    take: (url, picture, x, y, text) => person(async (page) => {
        await page.goto(url);
        await connected(page);
        await page.fill("#name", "Ada");
        await page.click("#take");
        await page.waitForSelector("body.control", LIMIT);
        await page.mouse.click(...(await place(page, Number(x), Number(y))));
        await page.waitForTimeout(500); // in Chromium, keys can overtake the click before them
        await page.keyboard.type(text, { delay: 40 });
        await page.waitForTimeout(1500);
        const status = await page.textContent("#status");
        await page.screenshot({ path: picture });
        await page.click("#give");
        await page.waitForSelector("body:not(.control)", LIMIT);
        await page.mouse.click(...(await place(page, Number(x), Number(y))));
        await page.keyboard.type("dropped", { delay: 40 });
        await page.waitForTimeout(500);
        return { status, after: await page.textContent("#status") };
    }),
    // Looks for as long as it takes to see an agent's request and a person in control.
    watch: (url, picture) => person(async (page) => {
        await page.goto(url);
        await connected(page);
        await page.waitForSelector("#request:not([hidden])", LIMIT);
        const request = await page.textContent("#request");
        await page.screenshot({ path: picture });
        return { request, button: await page.isVisible("#take") };
    }),
    replay: (url, picture) => person(async (page) => {
        await page.goto(url);
        await page.waitForSelector("body[data-state=loaded]", LIMIT);
        await page.click("#play");
        await page.waitForSelector("body[data-state=played]", LIMIT);
        await page.waitForTimeout(500);
        await page.screenshot({ path: picture });
        return { time: await page.textContent("#time") };
    }),
    // Drives the browser of the sandbox; `secret` is empty or a token.
    drive: async (url, secret, text) => {
        const browser = await chromium.connectOverCDP(url, secret ? { headers: { Authorization: `Bearer ${secret}` } } : {});
        try {
            const page = browser.contexts()[0].pages().find((each) => each.url().startsWith("file:"));
            if (text)
                await page.fill("#field", text);
            return { title: await page.title(), bytes: (await page.screenshot()).length };
        } finally {
            await browser.close();
        }
    },
    // What a page inside can do to the protocol that drives it, and to likely places of VNC.
    attack: async (url, port, path) => {
        const browser = await chromium.connectOverCDP(url);
        try {
            const page = browser.contexts()[0].pages().find((each) => each.url().startsWith("file:"));
            return await page.evaluate(async ([to, target]) => {
                const socket = (address) => new Promise((resolve) => {
                    const tried = new WebSocket(address);
                    tried.onopen = () => resolve("open");
                    tried.onerror = () => resolve("refused");
                });
                const read = (address, options) => fetch(address, options).then((answer) => answer.text()).then((body) => `read ${body}`, () => "refused");
                return {
                    protocol: await socket(`ws://127.0.0.1:${to}${target}`),
                    version: await read(`http://127.0.0.1:${to}/json/version`),
                    fresh: await read(`http://127.0.0.1:${to}/json/new?about:blank`, { method: "PUT" }),
                    vnc: await Promise.all([5900, 5901, 6080].map((each) => socket(`ws://127.0.0.1:${each}/`))),
                };
            }, [port, path]);
        } finally {
            await browser.close();
        }
    },
};

const [word, ...given] = process.argv.slice(2);
console.log(JSON.stringify(await words[word](...given)));
process.exit(0);
