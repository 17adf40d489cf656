// A door for checkers that cannot send a token: listens on a port of this machine, adds the token to each request and
// passes everything else through as it is, so that what is checked is huskd. Prints its URL, and ends with its stdin.

import http from "node:http";

const target = new URL(process.env.HUSK_MCP_URL);

const server = http.createServer((request, response) => {
	const headers = { ...request.headers, authorization: `Bearer ${process.env.HUSK_TOKEN}` };
	const onward = http.request(
		{ host: target.hostname, port: target.port, method: request.method, path: request.url, headers },
		(answer) => {
			response.writeHead(answer.statusCode, answer.headers);
			answer.pipe(response);
		},
	);
	onward.on("error", () => response.destroy());
	response.on("close", () => onward.destroy());
	request.pipe(onward);
});

server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}/mcp`));
process.stdin.on("end", () => process.exit(0)).resume();
