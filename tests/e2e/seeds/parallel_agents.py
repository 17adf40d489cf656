"""Two agents at once, each with a machine of its own: both serve on port 3000, each with its own version of a library,
and neither notices the other. From outside, each port has its own URL.
"""

import asyncio
import urllib.request

from husk import AsyncSandbox

SERVER = """
import http.server, library
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"library {library.VERSION}".encode())
http.server.HTTPServer(("127.0.0.1", 3000), Handler).serve_forever()
"""
LISTENS = "until curl -s localhost:3000 >/dev/null; do sleep 0.1; done"


def fetch(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


async def agent(version):
    async with AsyncSandbox.create(ttl_seconds=300, metadata={"agent": version}) as sandbox:
        await sandbox.filesystem.write("/workspace/library.py", f"VERSION = '{version}'\n")
        await sandbox.filesystem.write("/workspace/server.py", SERVER)
        await sandbox.start("python3 server.py", cwd="/workspace")
        await sandbox.exec(LISTENS, timeout_seconds=60, check=True)
        url = await sandbox.get_url(3000, expires_seconds=60, by_path=True)
        return await asyncio.to_thread(fetch, url)


async def main():
    for answer in await asyncio.gather(agent("1.0"), agent("2.0")):
        print(answer)


asyncio.run(main())
