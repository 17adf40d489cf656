// The unmodified `e2b` package against a Husk server, method by method. Which version: $HUSK_COMPAT_PACKAGE names the
// package to import. E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY say where, as in any program that uses it.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import http from 'node:http'
import os from 'node:os'
import path from 'node:path'

import { Skip, check, fails, finish, label, pause, until } from './kit.mjs'

const e2b = await import(process.env.HUSK_COMPAT_PACKAGE ?? 'e2b')
const { Sandbox, Template, Volume, Secret } = e2b
const {
  AuthenticationError, BuildError, CommandExitError, FileNotFoundError, InvalidArgumentError, NotFoundError, SandboxError,
  SandboxNotFoundError, TemplateError, TimeoutError, VolumeError, SecretError, RateLimitError,
} = e2b
const run = Math.random().toString(36).slice(2, 8) // tells this run's sandboxes from others'
const made = []

async function create(...args) {
  const sandbox = await Sandbox.create(...args)
  made.push(sandbox)
  return sandbox
}

async function ids(paginator) {
  const found = []
  while (paginator.hasNext) found.push(...(await paginator.nextItems()).map((each) => each.sandboxId ?? each.snapshotId))
  return found
}

const box = await create({ metadata: { run, purpose: 'shared & common' }, envs: { GREETING: 'hello' }, timeoutMs: 600_000 })

// ---- sandboxes

await check('Sandbox.create', async () => {
  assert.match(box.sandboxId, /^[a-z0-9]+$/) // as theirs: programs split it at '-'
  assert.equal((await box.commands.run('echo $GREETING')).stdout, 'hello\n')
})
await check('Sandbox.create (unknown template)', async () => {
  await fails(Sandbox.create('no-such-template'), SandboxError, '404')
})
await check('Sandbox.create (wrong key)', async () => {
  await fails(Sandbox.create({ apiKey: 'e2b_' + '0'.repeat(40) }), AuthenticationError)
})
await check('Sandbox.create (metadata of ours)', async () => {
  await fails(Sandbox.create({ metadata: { 'husk.e2b': 'x' } }), SandboxError, '400')
})
await check('Sandbox.connect', async () => {
  const same = await Sandbox.connect(box.sandboxId)
  assert.equal((await same.commands.run('echo again')).stdout, 'again\n')
  await fails(Sandbox.connect('sb-aaaaaaaaaa'), SandboxNotFoundError)
})
await check('Sandbox.connect keeps a longer timeout', async () => {
  const before = (await box.getInfo()).endAt
  await Sandbox.connect(box.sandboxId, { timeoutMs: 30_000 })
  assert.equal(+(await box.getInfo()).endAt, +before)
})
await check('Sandbox.getInfo', async () => {
  const info = await box.getInfo()
  assert.equal(info.sandboxId, box.sandboxId)
  assert.equal(info.templateId, 'base')
  assert.deepEqual(info.metadata, { run, purpose: 'shared & common' })
  assert.equal(info.state, 'running')
  assert.ok(info.cpuCount >= 1 && info.memoryMB >= 64)
  assert.ok(Math.abs(info.endAt - info.startedAt - 600_000) < 5000)
  await fails(Sandbox.getInfo('sb-aaaaaaaaaa'), SandboxNotFoundError)
})
await check('Sandbox.list', async () => {
  assert.ok((await ids(Sandbox.list())).includes(box.sandboxId))
})
await check('Sandbox.list (filters, paging, order)', async () => {
  const more = [box]
  for (let i = 0; i < 2; i++) more.push(await create({ metadata: { run, number: String(i) }, timeoutMs: 60_000 }))
  const all = more.map((each) => each.sandboxId)
  assert.deepEqual(await ids(Sandbox.list({ query: { metadata: { run } }, order: 'asc' })), all)
  assert.deepEqual(await ids(Sandbox.list({ query: { metadata: { run } }, order: 'desc', limit: 1 })), [...all].reverse())
  assert.deepEqual(await ids(Sandbox.list({ query: { metadata: { run, purpose: 'shared & common' } } })), [box.sandboxId])
  assert.deepEqual(await ids(Sandbox.list({ query: { metadata: { run }, state: ['paused'] } })), [])
  assert.deepEqual(await ids(Sandbox.list({ query: { metadata: { run }, template: 'base' }, order: 'asc' })), all)
  assert.deepEqual(await ids(Sandbox.list({ query: { metadata: { run }, startedAfter: new Date() } })), [])
  const { startedAt } = await more.at(-1).getInfo()
  assert.deepEqual(await ids(Sandbox.list({ query: { metadata: { run }, startedAfter: startedAt } })), all.slice(-1))
  await Promise.all(more.slice(1).map((each) => each.kill()))
})
await check('sandbox.isRunning', async () => assert.equal(await box.isRunning(), true))
await check('sandbox.setTimeout', async () => {
  await box.setTimeout(900_000)
  const info = await box.getInfo()
  assert.ok(Math.abs(info.endAt - Date.now() - 900_000) < 5000)
  await fails(Sandbox.setTimeout('sb-aaaaaaaaaa', 1000), SandboxNotFoundError)
})
await check('sandbox.kill', async () => {
  const other = await create()
  assert.equal(await other.kill(), true)
  assert.equal(await other.kill(), false)
  assert.equal(await other.isRunning(), false)
  await fails(other.commands.run('true'), SandboxError)
})
await check('sandbox timeout', async () => {
  const other = await create({ timeoutMs: 2000 })
  await until(async () => !(await other.isRunning()), 'the sandbox ends')
})
await check('sandbox.pause and connect', async () => {
  const other = await create({ timeoutMs: 60_000 })
  const count = await other.commands.run('n=0; while :; do n=$((n+1)); echo $n > /tmp/n.new; mv /tmp/n.new /tmp/n; sleep 0.05; done', {
    background: true, timeoutMs: 0,
  })
  await until(() => other.files.exists('/tmp/n'), 'the counter starts')
  assert.equal(await other.pause(), true)
  assert.equal(await other.pause(), false)
  assert.equal((await other.getInfo()).state, 'paused')
  assert.equal(await other.isRunning(), false)
  await other.connect({ timeoutMs: 60_000 })
  assert.equal((await other.getInfo()).state, 'running')
  const before = Number(await other.files.read('/tmp/n'))
  await until(async () => Number(await other.files.read('/tmp/n')) > before, 'the counter goes on')
  assert.ok((await other.commands.list()).some((each) => each.pid === count.pid))
  await other.kill()
})
await check('sandbox.pause (keepMemory: false)', async () => {
  const other = await create({ timeoutMs: 60_000 })
  await other.files.write('kept.txt', 'on disk')
  const command = await other.commands.run('sleep 1000', { background: true, timeoutMs: 0 })
  const boot = await other.files.read('/proc/sys/kernel/random/boot_id')
  await other.pause({ keepMemory: false })
  assert.equal((await other.getInfo()).state, 'paused')
  const again = await Sandbox.connect(other.sandboxId, { timeoutMs: 60_000 })
  assert.equal(await again.files.read('kept.txt'), 'on disk')
  assert.ok(!(await again.commands.list()).some((each) => each.pid === command.pid), 'processes do not survive')
  assert.equal((await again.commands.run('sudo id -un')).stdout, 'root\n')
  assert.notEqual(await again.files.read('/proc/sys/kernel/random/boot_id'), boot)
  await again.kill()
})
await check('lifecycle onTimeout: pause', async () => {
  const other = await create({ timeoutMs: 2000, lifecycle: { onTimeout: 'pause' } })
  await other.files.write('kept.txt', 'still here')
  assert.equal((await other.getInfo()).lifecycle.onTimeout, 'pause')
  await until(async () => (await other.getInfo()).state === 'paused', 'the sandbox pauses itself')
  await fails(other.files.read('kept.txt'), TimeoutError)
  const again = await Sandbox.connect(other.sandboxId, { timeoutMs: 60_000 })
  assert.equal(await again.files.read('kept.txt'), 'still here')
  await again.kill()
})
await check('lifecycle autoResume', async () => {
  const other = await create({ timeoutMs: 60_000, lifecycle: { onTimeout: 'pause', autoResume: true } })
  await other.files.write('kept.txt', 'still here')
  await other.pause()
  assert.equal(await other.files.read('kept.txt'), 'still here')
  assert.equal((await other.getInfo()).state, 'running')
  await other.kill()
})
await check('sandbox.fork', async () => {
  await box.files.write('forked.txt', 'parent')
  const children = await box.fork({ count: 2, timeoutMs: 60_000 })
  assert.equal(children.length, 2)
  for (const child of children) {
    assert.ok(child instanceof Sandbox)
    made.push(child)
    assert.equal(await child.files.read('forked.txt'), 'parent')
    assert.equal(await child.files.read('/run/e2b/.E2B_SANDBOX_ID'), child.sandboxId)
    await child.files.write('forked.txt', child.sandboxId)
  }
  assert.equal(await box.files.read('forked.txt'), 'parent')
  assert.equal(await children[0].files.read('forked.txt'), children[0].sandboxId)
  await Promise.all(children.map((child) => child.kill()))
  await fails(Sandbox.fork('sb-aaaaaaaaaa'), SandboxNotFoundError)
})
await check('snapshots', async () => {
  await box.files.write('snapped.txt', 'as it was')
  const snapshot = await box.createSnapshot()
  const named = await box.createSnapshot({ name: `compat-${run}` })
  await box.files.write('snapped.txt', 'changed')
  const found = await ids(box.listSnapshots())
  assert.deepEqual(found.sort(), [snapshot.snapshotId, named.snapshotId].sort())
  assert.deepEqual(await ids(Sandbox.listSnapshots({ sandboxId: box.sandboxId, limit: 1 })).then((list) => list.sort()), found)
  assert.deepEqual(named.names, [`compat-${run}`])
  for (const from of [snapshot.snapshotId, `compat-${run}`]) {
    const other = await create(from, { timeoutMs: 60_000 })
    assert.equal(await other.files.read('snapped.txt'), 'as it was')
    await other.kill()
  }
  assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true)
  assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), false)
  assert.equal(await Sandbox.deleteSnapshot(named.snapshotId), true)
})
await check('sandbox.getMetrics', async () => {
  const [now] = await box.getMetrics()
  assert.ok(now.memUsed > 0 && now.memTotal >= now.memUsed && now.diskTotal > 0 && now.cpuCount >= 1)
  assert.ok(Math.abs(Date.now() - now.timestamp) < 60_000)
})
await check('sandbox.getHost', async () => {
  await box.files.write('/srv/www/index.html', 'a page from inside')
  const server = await box.commands.run('cd /srv/www && exec python3 -m http.server 8123 --bind 127.0.0.1', {
    background: true, timeoutMs: 0,
  })
  const host = box.getHost(8123)
  const get = () => new Promise((resolve, reject) => {
    const { port, hostname } = new URL(`http://${host}`)
    // Not every resolver knows *.localhost; browsers and curl do.
    const options = { host: '127.0.0.1', port, headers: { Host: `${hostname}:${port}`, Authorization: 'Bearer the-programs-own' } }
    http.get(options, (answer) => {
      let text = ''
      answer.on('data', (piece) => (text += piece)).on('end', () => resolve(answer.statusCode === 200 && text))
    }).on('error', reject)
  })
  assert.equal(await until(get, 'the server inside answers'), 'a page from inside')
  await server.kill()
})
await check('network.allowPublicTraffic: false', async () => {
  const other = await create({ timeoutMs: 60_000, network: { allowPublicTraffic: false } })
  await other.commands.run('python3 -m http.server 8124 --bind 127.0.0.1', { background: true, timeoutMs: 0 })
  const { port, hostname } = new URL(`http://${other.getHost(8124)}`)
  const get = (headers) => new Promise((resolve, reject) => {
    http.get({ host: '127.0.0.1', port, headers: { Host: `${hostname}:${port}`, ...headers } }, (answer) => {
      answer.resume()
      resolve(answer.statusCode)
    }).on('error', reject)
  })
  assert.equal(await get({}), 403)
  assert.equal(await get({ 'e2b-traffic-access-token': 'wrong' }), 403)
  await until(async () => (await get({ 'e2b-traffic-access-token': other.trafficAccessToken })) === 200, 'the token opens it')
  await other.kill()
})
await check('sandbox.getHost (closed port, killed sandbox)', async () => {
  const other = await create({ timeoutMs: 60_000 })
  const { port, hostname } = new URL(`http://${other.getHost(8130)}`)
  const get = (host = hostname, more = {}) => new Promise((resolve, reject) => {
    http.get({ host: '127.0.0.1', port, headers: { Host: `${host}:${port}`, ...more } }, (answer) => {
      let text = ''
      const json = answer.headers['content-type'] === 'application/json'
      answer.on('data', (piece) => (text += piece)).on('end', () => resolve([answer.statusCode, json ? JSON.parse(text) : text]))
    }).on('error', reject)
  })
  const [sandboxId] = other.sandboxId.split('-')
  const browser = { 'User-Agent': 'Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0 Safari/537.36' }
  assert.deepEqual(await get(), [502, { sandboxId, port: 8130, code: 502, message: 'The sandbox is running but port is not open' }])
  const [status, page] = await get(hostname, browser)
  assert.equal(status, 502)
  assert.match(page, /^<html.*<title>Closed Port Error<\/title>.*no service running on port 8130.*<\/html>$/s)
  assert.ok(page.includes(sandboxId))
  await other.kill()
  assert.deepEqual(await get(), [502, { sandboxId, code: 502, message: 'The sandbox was not found' }])
  assert.match((await get(hostname, browser))[1], /<title>Sandbox Not Found<\/title>/)
  const unknown = 'sbaaaaaaaaaa'
  assert.deepEqual(await get(hostname.replace(sandboxId, unknown)), [502, { sandboxId: unknown, code: 502, message: 'The sandbox was not found' }])
})
if (label !== 'oldest') { // the oldest client leaves the option out
  await check('network.httpsPorts', async () => {
    const other = await create({ timeoutMs: 60_000, network: { httpsPorts: [8443] } })
    await other.commands.run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -keyout key.pem -out cert.pem -subj /CN=inside 2>/dev/null")
    await other.files.write('tls.py', [
      'import http.server, ssl', 'class Echo(http.server.BaseHTTPRequestHandler):', '    def do_POST(self):',
      '        body = self.rfile.read(int(self.headers["Content-Length"]))', '        self.send_response(200); self.end_headers(); self.wfile.write(body * 3)',
      'server = http.server.ThreadingHTTPServer(("127.0.0.1", 8443), Echo)', 'context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)',
      'context.load_cert_chain("cert.pem", "key.pem")', 'server.socket = context.wrap_socket(server.socket, server_side=True)', 'server.serve_forever()'].join('\n'))
    await other.commands.run('python3 tls.py', { background: true, timeoutMs: 0 })
    const { port, hostname } = new URL(`http://${other.getHost(8443)}`)
    const body = 'x'.repeat(300_000)
    const post = () => new Promise((resolve, reject) => {
      http.request({ host: '127.0.0.1', port, method: 'POST', headers: { Host: `${hostname}:${port}`, 'Content-Length': body.length } }, (answer) => {
        let text = ''
        answer.on('data', (piece) => (text += piece)).on('end', () => resolve(answer.statusCode === 200 && text))
      }).on('error', reject).end(body)
    })
    await until(async () => (await post()) === body.repeat(3), 'the program behind TLS answers')
    assert.deepEqual((await other.getInfo()).network.httpsPorts, [8443])
    await other.kill()
  })
}
await check('network.maskRequestHost', async () => {
  const network = { maskRequestHost: 'masked:${PORT}' }
  const other = await create({ timeoutMs: 60_000, network })
  await other.files.write('echo.py', [
    'import http.server', 'class Echo(http.server.BaseHTTPRequestHandler):', '    def do_GET(self):',
    '        self.send_response(200); self.end_headers(); self.wfile.write(self.headers["Host"].encode())',
    'http.server.HTTPServer(("127.0.0.1", 8131), Echo).serve_forever()'].join('\n'))
  await other.commands.run('python3 echo.py', { background: true, timeoutMs: 0 })
  const { port, hostname } = new URL(`http://${other.getHost(8131)}`)
  const get = () => new Promise((resolve, reject) => {
    http.get({ host: '127.0.0.1', port, headers: { Host: `${hostname}:${port}` } }, (answer) => {
      let text = ''
      answer.on('data', (piece) => (text += piece)).on('end', () => resolve(answer.statusCode === 200 && text))
    }).on('error', reject)
  })
  assert.equal(await until(get, 'the server inside answers'), 'masked:8131')
  assert.equal((await other.getInfo()).network.maskRequestHost, network.maskRequestHost)
  await other.kill()
})
await check('Sandbox.create (mcp)', async () => {
  await fails(Sandbox.create('base', { timeoutMs: 60_000, mcp: { duckduckgo: {} } }), Error, 'mcp-gateway') // which base does not have
  await fails(Sandbox.create({ mcp: { duckduckgo: {} } }), SandboxError, 'mcp-gateway')
})
await check('a command whose sandbox is killed', async () => {
  const other = await create({ timeoutMs: 60_000 })
  const command = await other.commands.run('sleep 1000', { background: true, timeoutMs: 0 })
  const ended = fails(command.wait(), SandboxError, 'was killed or reached its end of life')
  await other.kill()
  await ended
  await fails(other.commands.run('true'), SandboxError)
})
await check('allowInternetAccess', async () => {
  assert.equal((await box.getInfo()).allowInternetAccess, true)
  const other = await create({ allowInternetAccess: false, timeoutMs: 60_000 })
  assert.equal((await other.getInfo()).allowInternetAccess, false)
  const tried = await other.commands.run('timeout 5 bash -c "</dev/tcp/1.1.1.1/80" || echo none')
  assert.match(tried.stdout, /none/)
  await other.kill()
})
await check('network.allowOut, denyOut', async () => {
  const network = { allowOut: ['example.com', '8.8.8.8'], denyOut: [e2b.ALL_TRAFFIC] }
  const other = await create({ network, timeoutMs: 60_000 })
  const info = await other.getInfo()
  assert.deepEqual(info.network.allowOut.sort(), ['8.8.8.8', 'example.com'])
  assert.deepEqual(info.network.denyOut, [e2b.ALL_TRAFFIC])
  await other.kill()
})
await check('network.denyOut of single ranges', async () => {
  const other = await create({ network: { allowOut: ['8.8.8.8'], denyOut: ['8.8.8.0/24', '1.1.1.1'] }, timeoutMs: 60_000 })
  const { network } = await other.getInfo()
  assert.deepEqual([network.allowOut, network.denyOut], [['8.8.8.8'], ['8.8.8.0/24', '1.1.1.1']])
  await other.kill()
  await fails(Sandbox.create({ network: { denyOut: ['example.com'] } }), SandboxError, '400')
  await fails(Sandbox.create({ network: { allowOut: ['example.com'], denyOut: ['8.8.8.0/24'] } }), SandboxError, '501')
})
await check('network.rules', async () => {
  const rules = { 'example.com': [{ transform: { headers: { 'X-Test': 'hidden value' } } }] }
  const other = await create({ network: { rules }, timeoutMs: 60_000 })
  const info = await other.getInfo()
  assert.deepEqual(info.network.rules, { 'example.com': [{ transform: { headers: { 'X-Test': '***' } } }] })
  assert.equal((await other.commands.run('env')).stdout.includes('hidden value'), false)
  await other.kill()
  const wrong = (rules, more) => Sandbox.create({ network: { rules, ...more } })
  await fails(wrong({ 'example.com': [{ transform: { headers: { A: Secret.fill('no-such-secret') } } }] }), SandboxError, 'no-such-secret')
  await fails(wrong({ 'example.com': [{ transform: { headers: { Host: 'x' } } }] }), SandboxError, '400')
  await fails(wrong({ '*': [{ transform: { headers: { A: 'x' } } }] }), SandboxError, '400')
  await fails(wrong(rules, { allowOut: ['example.org'], denyOut: [e2b.ALL_TRAFFIC] }), SandboxError, 'example.com')
  await fails(wrong({ 'example.com': [{ transform: { headers: { A: '${e2b.identity.tokens.aws}' } } }] }), SandboxError, '501')
})
await check('sandbox.updateNetwork', async () => {
  const other = await create({ timeoutMs: 60_000 })
  await other.updateNetwork({ allowOut: ['example.org'], denyOut: [e2b.ALL_TRAFFIC] })
  assert.deepEqual((await other.getInfo()).network.allowOut, ['example.org'])
  await other.updateNetwork({ allowInternetAccess: false })
  assert.equal((await other.getInfo()).allowInternetAccess, false)
  await other.kill()
  await fails(Sandbox.updateNetwork('sb-aaaaaaaaaa', {}), SandboxNotFoundError)
})
await check('rate limit', async () => {
  if (!process.env.HUSK_COMPAT_LIMITED_KEY) throw new Skip('no key with a quota was given')
  const apiKey = process.env.HUSK_COMPAT_LIMITED_KEY
  const first = await Sandbox.create({ apiKey, timeoutMs: 60_000 })
  try {
    await fails(Sandbox.create({ apiKey }), RateLimitError)
    await fails(Sandbox.getInfo(box.sandboxId, { apiKey }), SandboxNotFoundError)
    await fails(Sandbox.connect(box.sandboxId, { apiKey }), SandboxNotFoundError)
  } finally {
    await first.kill()
  }
})

// ---- commands

await check('commands.run', async () => {
  const done = await box.commands.run('echo out; echo err >&2')
  assert.deepEqual([done.exitCode, done.stdout, done.stderr], [0, 'out\n', 'err\n'])
})
await check('commands.run (exit code)', async () => {
  const error = await fails(box.commands.run('echo said; exit 7'), CommandExitError)
  assert.deepEqual([error.exitCode, error.stdout, error.error], [7, 'said\n', 'exit status 7'])
})
await check('commands.run (callbacks)', async () => {
  const out = [], err = []
  await box.commands.run('for i in 1 2 3; do echo $i; echo e$i >&2; sleep 0.1; done', {
    onStdout: (text) => out.push(text), onStderr: (text) => err.push(text),
  })
  assert.deepEqual([out.join(''), err.join('')], ['1\n2\n3\n', 'e1\ne2\ne3\n'])
  assert.ok(out.length > 1, 'output came in one piece')
})
await check('commands.run (user)', async () => {
  assert.equal((await box.commands.run('id -un; pwd; echo $HOME')).stdout, 'user\n/home/user\n/home/user\n')
  assert.equal((await box.commands.run('id -un; pwd', { user: 'root' })).stdout, 'root\n/root\n')
  await fails(box.commands.run('true', { user: 'nobody-of-that-name' }), AuthenticationError)
})
await check('commands.run (sudo)', async () => {
  assert.equal((await box.commands.run('sudo id -un')).stdout, 'root\n')
})
await check('commands.run (cwd, envs)', async () => {
  const done = await box.commands.run('pwd; echo "$ONE-$GREETING"', { cwd: '/tmp', envs: { ONE: "it's 1" } })
  assert.equal(done.stdout, "/tmp\nit's 1-hello\n")
  await fails(box.commands.run('true', { cwd: '/nowhere' }), InvalidArgumentError)
  const told = await box.commands.run('echo $E2B_SANDBOX $E2B_SANDBOX_ID $E2B_TEMPLATE_ID')
  assert.equal(told.stdout, `true ${box.sandboxId} ${(await box.getInfo()).templateId}\n`)
  assert.equal((await box.commands.run('echo $E2B_SANDBOX', { envs: { E2B_SANDBOX: 'mine' } })).stdout, 'mine\n')
  const files = await box.commands.run('cd /run/e2b; echo $(cat .E2B_SANDBOX) $(cat .E2B_SANDBOX_ID) $(cat .E2B_TEMPLATE_ID)')
  assert.equal(files.stdout, told.stdout)
})
await check('commands.run (timeout)', async () => {
  await fails(box.commands.run('sleep 30; touch /tmp/late', { timeoutMs: 1000 }), TimeoutError)
  await until(async () => !(await box.commands.run('pgrep -x sleep || true')).stdout, 'the command is killed')
})
await check('commands.run (large output)', async () => {
  const done = await box.commands.run('head -c 20000000 /dev/zero | tr "\\0" x', { timeoutMs: 120_000 })
  assert.equal(done.stdout.length, 20_000_000)
})
await check('commands.run (bytes that are not UTF-8)', async () => {
  assert.equal((await box.commands.run("printf '\\xc3\\xa4\\xe2\\x82\\xac \\xff'")).stdout, 'ä€ \ufffd')
})
await check('commands.run (background)', async () => {
  const handle = await box.commands.run('sleep 0.3; echo done', { background: true })
  assert.ok(handle.pid > 0)
  assert.equal((await handle.wait()).stdout, 'done\n')
})
await check('commands.run (many at once)', async () => {
  const all = await Promise.all(Array.from({ length: 20 }, (_, i) => box.commands.run(`echo ${i}`)))
  assert.deepEqual(all.map((done) => done.stdout), Array.from({ length: 20 }, (_, i) => `${i}\n`))
})
await check('commands.list', async () => {
  const handle = await box.commands.run('sleep 60', { background: true, timeoutMs: 0 })
  const list = await box.commands.list()
  assert.ok(!JSON.stringify(list).includes('.husk'), JSON.stringify(list))
  const found = list.find((each) => each.pid === handle.pid)
  assert.deepEqual([found.cmd, found.args], ['/bin/bash', ['-l', '-c', 'sleep 60']])
  await handle.kill()
  assert.ok(!(await box.commands.list()).some((each) => each.pid === handle.pid))
})
await check('commands.kill', async () => {
  const handle = await box.commands.run('sleep 60', { background: true, timeoutMs: 0 })
  assert.equal(await box.commands.kill(handle.pid), true)
  const error = await fails(handle.wait(), CommandExitError)
  assert.deepEqual([error.exitCode, error.error], [-1, 'signal: killed'])
  assert.equal(await box.commands.kill(handle.pid), false)
  assert.equal(await box.commands.kill(4_000_000), false)
})
await check('commands.sendStdin and closeStdin', async () => {
  const handle = await box.commands.run('cat; echo over', { background: true, stdin: true })
  await box.commands.sendStdin(handle.pid, 'one\n')
  await handle.sendStdin('ä\n')
  await handle.closeStdin()
  assert.equal((await handle.wait()).stdout, 'one\nä\nover\n')
  await fails(box.commands.sendStdin(4_000_000, 'x'), NotFoundError)
})
await check('commands.run (no stdin)', async () => assert.equal((await box.commands.run('cat; echo over')).stdout, 'over\n'))
await check('commands.connect', async () => {
  const handle = await box.commands.run('sleep 1; echo late', { background: true })
  await handle.disconnect()
  const again = await box.commands.connect(handle.pid)
  assert.equal((await again.wait()).stdout, 'late\n')
  await fails(box.commands.connect(4_000_000), NotFoundError)
})
await check('commands.connect replays what was said meanwhile', async () => {
  const handle = await box.commands.run('echo first; sleep 0.5; echo second; sleep 1; echo third', { background: true })
  await handle.disconnect()
  await pause(1000)
  const again = await box.commands.connect(handle.pid)
  assert.equal((await again.wait()).stdout, 'first\nsecond\nthird\n')
})

// ---- terminals

await check('pty.create, sendInput, resize, kill', async () => {
  let text = ''
  const decoder = new TextDecoder()
  const pty = await box.pty.create({ cols: 90, rows: 20, timeoutMs: 0, onData: (bytes) => (text += decoder.decode(bytes)) })
  const type = (line) => box.pty.sendInput(pty.pid, new TextEncoder().encode(line + '\n'))
  await type('stty size; echo term=$TERM')
  // With the prompt: before it, bash puts back the size it has read.
  await until(() => /20 90[^]*term=xterm-256color[^$]*\$ /.test(text), 'the terminal has its size')
  await box.pty.resize(pty.pid, { cols: 120, rows: 40 })
  await type('stty size')
  await until(() => text.includes('40 120'), 'the terminal has its new size')
  assert.equal(await box.pty.kill(pty.pid), true)
  await until(async () => !(await box.pty.kill(pty.pid)), 'it is gone')
})
await check('pty.connect', async () => {
  const pty = await box.pty.create({ cols: 80, rows: 24, timeoutMs: 0, onData: () => {} })
  await pty.disconnect()
  let text = ''
  const again = await box.pty.connect(pty.pid, { onData: (bytes) => (text += new TextDecoder().decode(bytes)), timeoutMs: 0 })
  await box.pty.sendInput(pty.pid, new TextEncoder().encode('echo $((6*7)); exit 3\n'))
  const error = await fails(again.wait(), CommandExitError)
  assert.equal(error.exitCode, 3)
  assert.match(text, /42/)
})

// ---- files

await check('files.write and read', async () => {
  const info = await box.files.write('notes/hello.txt', 'hello, wörld')
  assert.deepEqual([info.name, info.path, info.type], ['hello.txt', '/home/user/notes/hello.txt', 'file'])
  assert.equal(await box.files.read('notes/hello.txt'), 'hello, wörld')
  assert.equal(await box.files.read('~/notes/hello.txt'), 'hello, wörld')
  assert.equal((await box.commands.run('stat -c %U notes notes/hello.txt')).stdout, 'user\nuser\n')
  await box.files.write('/root/mine', 'x', { user: 'root' })
  assert.equal((await box.commands.run('stat -c %U /root/mine', { user: 'root' })).stdout, 'root\n')
})
await check('files.read (formats)', async () => {
  const bytes = new Uint8Array([0, 255, 10, 13, 128])
  await box.files.write('raw', bytes.buffer)
  assert.deepEqual(await box.files.read('raw', { format: 'bytes' }), bytes)
  assert.deepEqual(new Uint8Array(await (await box.files.read('raw', { format: 'blob' })).arrayBuffer()), bytes)
  const pieces = []
  for await (const piece of await box.files.read('raw', { format: 'stream' })) pieces.push(...piece)
  assert.deepEqual(pieces, [...bytes])
  await box.files.write('empty', '')
  assert.equal(await box.files.read('empty'), '')
  assert.deepEqual(await box.files.read('empty', { format: 'bytes' }), new Uint8Array(0))
})
await check('files.write (formats)', async () => {
  await box.files.write('blob', new Blob(['a', 'b']))
  await box.files.write('stream', new Blob(['from a stream']).stream())
  await box.files.write('packed', 'gzip '.repeat(10_000), { gzip: true })
  await box.files.write('octets', 'plain', { useOctetStream: true })
  assert.equal(await box.files.read('blob'), 'ab')
  assert.equal(await box.files.read('stream'), 'from a stream')
  assert.equal(await box.files.read('packed'), 'gzip '.repeat(10_000))
  assert.equal(await box.files.read('octets'), 'plain')
})
await check('files.write (many)', async () => {
  const names = Array.from({ length: 30 }, (_, i) => `/tmp/many/d${i % 3}/file "${i}" ü.txt`)
  const infos = await box.files.write(names.map((path, i) => ({ path, data: `content ${i}` })))
  assert.deepEqual(infos.map((info) => info.path), names)
  assert.equal(await box.files.read(names[17]), 'content 17')
  assert.deepEqual(await box.files.write([]), [])
  const more = await box.files.writeFiles([{ path: '/tmp/many/a', data: 'A' }, { path: '/tmp/many/b', data: 'B' }])
  assert.equal(more.length, 2)
})
await check('files.write and read (big)', async () => {
  const size = 100 << 20, piece = new Uint8Array(1 << 20).fill(7)
  let left = size
  const stream = new ReadableStream({
    pull(controller) {
      if (left === 0) return controller.close()
      left -= piece.length
      controller.enqueue(piece)
    },
  })
  await box.files.write('/var/tmp/big', stream)
  assert.equal((await box.files.getInfo('/var/tmp/big')).size, size)
  let count = 0
  for await (const part of await box.files.read('/var/tmp/big', { format: 'stream' })) count += part.length
  assert.equal(count, size)
  await box.files.remove('/var/tmp/big')
})
await check('files errors', async () => {
  await fails(box.files.read('/no/such/file'), FileNotFoundError)
  await fails(box.files.read('/etc'), InvalidArgumentError)
  await fails(box.files.write('/etc', 'x'), InvalidArgumentError)
  await fails(box.files.list('/no/such/dir'), FileNotFoundError)
  await fails(box.files.list('/etc/passwd'), InvalidArgumentError)
  await fails(box.files.getInfo('/no/such/file'), FileNotFoundError)
  await fails(box.files.rename('/no/such/file', '/tmp/x'), FileNotFoundError)
})
await check('files.list', async () => {
  await box.commands.run('mkdir -p tree/one/two && echo abc > tree/file && echo x > tree/one/two/deep && ln -s file tree/link')
  const entries = await box.files.list('tree')
  assert.deepEqual(entries.map((each) => [each.name, each.type]), [['file', 'file'], ['link', 'file'], ['one', 'dir']])
  const file = entries[0]
  assert.deepEqual([file.path, file.size, file.permissions, file.owner, file.group, file.mode],
    ['/home/user/tree/file', 4, '-rw-r--r--', 'user', 'user', 0o644])
  assert.equal(entries[1].symlinkTarget, '/home/user/tree/file')
  const deep = (await box.files.list('tree', { depth: 3 })).map((each) => each.path)
  assert.ok(deep.includes('/home/user/tree/one/two/deep'))
})
await check('files.exists', async () => {
  assert.equal(await box.files.exists('tree/file'), true)
  assert.equal(await box.files.exists('tree/nothing'), false)
})
await check('files.getInfo', async () => {
  const info = await box.files.getInfo('tree')
  assert.deepEqual([info.name, info.type, info.path], ['tree', 'dir', '/home/user/tree'])
  assert.ok(Math.abs(Date.now() - info.modifiedTime) < 600_000)
})
await check('files.makeDir', async () => {
  assert.equal(await box.files.makeDir('made/deep'), true)
  assert.equal(await box.files.makeDir('made/deep'), false)
  assert.equal((await box.files.getInfo('made')).owner, 'user')
})
await check('files.rename', async () => {
  await box.files.write('before.txt', 'moved')
  const info = await box.files.rename('before.txt', 'new place/after.txt')
  assert.equal(info.path, '/home/user/new place/after.txt')
  assert.equal(await box.files.read('new place/after.txt'), 'moved')
  assert.equal(await box.files.exists('before.txt'), false)
})
await check('files.remove', async () => {
  await box.files.remove('new place')
  assert.equal(await box.files.exists('new place'), false)
  await box.files.remove('new place')
})
await check('files.watchDir', async () => {
  await box.files.makeDir('watched/sub')
  const events = []
  let exited = false
  const handle = await box.files.watchDir('watched', (event) => events.push(event), { onExit: () => (exited = true), timeoutMs: 0 })
  await box.files.write('watched/a.txt', '1')
  await box.commands.run('mv watched/a.txt watched/b.txt; chmod 600 watched/b.txt; rm watched/b.txt; echo x > watched/sub/deep')
  await until(() => events.some((event) => event.type === 'remove' && event.name === 'b.txt'), 'changes are told')
  assert.ok(events.some((event) => event.type === 'create' && event.name === 'b.txt'), JSON.stringify(events))
  assert.ok(events.some((event) => event.type === 'chmod' && event.name === 'b.txt'), JSON.stringify(events))
  assert.ok(!events.some((event) => event.name.includes('deep')))
  await handle.stop()
  await until(() => exited, 'the watch ends')
  await fails(box.files.watchDir('nowhere', () => {}), FileNotFoundError)
})
await check('files.watchDir (recursive, includeEntry)', async () => {
  const events = []
  const handle = await box.files.watchDir('watched', (event) => events.push(event), { recursive: true, includeEntry: true })
  await box.files.write('watched/sub/new.txt', '12345')
  const event = await until(() => events.find((each) => each.name === 'sub/new.txt' && each.entry), 'changes below are told')
  assert.equal(event.entry.path, '/home/user/watched/sub/new.txt')
  await handle.stop()
})
await check('files.write in place', async () => {
  await box.files.write('place.txt', 'a long first content')
  await box.commands.run('chmod 755 place.txt && ln place.txt hard.txt && ln -s place.txt soft.txt && mkdir -p placed')
  await box.commands.run('chown root:root /home/user/place.txt', { user: 'root' })
  const events = []
  const handle = await box.files.watchDir('/home/user', (event) => events.push(`${event.type} ${event.name}`))
  await box.files.write('soft.txt', 'second')
  await box.files.write('fresh.txt', new Uint8Array(3 << 20).buffer)
  const said = await box.commands.run("stat -c '%a %U %h' place.txt; cat hard.txt; test -L soft.txt && echo link")
  assert.equal(said.stdout, '755 root 2\nsecondlink\n')
  await box.files.write('last.txt', 'x')
  await until(() => events.includes('write last.txt'), 'the last write is told')
  assert.deepEqual(events.slice(0, 4), ['write place.txt', 'create fresh.txt', 'chmod fresh.txt', 'write fresh.txt'])
  await handle.stop()
  await box.files.remove('place.txt')
})
await check('files.list (links)', async () => {
  await box.commands.run('mkdir -p links && ln -sf ../place.txt links/up && ln -sf /etc/hostname links/absolute && ln -sf nowhere links/dangling')
  const found = await box.files.list('links')
  assert.deepEqual(found.map((each) => [each.name, each.symlinkTarget]), [
    ['absolute', '/etc/hostname'], ['dangling', '/home/user/links/nowhere'], ['up', '/home/user/place.txt']])
})
await check('downloadUrl and uploadUrl', async () => {
  await box.files.write('signed.txt', 'signed content')
  const down = await fetch(await box.downloadUrl('signed.txt'))
  assert.deepEqual([down.status, await down.text()], [200, 'signed content'])
  const form = new FormData()
  form.append('file', new Blob(['uploaded']), 'ignored.txt')
  const up = await fetch(await box.uploadUrl('up.txt', { useSignatureExpiration: 60 }), { method: 'POST', body: form })
  assert.equal(up.status, 200)
  assert.equal(await box.files.read('up.txt'), 'uploaded')
  const url = new URL(await box.downloadUrl('signed.txt'))
  url.searchParams.set('path', '/etc/shadow')
  assert.equal((await fetch(url)).status, 401)
  const late = await fetch(await box.downloadUrl('signed.txt', { useSignatureExpiration: -10 }))
  assert.deepEqual([late.status, await late.json()], [401, { code: 401, message: 'signature is already expired' }])
})
await check('files.write (metadata)', async () => {
  const info = await box.files.write('tagged.txt', 'x', { metadata: { Author: 'somebody', note: 'a = b, c' } })
  const metadata = { author: 'somebody', note: 'a = b, c' }
  assert.deepEqual(info.metadata, metadata)
  assert.deepEqual((await box.files.getInfo('tagged.txt')).metadata, metadata)
  assert.deepEqual((await box.files.list('/home/user')).find((each) => each.name === 'tagged.txt').metadata, metadata)
  const renamed = await box.files.rename('tagged.txt', 'renamed.txt')
  assert.deepEqual(renamed.metadata, metadata)
  const many = await box.files.write([{ path: 'm1', data: '1' }, { path: 'm2', data: '2' }], { metadata: { kind: 'many' } })
  assert.deepEqual(many.map((each) => each.metadata), [{ kind: 'many' }, { kind: 'many' }])
  await box.files.write('renamed.txt', 'y')
  assert.equal((await box.files.getInfo('renamed.txt')).metadata, undefined)
  await fails(box.files.write('x', 'y', { metadata: { big: 'x'.repeat(5000) } }), InvalidArgumentError)
})

// ---- git

await check('git (init, config, add, commit, status, branches, log)', async () => {
  const repo = '/home/user/repo'
  await box.git.init(repo, { initialBranch: 'main' })
  await box.git.configureUser('Tester', 'tester@example.org')
  await box.files.write(`${repo}/a.txt`, 'a')
  assert.equal((await box.git.status(repo)).fileStatus.length, 1)
  await box.git.add(repo)
  await box.git.commit(repo, 'first')
  assert.equal((await box.git.status(repo)).isClean, true)
  await box.git.createBranch(repo, 'work')
  const branches = await box.git.branches(repo)
  assert.equal(branches.currentBranch, 'work')
  await box.git.checkoutBranch(repo, 'main')
  await box.git.clone(repo, { path: '/home/user/copy' })
  assert.equal(await box.files.read('copy/a.txt'), 'a')
})

// ---- templates, volumes, secrets

await check('Template.exists', async () => {
  assert.equal(await Template.exists('base'), true)
  assert.equal(await Template.exists('no-such-template'), false)
})
await check('Template.build (fromTemplate, copy, runCmd, setEnvs, setWorkdir, setUser, start and ready commands)', async () => {
  const context = fs.mkdtempSync(path.join(os.tmpdir(), 'compat-'))
  fs.mkdirSync(path.join(context, 'app/static'), { recursive: true })
  fs.writeFileSync(path.join(context, 'app/static/index.html'), 'built page')
  fs.writeFileSync(path.join(context, 'note.txt'), 'a note')
  const logs = []
  const template = Template({ fileContextPath: context })
    .fromTemplate('base')
    .setEnvs({ COLOR: "it's blue" })
    .setWorkdir('/opt/app')
    .copy('app', '/opt/app')
    .copy('note.txt', '/opt/notes/')
    .runCmd('echo made by $(id -un) in $(pwd) > made.txt')
    .runCmd('echo as-root > /etc/compat', { user: 'root' })
    .setStartCmd('python3 -m http.server 8125 --bind 127.0.0.1 --directory /opt/app/static', e2b.waitForURL('http://127.0.0.1:8125'))
  const built = await Template.build(template, `compat-build-${run}`, { memoryMB: 512, onBuildLogs: (entry) => logs.push(entry.message) })
  fs.rmSync(context, { recursive: true })
  assert.ok(logs.some((line) => line.includes('echo made by')), 'the log has the steps')
  assert.match(built.buildId, /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/)
  assert.deepEqual((await Template.getTags(`compat-build-${run}`)).map((each) => each.buildId), [built.buildId])
  assert.equal(await Template.exists(`compat-build-${run}`), true)
  assert.deepEqual((await Template.getTags(`compat-build-${run}`)).map((each) => each.tag), ['default'])
  for (const name of [`compat-build-${run}`, built.templateId]) {
    const other = await create(name, { timeoutMs: 60_000 })
    const said = await other.commands.run('pwd; cat made.txt /opt/notes/note.txt /etc/compat; echo " $COLOR"; curl -s http://127.0.0.1:8125/')
    assert.equal(said.stdout, "/opt/app\nmade by user in /opt/app\na noteas-root\n it's blue\nbuilt page")
    assert.equal((await other.getInfo()).memoryMB, 512)
    assert.equal((await other.getInfo()).templateId, built.templateId)
    const listed = await Sandbox.list({ query: { template: built.templateId } }).nextItems()
    assert.deepEqual(listed.map((each) => each.sandboxId), [other.sandboxId])
    await other.kill()
  }
})
await check('Template.build (copy of patterns)', async () => {
  const context = fs.mkdtempSync(path.join(os.tmpdir(), 'compat-'))
  fs.mkdirSync(path.join(context, 'folder/sub'), { recursive: true })
  for (const name of ['folder/a.txt', 'folder/b.md', 'folder/sub/c.txt']) fs.writeFileSync(path.join(context, name), name)
  const name = `compat-copy-${run}`
  const template = Template({ fileContextPath: context })
    .fromTemplate('base').copy('folder/*', 'folder').copy('folder/*.txt', '/opt/texts').copy('folder/a.txt', 'deep/down.txt')
  await Template.build(template, name)
  fs.rmSync(context, { recursive: true })
  const other = await create(name, { timeoutMs: 60_000 })
  const said = await other.commands.run("find folder deep /opt/texts -printf '%u %p\\n' | sort")
  assert.equal(said.stdout, ['/opt/texts', '/opt/texts/a.txt', 'deep', 'deep/down.txt', 'folder', 'folder/a.txt', 'folder/b.md',
    'folder/sub', 'folder/sub/c.txt'].map((each) => `user ${each}\n`).join(''))
  await other.kill()
  await Sandbox.deleteSnapshot(name)
})
await check('machines that build are not listed', async () => {
  const name = `compat-hidden-${run}`
  const before = (await Sandbox.list().nextItems()).length
  const built = await Template.buildInBackground(Template().fromTemplate('base').runCmd('sleep 3'), name)
  let most = 0
  await until(async () => {
    most = Math.max(most, (await Sandbox.list().nextItems()).length)
    return (await Template.getBuildStatus(built, { logsOffset: 0 })).status === 'ready'
  }, 'the build is ready', 60)
  assert.ok(most <= before, `${most} sandboxes instead of ${before}`)
  assert.equal(await Sandbox.deleteSnapshot(name), true)
})
await check('Template.build (a step that fails)', async () => {
  const template = Template().fromTemplate('base').runCmd('echo before; exit 3')
  const error = await fails(Template.build(template, `compat-broken-${run}`), BuildError, 'exit status 3')
  assert.ok(error)
  assert.equal(await Template.exists(`compat-broken-${run}`), false)
  await fails(Template.build(Template().fromTemplate('no-such-one').runCmd('true'), `compat-broken-${run}`), BuildError, "template 'no-such-one' not found")
})
await check('Template.build (tags)', async () => {
  const template = Template().fromTemplate(`compat-build-${run}`).runCmd('pwd > inherited').setUser('root').runCmd('id -un > /etc/second')
  await Template.build(template, `compat-build-${run}:v2`)
  const other = await create(`compat-build-${run}:v2`, { timeoutMs: 60_000 })
  assert.equal((await other.commands.run('id -un; cat /etc/second inherited; pwd')).stdout, 'root\nroot\n/opt/app\n/opt/app\n')
  await other.kill()
  assert.equal((await Template.getTags(`compat-build-${run}`)).length, 2)
  await Template.removeTags(`compat-build-${run}`, ['v2', 'default'])
  assert.equal(await Template.exists(`compat-build-${run}`), false)
})
await check('Template.buildInBackground, getBuildStatus', async () => {
  const template = Template().fromBaseImage().runCmd('sleep 1; echo done')
  const built = await Template.buildInBackground(template, `compat-later-${run}`)
  await until(async () => (await Template.getBuildStatus(built, { logsOffset: 0 })).status === 'ready', 'the build is ready', 60)
  assert.equal(await Sandbox.deleteSnapshot(`compat-later-${run}`), true)
})
await check('Template.build (fromImage)', async () => {
  const image = process.env.HUSK_COMPAT_IMAGE
  if (!image) throw new Skip('no image was put into the folder of images')
  const logs = []
  const template = Template().fromImage(image).runCmd('echo $FROM_IMAGE in $(cat /etc/image) > made.txt')
  await Template.build(template, `compat-image-${run}`, { onBuildLogs: (entry) => logs.push(entry.message) })
  const other = await create(`compat-image-${run}`, { timeoutMs: 60_000 })
  const said = await other.commands.run('id -un; cat made.txt; echo $FROM_IMAGE')
  assert.equal(said.stdout, 'user\na variable in an image\na variable\n')
  await other.kill()
  assert.equal(await Sandbox.deleteSnapshot(`compat-image-${run}`), true)
})
await check('Template.build (fromImage that is not here)', async () => {
  const error = await fails(Template.build(Template().fromImage('ubuntu:22.04'), `compat-image-${run}`), BuildError, '501')
  assert.match(error.message, /ubuntu:22.04.*husk template build ubuntu-22.04 --image/)
}, '501')
await check('Template.assignTags, removeTags, getTags', async () => {
  const name = `compat-tags-${run}`
  const tags = async () => Object.fromEntries((await Template.getTags(name)).map((each) => [each.tag, each.buildId]))
  const content = async (from) => {
    const other = await create(from, { timeoutMs: 60_000 })
    const text = await other.files.read('/home/user/which')
    await other.kill()
    return text
  }
  await Template.build(Template().fromTemplate('base').runCmd('printf one > which'), name, { tags: ['v1', 'stable'] })
  const first = await tags()
  assert.deepEqual(Object.keys(first).sort(), ['stable', 'v1'])
  assert.equal(first.v1, first.stable)
  await Template.build(Template().fromTemplate('base').runCmd('printf two > which'), `${name}:v2`)
  const assigned = await Template.assignTags(`${name}:v2`, ['stable', 'latest'])
  assert.deepEqual(assigned.tags, ['stable', 'latest'])
  const second = await tags()
  assert.deepEqual(second, { v1: first.v1, v2: assigned.buildId, stable: assigned.buildId, latest: assigned.buildId })
  assert.deepEqual([await content(`${name}:v1`), await content(`${name}:stable`)], ['one', 'two'])
  await Template.removeTags(name, ['v2', 'v1'])
  assert.deepEqual(Object.keys(await tags()).sort(), ['latest', 'stable'])
  assert.equal(await content(`${name}:latest`), 'two')
  assert.equal(await Template.exists(`${name}:v1`), false)
  await fails(Template.assignTags(`${name}:nothing`, 'x'), TemplateError, 'not found')
  await Template.removeTags(name, ['latest', 'stable'])
  await fails(Template.getTags(name), TemplateError, 'not found')
})
await check('Secret.create, getInfo, exists, update, list, destroy', async () => {
  const [one, two] = [`Compat-One-${run}`, `compat-two-${run}`]
  const made = await Secret.create(one, 'a value nobody sees', { metadata: { team: 'a' } })
  assert.match(made.secretId, /^sec_/)
  assert.deepEqual([made.name, made.version, made.metadata], [one.toLowerCase(), 1, { team: 'a' }])
  await fails(Secret.create(one.toUpperCase(), 'x'), SecretError, '409')
  await Secret.create(two, 'another')
  for (const name of [one, made.secretId]) assert.equal((await Secret.getInfo(name)).secretId, made.secretId)
  const changed = await Secret.update(one, 'a new value')
  assert.deepEqual([changed.version, changed.metadata], [2, { team: 'a' }])
  assert.ok(changed.updatedAt >= changed.createdAt)
  assert.deepEqual((await Secret.update(one, 'newer', { metadata: { team: 'b' } })).metadata, { team: 'b' })
  const found = []
  for (const pages = Secret.list({ limit: 1 }); pages.hasNext;) found.push(...(await pages.nextItems()))
  assert.deepEqual(found.map((each) => each.name).sort(), [one.toLowerCase(), two])
  assert.equal(JSON.stringify(found).includes('newer'), false)
  await fails(Secret.create('', 'x'), SecretError, '400')
  await fails(Secret.create('sec_x', 'x'), SecretError, '400')
  await fails(Secret.create(`compat-lines-${run}`, 'two\nlines'), SecretError, '400')
  for (const name of [one, two]) assert.equal(await Secret.destroy(name), true)
  assert.equal(await Secret.destroy(one), false)
  assert.equal(await Secret.exists(one), false)
  await fails(Secret.update(one, 'x'), e2b.SecretNotFoundError)
})

// ---- volumes

const volumeName = `compat-${run}`
let volume
await check('Volume.create, list, getInfo, connect', async () => {
  volume = await Volume.create(volumeName)
  assert.equal(volume.name, volumeName)
  assert.ok((await Volume.list()).some((each) => each.volumeId === volume.volumeId && each.name === volumeName))
  assert.equal((await Volume.getInfo(volume.volumeId)).name, volumeName)
  await fails(Volume.getInfo('vol-aaaaaaaaaa'), e2b.VolumeNotFoundError, 'not found')
  await fails(Volume.create(volumeName), VolumeError, 'already')
  await fails(Volume.create('no/name'), VolumeError, 'not valid')
  volume = await Volume.connect(volume.volumeId)
})
await check('Volume: writeFile, readFile', async () => {
  const written = await volume.writeFile('/notes/a.txt', 'hello', { mode: 0o600, uid: 1000, gid: 1000 })
  assert.deepEqual([written.name, written.path, written.type, written.size], ['a.txt', '/notes/a.txt', 'file', 5])
  assert.deepEqual([written.mode, written.uid, written.gid], [0o600, 1000, 1000])
  assert.ok(Math.abs(written.mtime - Date.now()) < 600_000)
  assert.equal(await volume.readFile('/notes/a.txt'), 'hello')
  assert.equal(new TextDecoder().decode(await volume.readFile('/notes/a.txt', { format: 'bytes' })), 'hello')
  assert.equal(await (await volume.readFile('/notes/a.txt', { format: 'blob' })).text(), 'hello')
  let streamed = ''
  for await (const piece of await volume.readFile('/notes/a.txt', { format: 'stream' })) streamed += new TextDecoder().decode(piece)
  assert.equal(streamed, 'hello')
  const large = new Uint8Array(3 << 20).map((_, i) => i * 7)
  assert.equal((await volume.writeFile('/large', large.buffer)).size, large.length)
  assert.deepEqual(await volume.readFile('/large', { format: 'bytes' }), large)
  await fails(volume.writeFile('/large', 'x', { force: false }), VolumeError, '')
  assert.equal((await volume.getInfo('/large')).size, large.length)
  await volume.writeFile('/fresh', 'x', { force: false })
  await volume.writeFile('/fresh', 'yy', { force: true })
  assert.equal(await volume.readFile('/fresh'), 'yy')
  await volume.remove('/fresh')
  await volume.writeFile('/empty', '')
  assert.equal(await volume.readFile('/empty'), '')
  await fails(volume.readFile('/nothing'), e2b.VolumePathNotFoundError, 'not found')
})
await check('Volume: makeDir, list, getInfo, exists, updateMetadata, remove', async () => {
  assert.equal((await volume.makeDir('/d', { mode: 0o700 })).mode, 0o700)
  await fails(volume.makeDir('/x/y'), e2b.VolumePathNotFoundError, 'not found')
  assert.equal((await volume.makeDir('/x/y', { force: true })).type, 'directory')
  assert.deepEqual((await volume.list('/')).map((each) => each.name), ['d', 'empty', 'large', 'notes', 'x'])
  assert.ok((await volume.list('/', { depth: 2 })).some((each) => each.path === '/notes/a.txt'))
  const changed = await volume.updateMetadata('/notes/a.txt', { mode: 0o644, uid: 0, gid: 0 })
  assert.deepEqual([changed.mode, changed.uid, changed.gid], [0o644, 0, 0])
  assert.equal((await volume.getInfo('/notes')).type, 'directory')
  await volume.remove('/x')
  assert.equal(await volume.exists('/x'), false)
  assert.equal(await volume.exists('/notes/a.txt'), true)
  await fails(volume.getInfo('/../etc/passwd'), VolumeError, '')
  const other = new Volume(volume.volumeId, volume.name, 'not-its-token')
  await fails(other.list('/'), AuthenticationError, '')
})
await check('Sandbox.create (volumeMounts)', async () => {
  const one = await Sandbox.create('base', { volumeMounts: { '/mnt/data': volume } })
  made.push(one)
  const two = await Sandbox.create('base', { volumeMounts: { '/other': volumeName } })
  made.push(two)
  assert.equal((await one.commands.run('cat /mnt/data/notes/a.txt')).stdout, 'hello')
  await one.commands.run('echo from one > shared.txt', { cwd: '/mnt/data' })
  assert.equal(await two.files.read('/other/shared.txt'), 'from one\n')
  assert.equal(await volume.readFile('/shared.txt'), 'from one\n')
  await volume.writeFile('/outside.txt', 'from outside')
  assert.equal(await one.files.read('/mnt/data/outside.txt'), 'from outside')
  assert.deepEqual((await one.getInfo()).volumeMounts, [{ name: volumeName, path: '/mnt/data' }])
  await fails(Sandbox.create('base', { volumeMounts: { '/mnt/x': 'no-such-volume' } }), Error, 'no-such-volume')
  await fails(Volume.destroy(volume.volumeId), VolumeError, 'in use')
  await one.kill()
  await two.kill()
})
await check('Volume.destroy', async () => {
  assert.equal(await Volume.destroy(volume.volumeId), true)
  assert.equal(await Volume.destroy(volume.volumeId), false)
})

await Promise.allSettled(made.map((sandbox) => sandbox.kill()))
finish()
