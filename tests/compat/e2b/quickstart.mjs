// A program as E2B's documentation has it, written down by hand: nothing in it knows of Husk. It runs here with
// E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY in its environment.
import { Sandbox } from '@e2b/code-interpreter'

const sbx = await Sandbox.create() // by default the sandbox is alive for 5 minutes
const execution = await sbx.runCode('print("hello world")') // executes Python inside the sandbox
console.log(execution.logs)

const files = await sbx.files.list('/')
console.log(files.map((file) => file.name))

// A dataset goes up, an analysis runs, a chart comes back.
const dataset = await sbx.files.write('dataset.csv', 'year,sales\n2022,10\n2023,14\n2024,21\n')
const analysis = await sbx.runCode(`
import pandas as pd
import matplotlib.pyplot as plt

data = pd.read_csv('${dataset.path}')
plt.plot(data['year'], data['sales'])
plt.title('Sales')
plt.show()
`)
if (analysis.error) {
  console.error('AI-generated code had an error.', analysis.error.traceback)
  process.exit(1)
}
for (const result of analysis.results) {
  if (result.png) console.log(`chart: ${result.chart.title}, ${Buffer.from(result.png, 'base64').length} bytes of PNG`)
}

const command = await sbx.commands.run('ls -l')
console.log(command.stdout)

await sbx.kill()
