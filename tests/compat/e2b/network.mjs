// What the unmodified `e2b` package asks of the network, where there is one to see it: run by tests/e2e/93_e2b_network.py, in
// whose test internet allowed.test, api.test and the addresses below are.
import assert from 'node:assert/strict'

import { check, fails, finish } from './kit.mjs'

const { ALL_TRAFFIC, Sandbox, SandboxError, Secret } = await import(process.env.HUSK_COMPAT_PACKAGE ?? 'e2b')
const value = process.env.HUSK_COMPAT_VALUE
const run = process.env.HUSK_COMPAT_LABEL
const get = (sandbox, path, host = 'api.test') =>
  sandbox.commands.run(`curl -sS -m 20 -o /dev/null -w '%{http_code}' -H 'X-Key: mine' https://${host}/${run}-${path}`)

await check('network.rules: a stored secret in a header', async () => {
  await Secret.create(`Key-${run}`, value)
  const rules = {
    'api.test': [{ transform: { headers: { Authorization: `Bearer ${Secret.fill(`key-${run}`)}`, 'x-key': 'ours' } } }],
    '*.wild.test': [{ transform: { headers: { 'x-wild': 'wild' } } }],
    '*.one.wild.test': [{ transform: { headers: { 'x-closer': 'closer' } } }],
  }
  const network = { rules, allowOut: ({ rules }) => [...rules.keys(), 'allowed.test'], denyOut: [ALL_TRAFFIC] }
  const sandbox = await Sandbox.create({ network, timeoutMs: 120_000 })
  assert.equal((await get(sandbox, 'one')).stdout, '200')
  assert.equal((await get(sandbox, 'wild', 'one.wild.test')).stdout, '200')
  assert.equal((await get(sandbox, 'closer', 'two.one.wild.test')).stdout, '200')
  await fails(get(sandbox, 'untrusted', 'allowed.test'), Error) // no rule, so nobody vouches for the test's own authority
  const [child] = await sandbox.fork({ timeoutMs: 60_000 })
  assert.equal((await get(child, 'fork')).stdout, '200')
  const hidden = await sandbox.commands.run(
    `grep -rlsI '${value.slice(0, 9)}' /proc/[0-9]*/environ /etc /root /tmp /home /run 2>/dev/null || true`, { user: 'root' })
  assert.equal(hidden.stdout, '')
  assert.ok(!JSON.stringify(await sandbox.getInfo()).includes(value))
  await Secret.update(`key-${run}`, `${value}-two`)
  await sandbox.updateNetwork(network)
  assert.equal((await get(sandbox, 'two')).stdout, '200')
  await sandbox.updateNetwork({ allowOut: ['api.test'], denyOut: [ALL_TRAFFIC] })
  await fails(get(sandbox, 'none'), Error)
  assert.equal(await Secret.destroy(`key-${run}`), true)
  await fails(sandbox.updateNetwork(network), SandboxError, '400')
  await Promise.all([sandbox.kill(), child.kill()])
})
await check('network.denyOut of single ranges: what is denied stays in', async () => {
  const sandbox = await Sandbox.create({ network: { denyOut: ['198.51.100.0/24', '2001:db8::/32'] }, timeoutMs: 120_000 })
  const echo = `import socket
s = socket.create_connection(('198.51.100.7', 7000), 20); s.settimeout(20); s.sendall(b'hello')
print('in' if s.recv(5) == b'hello' else 'out')`
  const reach = async () => (await sandbox.commands.run(`python3 -c "${echo}" 2>/dev/null || echo out`)).stdout
  assert.equal(await reach(), 'out\n')
  const other = await sandbox.commands.run("curl -sS -m 20 -o /dev/null -w '%{http_code}' http://allowed.test/")
  assert.equal(other.stdout, '200')
  await sandbox.updateNetwork({ allowOut: ['198.51.100.7'], denyOut: ['198.51.100.0/24'] })
  assert.equal(await reach(), 'in\n')
  await sandbox.kill()
})
finish()
