// The unmodified `@e2b/code-interpreter` package against a Husk server: code with state, rich results, charts, languages.
import assert from 'node:assert/strict'

import { NotFoundError, Sandbox, SandboxError, TimeoutError } from '@e2b/code-interpreter'

import { check, fails, finish } from './kit.mjs'

const box = await Sandbox.create({ timeoutMs: 900_000 })
const PLOT = 'import matplotlib.pyplot as plt\n'

await check('runCode', async () => {
  await box.runCode('x = 1')
  const run = await box.runCode('x += 1; x')
  assert.equal(run.text, '2')
  assert.equal(run.error, undefined)
  assert.ok(run.executionCount >= 2)
})
await check('runCode (stdout, stderr, callbacks)', async () => {
  const out = [], err = [], results = []
  const run = await box.runCode('import sys\nprint("one"); print("two", file=sys.stderr)\ndisplay("three")\n4', {
    onStdout: (message) => out.push(message.line),
    onStderr: (message) => err.push(message.line),
    onResult: (result) => results.push(result),
  })
  assert.deepEqual([run.logs.stdout.join(''), run.logs.stderr.join('')], ['one\n', 'two\n'])
  assert.deepEqual([out.join(''), err.join('')], ['one\n', 'two\n'])
  assert.equal(results.length, 2)
  assert.deepEqual(run.results.map((result) => result.isMainResult), [false, true])
})
await check('runCode (errors)', async () => {
  let told
  const run = await box.runCode('def f():\n    raise ValueError("no good")\nf()', { onError: (error) => (told = error) })
  assert.deepEqual([run.error.name, run.error.value], ['ValueError', 'no good'])
  assert.match(run.error.traceback, /raise ValueError/)
  assert.equal(told.name, 'ValueError')
  assert.equal((await box.runCode('def (')).error.name, 'SyntaxError')
})
await check('runCode (timeout)', async () => {
  await fails(box.runCode('import time; time.sleep(60)', { timeoutMs: 1000 }), TimeoutError)
  // What was given up does not stand in the way of what comes next.
  assert.equal((await box.runCode('6 * 7')).text, '42')
})
await check('runCode (envs)', async () => {
  assert.equal((await box.runCode('import os; os.environ["A"]', { envs: { A: 'it\'s "b" ä' } })).text, `'it\\'s "b" ä'`)
  assert.equal((await box.runCode('os.environ.get("A", "gone")')).text, "'gone'")
})
await check('runCode (directory and files)', async () => {
  await box.files.write('numbers.csv', 'a,b\n1,2\n3,4\n')
  assert.equal((await box.runCode('import os; os.getcwd()')).text, "'/home/user'")
  assert.match((await box.runCode('import pandas as pd; pd.read_csv("numbers.csv").sum().to_dict()')).text, /'a': 4, 'b': 6/)
})
await check('results: text, html, markdown, latex, svg, json', async () => {
  const table = (await box.runCode('import pandas as pd; pd.DataFrame({"a": [1, 2], "b": ["x", None]})')).results[0]
  assert.match(table.html, /<table/)
  assert.deepEqual(table.data, { a: [1, 2], b: ['x', null] })
  assert.deepEqual((await box.runCode('{"k": [1, 2]}')).results[0].json, { k: [1, 2] })
  const rich = await box.runCode(
    'class R:\n  def _repr_markdown_(self): return "# md"\n  def _repr_latex_(self): return "$x$"\n' +
    '  def _repr_svg_(self): return "<svg/>"\nR()')
  const [result] = rich.results
  assert.deepEqual([result.markdown, result.latex, result.svg], ['# md', '$x$', '<svg/>'])
  assert.ok(result.formats().includes('markdown'))
})
await check('results: png', async () => {
  const [result] = (await box.runCode(PLOT + 'plt.plot([1, 2, 3])\nplt.show()')).results
  assert.equal(Buffer.from(result.png, 'base64').subarray(1, 4).toString(), 'PNG')
})
await check('charts: line', async () => {
  const [{ chart }] = (await box.runCode(PLOT +
    'plt.plot([1, 2, 3], [2, 4, 8], label="doubling"); plt.title("Growth"); plt.xlabel("Time (s)"); plt.ylabel("Size")\nplt.show()')).results
  assert.deepEqual([chart.type, chart.title, chart.x_label, chart.x_unit, chart.y_label], ['line', 'Growth', 'Time (s)', 's', 'Size'])
  assert.deepEqual(chart.elements, [{ label: 'doubling', points: [[1, 2], [2, 4], [3, 8]] }])
  assert.equal(chart.x_scale, 'linear')
})
await check('charts: scatter', async () => {
  const [{ chart }] = (await box.runCode(PLOT + 'plt.scatter([1, 2], [3, 4], label="dots"); plt.yscale("log")\nplt.show()')).results
  assert.deepEqual([chart.type, chart.elements[0].points, chart.y_scale], ['scatter', [[1, 3], [2, 4]], 'log'])
})
await check('charts: bar', async () => {
  const [{ chart }] = (await box.runCode(PLOT + 'plt.bar(["Anna", "Ben"], [3, 5], label="sold")\nplt.show()')).results
  assert.equal(chart.type, 'bar')
  assert.deepEqual(chart.elements.map((each) => [each.label, Number(each.value), each.group]), [['Anna', 3, 'sold'], ['Ben', 5, 'sold']])
})
await check('charts: pie', async () => {
  const [{ chart }] = (await box.runCode(PLOT + 'plt.pie([1, 3], labels=["a", "b"])\nplt.show()')).results
  assert.deepEqual([chart.type, chart.elements.map((each) => [each.label, Math.round(each.angle)])], ['pie', [['a', 90], ['b', 270]]])
})
await check('charts: box and whisker', async () => {
  const [{ chart }] = (await box.runCode(PLOT + 'plt.boxplot([[1, 2, 3, 4, 5], [2, 4, 6, 8, 50]])\nplt.show()')).results
  assert.equal(chart.type, 'box_and_whisker')
  assert.deepEqual([chart.elements[0].median, chart.elements[1].outliers], [3, [50]])
})
await check('charts: several (superchart)', async () => {
  const [{ chart }] = (await box.runCode(PLOT +
    'fig, (a, b) = plt.subplots(1, 2); a.plot([1, 2]); b.bar([1], [2]); fig.suptitle("Two")\nplt.show()')).results
  assert.deepEqual([chart.type, chart.title, chart.elements.map((each) => each.type)], ['superchart', 'Two', ['line', 'bar']])
})
await check('contexts', async () => {
  const context = await box.createCodeContext({ cwd: '/tmp' })
  assert.deepEqual([context.language, context.cwd], ['python', '/tmp'])
  await box.runCode('here = 5', { context })
  assert.equal((await box.runCode('here', { context })).text, '5')
  assert.equal((await box.runCode('here')).error.name, 'NameError')
  assert.equal((await box.runCode('import os; os.getcwd()', { context })).text, "'/tmp'")
  assert.ok((await box.listCodeContexts()).some((each) => each.id === context.id))
  await box.restartCodeContext(context)
  assert.equal((await box.runCode('here', { context })).error.name, 'NameError')
  await box.removeCodeContext(context)
  assert.ok(!(await box.listCodeContexts()).some((each) => each.id === context.id))
  await fails(box.runCode('1', { context }), NotFoundError)
  await fails(box.removeCodeContext(context.id), NotFoundError)
})
await check('language: javascript', async () => {
  await box.runCode('const a = [1, 2, 3]', { language: 'js' })
  assert.equal((await box.runCode('a.map((n) => n * 2).length', { language: 'javascript' })).text, '3')
  assert.equal((await box.runCode('process.env.A', { language: 'js', envs: { A: 'b' } })).text, "'b'")
})
await check('language: bash', async () => {
  const run = await box.runCode('n=3; echo $((n * 2)); echo $A', { language: 'bash', envs: { A: "it's" } })
  assert.equal(run.logs.stdout.join(''), "6\nit's\n")
  const context = await box.createCodeContext({ language: 'bash' })
  assert.equal((await box.runCode('pwd', { context })).logs.stdout.join(''), '/home/user\n')
})
for (const language of ['typescript', 'r', 'java'])
  await check(`language: ${language}`, async () => {
    await fails(box.runCode('1', { language }), SandboxError, '501')
  }, '501')
await check('commands and files beside code', async () => {
  await box.runCode('open("/home/user/made.txt", "w").write("by code")')
  assert.equal(await box.files.read('made.txt'), 'by code')
  assert.equal((await box.commands.run('cat made.txt')).stdout, 'by code')
})
await check('contexts survive pause and fork', async () => {
  await box.runCode('kept = "in memory"')
  await box.pause()
  await box.connect({ timeoutMs: 600_000 })
  assert.equal((await box.runCode('kept')).text, "'in memory'")
  const [child] = await box.fork()
  try {
    assert.equal((await child.runCode('kept')).text, "'in memory'")
  } finally {
    await child.kill()
  }
})

await box.kill()
finish()
