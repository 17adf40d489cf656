// The unmodified `@e2b/desktop` package against a Husk server and its template 'desktop'. Prints "done" at its end.
import assert from 'node:assert/strict'

import { Sandbox } from '@e2b/desktop'

const png = (bytes) => Buffer.from(bytes).subarray(1, 4).toString() === 'PNG'
async function until(what, condition) {
  for (let i = 0; i < 300; i++) {
    const value = await condition().catch(() => null)
    if (value) return value
    await new Promise((resolve) => setTimeout(resolve, 200))
  }
  throw new Error(`waited in vain: ${what}`)
}

const desktop = await Sandbox.create('desktop', { resolution: [1024, 768], timeoutMs: 300_000 })
try {
  assert.deepEqual(await desktop.getScreenSize(), { width: 1024, height: 768 })
  assert.ok(png(await desktop.screenshot()))
  await desktop.moveMouse(100, 200)
  assert.deepEqual(await desktop.getCursorPosition(), { x: 100, y: 200 })
  await desktop.leftClick(300, 300)
  await desktop.doubleClick(310, 300)
  await desktop.scroll('down', 2)
  await desktop.drag([400, 400], [500, 500])
  await desktop.launch('xfce4-terminal')
  const windows = await until('the terminal', async () => (await desktop.getApplicationWindows('xfce4-terminal')).filter(Boolean).length)
  assert.ok(windows)
  await until('the title', async () => /Terminal|user/.test(await desktop.getWindowTitle(await desktop.getCurrentWindowId())))
  await desktop.write('echo typed >/tmp/typed')
  await desktop.press('enter')
  assert.equal((await until('the command', () => desktop.files.read('/tmp/typed'))).trim(), 'typed')
  await desktop.stream.start({ requireAuth: true })
  const url = new URL(desktop.stream.getUrl({ authKey: desktop.stream.getAuthKey() }))
  assert.equal(url.pathname, '/vnc.html')
  const page = await desktop.commands.run('curl -s -o /dev/null -w "%{http_code}" http://127.0.0.1:6080/vnc.html')
  assert.equal(page.stdout, '200')
  await desktop.stream.stop()
  console.log('done')
} finally {
  await desktop.kill()
}
