// Five clients of redis-semaphore (npm), each of which reaches another three of five masters, ask for
// permits of one name with a limit of three. Prints how many of them hold one at the same time.
//
// node counting_semaphore.mjs PORT PORT PORT PORT PORT CLOSED: six ports, the last without a server
import { Redis } from 'ioredis'
import { RedlockSemaphore } from 'redis-semaphore'

const ports = process.argv.slice(2).map(Number)
const closed = ports.pop()
const LIMIT = 3

function connect (port) {
  const client = new Redis({ port, lazyConnect: true, retryStrategy: null, enableOfflineQueue: false })
  client.on('error', () => {})
  return client
}

async function holder (number) {
  const reached = [0, 1, 2].map(step => (number + step) % ports.length)
  const clients = ports.map((port, master) => connect(reached.includes(master) ? port : closed))
  await Promise.allSettled(clients.map(client => client.connect()))
  const permit = new RedlockSemaphore(clients, 'export', LIMIT, {
    lockTimeout: 60_000, acquireAttemptsLimit: 1, refreshInterval: 0
  })
  return permit.tryAcquire()
}

let holders = 0
for (let number = 0; number < ports.length; number++) {
  holders += await holder(number) ? 1 : 0
}
console.log(holders)
process.exit(0)
