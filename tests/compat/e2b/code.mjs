// The unmodified `@e2b/code-interpreter` package against a Husk server: code with state, rich results, charts, languages.
import assert from 'node:assert/strict'

import { NotFoundError, Sandbox, TimeoutError } from '@e2b/code-interpreter'

import { check, fails, finish, pause } from './kit.mjs'

const box = await Sandbox.create({ timeoutMs: 900_000, envs: { GIVEN: 'at create' } })
const PLOT = 'import matplotlib.pyplot as plt\n'

await check('runCode', async () => {
  assert.equal((await box.runCode('x = 1')).executionCount, 1)
  const run = await box.runCode('x += 1; x')
  assert.equal(run.text, '2')
  assert.equal(run.error, undefined)
  assert.equal(run.executionCount, 2)
  assert.equal((await box.runCode('"a string"')).text, 'a string')
})
await check('runCode (IPython)', async () => {
  const out = async (code) => {
    const run = await box.runCode(code)
    assert.equal(run.error, undefined, run.error?.traceback)
    return run.text ?? run.logs.stdout.join('')
  }
  assert.equal(await out('    y = 2\n    y * 2'), '4')
  assert.equal(await out('!echo from a shell'), 'from a shell\n')
  assert.equal(await out('lines = !printf "a\\nb"\nlines[1]'), 'b')
  assert.match(await out('%timeit -n1 -r1 1'), /per loop/)
  assert.equal(await out('%%bash\necho $((1 + 2))'), '3\n')
  assert.equal(await out('get_ipython().__class__.__name__'), 'ZMQInteractiveShell') // libraries ask for Jupyter's
  assert.equal(await out('41'), '41')
  assert.equal(await out('_ + 1'), '42')
  assert.match(await out('In[1]'), /x = 1/)
  assert.equal(await out('import asyncio\nawait asyncio.sleep(0, "waited")'), 'waited')
  assert.match((await box.runCode('len?')).results[0].text, /number of items/)
  assert.equal((await box.runCode('input()')).error.name, 'StdinNotImplementedError')
})
await check('runCode (display)', async () => {
  const run = await box.runCode(
    'from IPython.display import HTML, display, update_display\ndisplay(HTML("<b>b</b>"))\n' +
    'display("first", display_id="d"); update_display("last", display_id="d")')
  assert.deepEqual(run.results.map((each) => each.html ?? each.text), ['<b>b</b>', 'first', 'last'])
})
await check('runCode (stdout, stderr, callbacks)', async () => {
  const out = [], err = [], results = [], times = []
  const run = await box.runCode('import sys\nprint("one"); print("two", file=sys.stderr)\ndisplay("three")\n4', {
    onStdout: (message) => { out.push(message.line); times.push(message.timestamp) },
    onStderr: (message) => err.push(message.line),
    onResult: (result) => results.push(result),
  })
  assert.deepEqual([run.logs.stdout.join(''), run.logs.stderr.join('')], ['one\n', 'two\n'])
  assert.deepEqual([out.join(''), err.join('')], ['one\n', 'two\n'])
  assert.ok(times[0] > 0, `timestamp ${times[0]}`)
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
  assert.equal((await box.runCode('import os; os.environ["A"]', { envs: { A: '"b" ä' } })).text, '"b" ä')
  assert.equal((await box.runCode('os.environ.get("A", "gone")')).text, 'gone')
  assert.equal((await box.runCode('os.environ["GIVEN"]')).text, 'at create')
  assert.equal((await box.runCode('!echo $GIVEN')).logs.stdout.join(''), 'at create\n')
  assert.equal((await box.runCode('os.environ["E2B_SANDBOX_ID"]')).text, box.sandboxId)
})
await check('runCode (directory and files)', async () => {
  await box.files.write('numbers.csv', 'a,b\n1,2\n3,4\n')
  assert.equal((await box.runCode('import os; os.getcwd()')).text, '/home/user')
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
  assert.deepEqual([chart.type, chart.title], ['bar', null])
  assert.deepEqual(chart.elements.map((each) => [each.label, each.value, each.group]), [['Anna', 3, 'sold'], ['Ben', 5, 'sold']])
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
await check('charts: another kind (unknown)', async () => {
  const [{ chart }] = (await box.runCode(PLOT + 'plt.imshow([[1, 2], [3, 4]]); plt.title("Image")\nplt.show()')).results
  assert.deepEqual([chart.type, chart.title, chart.elements], ['unknown', 'Image', []])
  const [space] = (await box.runCode(PLOT + 'plt.subplot(projection="3d").scatter([1], [2], [3])\nplt.show()')).results
  assert.deepEqual([space.chart.type, space.chart.elements], ['unknown', []])
})
await check('results: PIL, plotly', async () => {
  const [image] = (await box.runCode('from PIL import Image; Image.new("RGB", (2, 2))')).results
  assert.equal(Buffer.from(image.png, 'base64').subarray(1, 4).toString(), 'PNG')
  const run = await box.runCode('import plotly.graph_objects as go\ngo.Figure(go.Bar(y=[2, 3]))')
  assert.equal(run.error, undefined, run.error?.traceback)
  assert.ok(run.results.some((each) => each.html?.includes('plotly')), JSON.stringify(run.results).slice(0, 300))
})
await check('packages', async () => {
  const run = await box.runCode('import sklearn, seaborn, plotly, bs4, cv2, aiohttp, requests, sympy, openpyxl, docx, nltk, networkx\n"all there"')
  assert.equal(run.text, 'all there', run.error?.traceback)
})
await check('contexts', async () => {
  const context = await box.createCodeContext({ cwd: '/tmp' })
  assert.deepEqual([context.language, context.cwd], ['python', '/tmp'])
  await box.runCode('here = 5', { context })
  assert.equal((await box.runCode('here', { context })).text, '5')
  assert.equal((await box.runCode('here')).error.name, 'NameError')
  assert.equal((await box.runCode('import os; os.getcwd()', { context })).text, '/tmp')
  const [standard] = (await box.listCodeContexts()).filter((each) => each.language === 'python' && each.id !== context.id)
  assert.equal(standard.cwd, '/home/user')
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
  assert.equal((await box.runCode('process.env.A', { language: 'js', envs: { A: 'b' } })).text, 'b')
})
await check('language: bash', async () => {
  const run = await box.runCode('n=3; echo $((n * 2)); echo $A', { language: 'bash', envs: { A: "it's" } })
  assert.equal(run.logs.stdout.join(''), "6\nit's\n")
  const context = await box.createCodeContext({ language: 'bash' })
  assert.equal((await box.runCode('pwd', { context })).logs.stdout.join(''), '/home/user\n')
})
await check('language: typescript', async () => {
  await box.runCode('interface P { n: number }\nconst p: P = { n: 20 }', { language: 'ts' })
  assert.equal((await box.runCode('(p.n as number) * 2 + 2', { language: 'typescript' })).text, '42')
})
await check('language: r', async () => {
  const run = await box.runCode('x <- c(1, 2, 3)\ncat("mean\\n")\nmean(x)', { language: 'R' })
  assert.deepEqual([run.logs.stdout.join(''), run.text], ['mean\n', '[1] 2'])
  assert.match((await box.runCode('stop("no good")', { language: 'r' })).error.value, /no good/)
  const [plot] = (await box.runCode('plot(x)', { language: 'r' })).results
  assert.equal(Buffer.from(plot.png, 'base64').subarray(1, 4).toString(), 'PNG')
})
await check('language: java', async () => {
  const run = await box.runCode('int twice(int n) { return 2 * n; }\nSystem.out.println("hi");\ntwice(21)', { language: 'java' })
  assert.deepEqual([run.logs.stdout.join(''), run.text], ['hi\n', '42'], run.error?.traceback)
  assert.equal((await box.runCode('1 / 0', { language: 'java' })).error.name, 'ArithmeticException')
})
await check('commands and files beside code', async () => {
  await box.runCode('open("/home/user/made.txt", "w").write("by code")')
  assert.equal(await box.files.read('made.txt'), 'by code')
  assert.equal((await box.commands.run('cat made.txt')).stdout, 'by code')
})
await check('contexts survive pause and fork', async () => {
  await box.runCode('kept = "in memory"')
  await box.pause()
  await box.connect({ timeoutMs: 600_000 })
  const woken = await box.runCode('kept')
  assert.equal(woken.text, 'in memory', woken.error?.traceback)
  const [child] = await box.fork()
  try {
    assert.equal((await child.runCode('kept')).text, 'in memory')
  } finally {
    await child.kill()
  }
})

await check('runCode under a killed sandbox', async () => {
  const running = fails(box.runCode('import time; time.sleep(60)'), TimeoutError)
  await pause(2000)
  await box.kill()
  await running
})

finish()
