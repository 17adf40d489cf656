// What the suite asks of a client, over the two generations of the official SDK: the one that speaks up to 2025-11-25
// (@modelcontextprotocol/sdk) and the one that speaks 2026-07-28 (@modelcontextprotocol/client).
//
// HUSK is the program, HUSK_MCP_URL and HUSK_TOKEN are where huskd's /mcp is.

import { Client as LegacyClient } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport as LegacyStdio } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport as LegacyHttp } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { Client as ModernClient, StreamableHTTPClientTransport as ModernHttp } from "@modelcontextprotocol/client";
import { StdioClientTransport as ModernStdio } from "@modelcontextprotocol/client/stdio";

const identity = { name: "husk-tests", version: "1.0.0" };

function command(options) {
	return { command: process.env.HUSK, args: ["mcp", ...(options ?? [])], env: process.env, stderr: "inherit" };
}

function address(query) {
	const url = new URL(process.env.HUSK_MCP_URL);
	for (const [key, value] of Object.entries(query ?? {})) url.searchParams.set(key, value);
	return url;
}

const headers = () => ({ Authorization: `Bearer ${process.env.HUSK_TOKEN}` });

/** A connected client. `options` are husk mcp's over stdio, `query` is the URL's over HTTP. */
export async function connect(transport, era, { options, query, fetch, sessionId } = {}) {
	const modern = era === "modern";
	const Stdio = modern ? ModernStdio : LegacyStdio;
	const Http = modern ? ModernHttp : LegacyHttp;
	const channel =
		transport === "stdio"
			? new Stdio(command(options))
			: new Http(address(query), { requestInit: { headers: headers() }, fetch, sessionId });
	const client = modern
		? new ModernClient(identity, { versionNegotiation: { mode: "auto" } })
		: new LegacyClient(identity);
	await client.connect(channel);
	return { client, channel, modern, transport };
}

/** Calls a tool; the client checks structured output against the tool's schema by itself. */
export function call({ client, modern }, name, args = {}, options = {}) {
	if (modern) return client.callTool({ name, arguments: args }, { timeout: 120000, ...options });
	return client.callTool({ name, arguments: args }, undefined, { timeout: 120000, ...options });
}

/** Ends the session the way a host does. */
export async function close({ client, channel, modern, transport }) {
	if (transport === "http" && !modern) await channel.terminateSession();
	await client.close();
}

export { address, headers };
