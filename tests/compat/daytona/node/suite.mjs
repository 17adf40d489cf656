// Daytona's SDK for Node.js, unmodified from npm, against a Husk server: a line per method, and the results as JSON in the
// file that $HUSK_COMPAT_RESULTS names. $HUSK_COMPAT_PACKAGE says which version; the oldest has fewer methods.
import assert from 'node:assert/strict'
import fs from 'node:fs'

const { Daytona, DaytonaError, DaytonaNotFoundError, Image } = await import(process.env.HUSK_COMPAT_PACKAGE ?? '@daytonaio/sdk')
const label = process.env.HUSK_COMPAT_LABEL ?? 'newest'
const oldest = label === 'oldest'
const only = process.argv[2]
const needs = process.env.HUSK_COMPAT_NEEDS // 'code', 'desktop': the checks for the template code-interpreter, desktop
const results = []
const LIMIT_MS = 180_000

const neededBy = (method) => method.includes('createLspServer') ? 'code' : method.startsWith('computerUse') ? 'desktop' : undefined

async function check(method, run, result = 'yes') {
  if ((only && !method.includes(only)) || neededBy(method) !== needs) return
  let timer
  const limit = new Promise((_, reject) => { timer = setTimeout(() => reject(new Error('it did not end in time')), LIMIT_MS) })
  try {
    await Promise.race([run(), limit])
    results.push({ method, result })
    console.log(`ok ${label} ${method}`)
  } catch (error) {
    results.push({ method, result: 'no' })
    console.log(`not ok ${label} ${method}: ${String(error?.stack ?? error).split('\n').slice(0, 4).join(' | ').slice(0, 800)}`)
    process.exitCode = 1
  } finally {
    clearTimeout(timer)
  }
}

async function fails(promise, status) {
  try {
    await promise
  } catch (error) {
    assert.ok(error instanceof DaytonaError, `expected DaytonaError, got ${error?.constructor?.name}: ${error?.message}`)
    if (status) assert.equal(error.statusCode, status, error.message)
    return error
  }
  assert.fail('expected a DaytonaError, but it succeeded')
}

async function listed(client, labels) {
  if (oldest) return (await client.list(labels)).items
  const found = []
  for await (const each of client.list({ labels })) found.push(each)
  return found
}

const daytona = new Daytona()
const snapshot = needs === 'desktop' ? 'desktop' : undefined
const sandbox = await daytona.create({ snapshot, language: 'python', labels: { suite: 'compat' }, envVars: { MOOD: 'calm' } })

await check('daytona.create', async () => {
  assert.equal(sandbox.state, 'started')
  assert.equal(sandbox.labels.suite, 'compat')
  assert.equal((await sandbox.process.executeCommand('echo $MOOD')).result, 'calm\n')
  await fails(daytona.create({ snapshot: 'there-is-none' }))
})
await check('daytona.get', async () => {
  assert.equal((await daytona.get(sandbox.id)).id, sandbox.id)
  await fails(daytona.get('sb-aaaaaaaaaa'), oldest ? undefined : 404)
})
await check('daytona.list', async () => {
  assert.ok((await listed(daytona, { suite: 'compat' })).some((each) => each.id === sandbox.id))
  assert.equal((await listed(daytona, { suite: 'none' })).length, 0)
})
await check('sandbox.stop, start, delete', async () => {
  const box = await daytona.create()
  await box.fs.uploadFile(Buffer.from('kept'), 'kept.txt')
  await box.stop()
  assert.equal(box.state, 'stopped')
  await box.start()
  assert.equal(String(await box.fs.downloadFile('kept.txt')), 'kept')
  await box.delete()
  await fails(daytona.get(box.id))
})
await check('sandbox.setLabels, setAutostopInterval, setAutoArchiveInterval, setAutoDeleteInterval', async () => {
  assert.equal((await sandbox.setLabels({ suite: 'compat', 'code-toolbox-language': 'python', tier: 'gold' })).tier, 'gold')
  await sandbox.setAutostopInterval(60)
  await sandbox.setAutoArchiveInterval(90)
  await sandbox.setAutoDeleteInterval(120)
  const again = await daytona.get(sandbox.id)
  assert.deepEqual([again.autoStopInterval, again.autoArchiveInterval, again.autoDeleteInterval], [60, 90, 120])
})
await check('process.executeCommand', async () => {
  const run = (...args) => sandbox.process.executeCommand(...args)
  assert.equal((await run('exit 7')).exitCode, 7)
  assert.equal((await run('echo one; echo two >&2')).result, 'one\ntwo\n')
  assert.equal((await run('pwd', '/tmp')).result, '/tmp\n')
  assert.equal((await run('echo $A', undefined, { A: 'given' })).result, 'given\n')
  await fails(run('sleep 60', undefined, undefined, 1))
})
await check('process.codeRun', async () => {
  assert.equal((await sandbox.process.codeRun('print(6 * 7)')).result, '42\n')
  assert.equal((await sandbox.process.codeRun("raise ValueError('no')")).exitCode, 1)
})
await check('process.createSession, executeSessionCommand, getSessionCommandLogs, listSessions, deleteSession', async () => {
  const process_ = sandbox.process
  await process_.createSession('js')
  await process_.executeSessionCommand('js', { command: 'cd /tmp; export WHO=me' })
  const done = await process_.executeSessionCommand('js', { command: 'echo $WHO in $(pwd); echo bad >&2' })
  assert.equal(done.exitCode, 0)
  assert.ok(done.output.includes('me in /tmp'))
  const later = await process_.executeSessionCommand('js', { command: 'for i in 1 2 3; do echo line $i; sleep 0.2; done; echo end >&2', runAsync: true })
  let out = '', err = ''
  await process_.getSessionCommandLogs('js', later.cmdId, (chunk) => { out += chunk }, (chunk) => { err += chunk })
  assert.equal(out, 'line 1\nline 2\nline 3\n')
  assert.equal(err, 'end\n')
  const logs = await process_.getSessionCommandLogs('js', later.cmdId)
  assert.equal(logs.stdout, 'line 1\nline 2\nline 3\n')
  assert.equal(logs.stderr, 'end\n')
  assert.equal((await process_.getSessionCommand('js', later.cmdId)).exitCode, 0)
  assert.ok((await process_.listSessions()).some((each) => each.sessionId === 'js'))
  await process_.deleteSession('js')
  await fails(process_.getSession('js'))
})
await check('process.createPty, resizePtySession, listPtySessions', async () => {
  let text = ''
  const decoder = new TextDecoder()
  const handle = await sandbox.process.createPty({ id: 'js-pty', cols: 100, rows: 30, onData: (data) => { text += decoder.decode(data) } })
  await handle.waitForConnection()
  await sandbox.process.resizePtySession('js-pty', 120, 40)
  assert.ok((await sandbox.process.listPtySessions()).some((each) => each.id === 'js-pty'))
  await handle.sendInput('stty size; exit 3\n')
  const result = await handle.wait()
  assert.equal(result.exitCode, 3)
  assert.ok(text.includes('40 120'), text)
  assert.ok(!text.includes('"control"'), text)
})
await check('codeInterpreter.runCode, contexts', async () => {
  await sandbox.codeInterpreter.runCode('x = 41')
  assert.equal((await sandbox.codeInterpreter.runCode('print(x + 1)')).stdout, '42\n')
  assert.equal((await sandbox.codeInterpreter.runCode('1 / 0')).error.name, 'ZeroDivisionError')
  const context = await sandbox.codeInterpreter.createContext()
  assert.ok((await sandbox.codeInterpreter.listContexts()).some((each) => each.id === context.id))
  await sandbox.codeInterpreter.deleteContext(context)
})
await check('fs.uploadFile, uploadFiles, downloadFile, downloadFiles', async () => {
  const big = Buffer.alloc(2 << 20, 'x')
  await sandbox.fs.uploadFile(big, 'a/b/big.bin')
  assert.ok((await sandbox.fs.downloadFile('a/b/big.bin')).equals(big))
  await sandbox.fs.uploadFiles([{ source: Buffer.from('one'), destination: 'many/1.txt' }, { source: Buffer.from('two'), destination: 'many/2 ü.txt' }])
  const found = await sandbox.fs.downloadFiles([{ source: 'many/1.txt' }, { source: 'many/2 ü.txt' }, { source: 'many/none' }])
  assert.deepEqual(found.slice(0, 2).map((each) => String(each.result)), ['one', 'two'])
  assert.ok(found[2].error)
  await fails(sandbox.fs.downloadFile('many/none'))
})
await check('fs.createFolder, listFiles, getFileDetails, moveFiles, setFilePermissions, deleteFile', async () => {
  await sandbox.fs.createFolder('tree', '755')
  await sandbox.fs.uploadFile(Buffer.from('12345'), 'tree/file.txt')
  assert.deepEqual((await sandbox.fs.listFiles('tree')).map((each) => [each.name, each.size]), [['file.txt', 5]])
  await sandbox.fs.setFilePermissions('tree/file.txt', { mode: '600' })
  assert.equal((await sandbox.fs.getFileDetails('tree/file.txt')).permissions, '0600')
  await sandbox.fs.moveFiles('tree/file.txt', 'tree/moved.txt')
  await fails(sandbox.fs.deleteFile('tree'))
  await sandbox.fs.deleteFile('tree', true)
  await fails(sandbox.fs.listFiles('tree'))
})
await check('fs.findFiles, searchFiles, replaceInFiles', async () => {
  await sandbox.fs.uploadFile(Buffer.from('alpha\nTODO: one\n'), 'code/a.py')
  assert.deepEqual((await sandbox.fs.findFiles('code', 'TODO')).map((each) => each.line), [2])
  assert.equal((await sandbox.fs.searchFiles('code', '*.py')).files.length, 1)
  assert.ok((await sandbox.fs.replaceInFiles(['code/a.py'], 'TODO', 'DONE'))[0].success)
  assert.equal(String(await sandbox.fs.downloadFile('code/a.py')), 'alpha\nDONE: one\n')
})
await check('git.clone, add, commit, status, branches', async () => {
  await sandbox.process.executeCommand('git init -q -b main origin && cd origin && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m first')
  await sandbox.git.clone('/home/daytona/origin', 'clone')
  await sandbox.fs.uploadFile(Buffer.from('x'), 'clone/file.txt')
  assert.equal((await sandbox.git.status('clone')).fileStatus[0].name, 'file.txt')
  await sandbox.git.add('clone', ['file.txt'])
  assert.equal((await sandbox.git.commit('clone', 'second', 'Ann', 'ann@example.com')).sha.length, 40)
  await sandbox.git.createBranch('clone', 'feature')
  assert.deepEqual((await sandbox.git.branches('clone')).branches.sort(), ['feature', 'main'])
})
await check('volume.create, get, list, delete', async () => {
  const volume = await daytona.volume.create(`compat-js-${label}`)
  assert.equal((await daytona.volume.get(`compat-js-${label}`)).id, volume.id)
  assert.ok((await daytona.volume.list()).some((each) => each.id === volume.id))
  await daytona.volume.delete(volume)
})
await check('resources of an image', async () => {
  const box = await daytona.create({ image: Image.base('base'), resources: { cpu: 1, memory: 1, disk: 3 } }, { timeout: 300 })
  assert.deepEqual([box.cpu, box.memory, box.disk], [1, 1, 3])
  await box.delete()
})
await check('sandbox.getPreviewLink, getUserHomeDir, getWorkDir', async () => {
  const link = await sandbox.getPreviewLink(3000)
  assert.ok(link.url.includes(`3000-${sandbox.id}`) && link.token)
  assert.equal(await sandbox.getUserHomeDir(), '/home/daytona')
  assert.equal(await sandbox.getWorkDir(), '/home/daytona')
})
if (!oldest) {
  await check('sandbox.fork, pause', async () => {
    const child = await sandbox.fork()
    await child.pause()
    assert.equal(child.state, 'paused')
    await child.delete()
  })
  await check('create from an image: Dockerfile text', async () => {
    const box = await daytona.create({ image: Image.base('base').runCommands('echo built > /opt/built') }, { timeout: 300 })
    assert.equal((await box.process.executeCommand('cat /opt/built')).result, 'built\n')
    await box.delete()
  })
  await check('create from an image: onSnapshotCreateLogs', async () => {
    const said = [], words = `said by a step at ${Date.now()}`
    const image = Image.base('base').runCommands(`echo ${words}`)
    const box = await daytona.create({ image }, { timeout: 300, onSnapshotCreateLogs: (text) => said.push(text) })
    assert.ok(said.join('\n').split('\n').includes(words), JSON.stringify(said))
    assert.equal((await box.process.executeCommand('echo works')).result, 'works\n')
    await box.delete()
  })
  await check('snapshot.create: onLogs', async () => {
    const said = [], words = `said by a step at ${Date.now()}`
    const image = Image.base('base').runCommands(`echo ${words}`)
    const made = await daytona.snapshot.create({ name: 'compat:logged-node', image }, { onLogs: (text) => said.push(text) })
    assert.equal(made.state, 'active')
    assert.ok(said.join('\n').split('\n').includes(words), JSON.stringify(said))
    await daytona.snapshot.delete(made)
    const failing = { name: 'compat:failing-node', image: Image.base('base').runCommands('exit 3') }
    await assert.rejects(daytona.snapshot.create(failing, { onLogs: () => {} }), /exit 3/)
  })
}
// What needs the template code-interpreter.
const program = "export class Greeter {\n  greet(name: string): string {\n    return 'hello ' + name\n  }\n}\n\nconst text = new Greeter().gr\n"
for (const [language, file, text, position] of [
  ['python', 'main.py', 'class Greeter:\n    def greet(self):\n        return 1\n\n\nGreeter().gr\n', { line: 5, character: 12 }],
  ['typescript', 'main.ts', program, { line: 6, character: 29 }],
  ['javascript', 'main.js', program.replaceAll(': string', ''), { line: 6, character: 29 }],
]) {
  await check(`sandbox.createLspServer: ${language}`, async () => {
    const project = `/home/daytona/lsp-js/${language}`, path = `${project}/${file}`
    await sandbox.fs.uploadFile(Buffer.from(text), path)
    const server = await sandbox.createLspServer(language, project)
    await fails(server.didOpen(path), oldest ? undefined : 400)
    await server.start()
    await server.didOpen(path)
    const symbols = (await server.documentSymbols(path)).map((each) => each.name)
    assert.ok(symbols.includes('Greeter') && symbols.includes('greet'), symbols.join())
    const labels = (await server.completions(path, position)).items.map((each) => each.label)
    assert.ok(labels.some((each) => each.startsWith('greet')), labels.slice(0, 20).join())
    assert.deepEqual((await server.sandboxSymbols('Greeter')).map((each) => each.name), ['Greeter'])
    await server.didClose(path)
    await server.stop()
    await fails(server.documentSymbols(path))
  })
}
// What needs the template desktop.
const computer = sandbox.computerUse
await check('computerUse.start, getStatus, getProcessStatus, getProcessLogs', async () => {
  const started = await computer.start()
  assert.deepEqual(Object.keys(started.status).sort(), ['novnc', 'x11vnc', 'xfce4', 'xvfb'])
  assert.equal((await computer.getStatus()).status, 'active')
  assert.equal((await computer.getProcessStatus('xfce4')).running, true)
  assert.equal((await computer.getProcessLogs('xvfb')).processName, 'xvfb')
  await fails(computer.getProcessErrors('none'), oldest ? undefined : 400)
})
await check('computerUse.mouse.move, getPosition, click, drag, scroll; display.getInfo, getWindows', async () => {
  const [shown] = (await computer.display.getInfo()).displays
  assert.deepEqual([shown.width, shown.height, shown.isActive], [1280, 800, true])
  await computer.mouse.move(321, 432)
  assert.deepEqual(await computer.mouse.getPosition(), { x: 321, y: 432 })
  assert.deepEqual(await computer.mouse.click(640, 400, 'left', true), { x: 640, y: 400 })
  // Away from the menu of the desktop, which opens at the first point: a release over it would choose an entry.
  assert.deepEqual(await computer.mouse.drag(600, 400, 500, 300, 'right'), { x: 500, y: 300 })
  assert.equal(await computer.mouse.scroll(640, 400, 'up', 2), true)
  await computer.keyboard.press('escape')
  assert.ok(Array.isArray((await computer.display.getWindows()).windows))
  await fails(computer.mouse.click(9999, 1), oldest ? undefined : 400)
})
await check('computerUse.screenshot.takeFullScreen, takeRegion, takeCompressed, takeCompressedRegion', async () => {
  const size = (picture) => { const data = Buffer.from(picture.screenshot, 'base64'); return [data.readUInt32BE(16), data.readUInt32BE(20)] }
  assert.deepEqual(size(await computer.screenshot.takeFullScreen(true)), [1280, 800])
  // takeRegion of this SDK sends (height, width, y, x) as (x, y, width, height): a region that is the same both ways.
  const region = { x: 200, y: 300, width: 300, height: 200 }
  assert.deepEqual(size(await computer.screenshot.takeRegion(region)), [300, 200])
  const jpeg = await computer.screenshot.takeCompressed({ format: 'jpeg', quality: 60, scale: 0.5 })
  assert.equal(Buffer.from(jpeg.screenshot, 'base64').subarray(0, 2).toString('hex'), 'ffd8')
  assert.deepEqual(size(await computer.screenshot.takeCompressedRegion(region, { format: 'png', scale: 0.5 })), [150, 100])
})
await check('computerUse.keyboard.type, press, hotkey', async () => {
  await sandbox.process.executeCommand('DISPLAY=:0 setsid mousepad --disable-server js.txt >/dev/null 2>&1 </dev/null &')
  const find = async () => (await computer.display.getWindows()).windows.find((each) => each.title.includes('js.txt'))
  for (let i = 0; i < 300 && !await find(); i++);
  let text = ''
  // A window is listed before it has its place and before its program takes keys.
  for (let i = 0; i < 5 && text.trim() !== 'von JavaScript: üA'; i++) {
    await sandbox.process.executeCommand('sleep 2')
    const place = await find()
    await computer.mouse.click(place.x + 100, place.y + 150)
    await computer.keyboard.hotkey('ctrl+a')
    await computer.keyboard.type('von JavaScript: ü')
    await computer.keyboard.press('a', ['shift'])
    await computer.keyboard.hotkey('ctrl+s')
    text = (await sandbox.process.executeCommand('sleep 1; cat js.txt 2>/dev/null || true')).result
  }
  assert.equal(text.trim(), 'von JavaScript: üA')
  await fails(computer.keyboard.hotkey('ctrl++'), oldest ? undefined : 400)
})
await check('computerUse.recording.start, stop, list, get, download, delete', async () => {
  const made = await computer.recording.start('js')
  await computer.mouse.move(100, 100)
  await computer.mouse.move(500, 500)
  const done = await computer.recording.stop(made.id)
  assert.equal(done.status, 'completed')
  assert.deepEqual((await computer.recording.list()).recordings.map((each) => each.id), [made.id])
  assert.equal((await computer.recording.get(made.id)).fileName, done.fileName)
  const path = `${process.env.HUSK_COMPAT_RESULTS ?? '/tmp/compat'}.mp4`
  await computer.recording.download(made.id, path)
  assert.equal(fs.statSync(path).size, done.sizeBytes)
  fs.unlinkSync(path)
  await computer.recording.delete(made.id)
  await fails(computer.recording.get(made.id), oldest ? undefined : 404)
})
await check('computerUse.restartProcess, stop', async () => {
  await computer.restartProcess('x11vnc')
  const stopped = await computer.stop()
  assert.deepEqual(Object.values(stopped.status).map((each) => each.running), [false, false, false, false])
  await fails(computer.screenshot.takeFullScreen(), oldest ? undefined : 400)
})
await sandbox.delete()
if (process.env.HUSK_COMPAT_RESULTS) fs.writeFileSync(process.env.HUSK_COMPAT_RESULTS, JSON.stringify(results))
console.log('the program ends')
