// What the compatibility suites share: one line per method, `ok NAME`, `not ok NAME: why` or `skip NAME: reason`, and
// the same as JSON in the file that $HUSK_COMPAT_RESULTS names, from which docs/compat.md is written.
import assert from 'node:assert/strict'
import fs from 'node:fs'

const results = []
const only = process.argv[2]
export const label = process.env.HUSK_COMPAT_LABEL ?? 'newest'

export class Skip extends Error {}

const LIMIT_MS = 120_000

function limited(promise, name) {
  let timer
  const limit = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${name} did not end within ${LIMIT_MS / 1000} s`)), LIMIT_MS)
  })
  return Promise.race([promise, limit]).finally(() => clearTimeout(timer))
}

// One method, or one thing about it. `result` other than "yes" says what the table has instead: "501", …
export async function check(method, run, result = 'yes') {
  if (only && !method.includes(only)) return
  try {
    await limited(run(), method)
    results.push({ method, result })
    console.log(`ok ${label} ${method}`)
  } catch (error) {
    if (error instanceof Skip) {
      results.push({ method, result: `skipped: ${error.message}` })
      console.log(`skip ${label} ${method}: ${error.message}`)
      return
    }
    results.push({ method, result: 'no' })
    const text = `${error?.message ?? error}\n${error?.stack ?? ""}`.split('\n').slice(0, 6).join(' | ')
    console.log(`not ok ${label} ${method}: ${text.slice(0, 900)}`)
    process.exitCode = 1
  }
}

// That it fails with this class, and says this.
export async function fails(promise, kind, says = '') {
  try {
    await promise
  } catch (error) {
    assert.ok(error instanceof kind, `expected ${kind.name}, got ${error?.constructor?.name}: ${error?.message}`)
    assert.ok(String(error.message).includes(says), `${says} is not in: ${error.message}`)
    return error
  }
  assert.fail(`expected ${kind.name}, but it succeeded`)
}

export async function until(condition, what, seconds = 30) {
  const deadline = Date.now() + seconds * 1000
  for (;;) {
    const value = await condition()
    if (value) return value
    assert.ok(Date.now() < deadline, `waited ${seconds} s in vain: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
}

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

export function finish() {
  if (process.env.HUSK_COMPAT_RESULTS) fs.writeFileSync(process.env.HUSK_COMPAT_RESULTS, JSON.stringify(results))
  // Streams the tests left open on purpose must not keep us here.
  process.exit(process.exitCode ?? 0)
}
