// node-redlock 5 on ioredis: the jobs of `workloads/` in JavaScript, by file.function.
// It reads and writes lines of JSON, as described in worker/__main__.py.

import { Redis } from "ioredis";
import redlock from "redlock";
import { closeSync, openSync, unlinkSync } from "node:fs";
import { createInterface } from "node:readline";

const Redlock = redlock.default ?? redlock;
const TTL = 30_000;
const LOOK_EVERY = 256;
const KEYS = 64;

const clock = () => Number(process.hrtime.bigint()) / 1e9;
const sleep = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));
const name = (kind, place) =>
  `bench:${kind.padStart(5, "-")}:${String(place).padStart(4, "0")}`;
const quantile = (ordered, share) =>
  ordered.length ? ordered[Math.min(ordered.length - 1, Math.floor(share * ordered.length))] : 0;

function latencies(seconds) {
  const ordered = Float64Array.from(seconds).sort();
  return {
    p50_us: quantile(ordered, 0.5) * 1e6,
    p99_us: quantile(ordered, 0.99) * 1e6,
    max_us: quantile(ordered, 1) * 1e6,
  };
}

class Contender {
  constructor(masters, options) {
    // Redlock needs clients without retries; commands fail while disconnected.
    const more = options.timeout
      ? { commandTimeout: options.timeout * 1000, maxRetriesPerRequest: 0, enableOfflineQueue: false }
      : {};
    this.clients = masters.map(([host, port]) => {
      const client = new Redis({ host, port, ...more });
      client.on("error", () => {});
      return client;
    });
    this.once = new Redlock(this.clients, { retryCount: 0 });
    this.patient = new Redlock(this.clients, { retryCount: -1 });
    for (const each of [this.once, this.patient]) each.on("error", () => {});
  }

  async connect() {
    await Promise.all(
      this.clients.map(async (client) => {
        if (client.status !== "ready") await new Promise((done) => client.once("ready", done));
      }),
    );
  }

  async acquire(resource) {
    try {
      return await this.once.acquire([resource], TTL);
    } catch {
      return null;
    }
  }

  wait(resource) {
    return this.patient.acquire([resource], TTL);
  }

  release(held) {
    return held.release();
  }
}

// Another Redlock client that tries to acquire held locks (worker/witness.py).
class Intruder {
  constructor(masters) {
    this.looks = 0;
    this.overlaps = 0;
    this.clients = masters.map(([host, port]) => {
      const client = new Redis({ host, port, commandTimeout: 500, maxRetriesPerRequest: 0 });
      client.on("error", () => {});
      return client;
    });
  }

  async look(resource, down = 0) {
    this.looks += 1;
    const said = await Promise.allSettled(
      this.clients.slice(down).map(async (client) => {
        if ((await client.set(resource, "intruder", "PX", 2000, "NX")) !== "OK") return 0;
        await client.del(resource);
        return 1;
      }),
    );
    const granted = said.filter((each) => each.value === 1).length;
    if (granted > this.clients.length / 2) this.overlaps += 1;
  }
}

class Turnstile {
  constructor(path) {
    this.path = path;
    this.overlaps = 0;
  }

  async inside(work) {
    let mine = null;
    try {
      mine = openSync(this.path, "wx");
    } catch {
      this.overlaps += 1;
    }
    await work();
    if (mine !== null) {
      closeSync(mine);
      unlinkSync(this.path);
    }
  }
}

// Works to warm up, then for `seconds`, and returns the figures. `work` notes what was done in
// { seconds, begun, failed } and returns a promise.
async function measured(intruder, { seconds, warm_up = 0.2 }, work) {
  const nothing = () => ({ seconds: [], begun: 0, failed: 0 });
  await work(clock() + warm_up, nothing());
  const done = nothing();
  const wall = clock();
  const cpu = process.cpuUsage();
  await work(clock() + seconds, done);
  const spent = process.cpuUsage(cpu);
  return {
    pairs: done.seconds.length,
    failed: done.failed,
    per_s: done.seconds.length / (clock() - wall),
    cpu_us: (spent.user + spent.system) / Math.max(done.seconds.length, 1),
    ...latencies(done.seconds),
    looks: intruder.looks,
    overlaps: intruder.overlaps,
  };
}

async function somePairs(contender, intruder, names, until, done) {
  while (clock() < until) {
    const resource = names[done.begun % names.length];
    const look = done.begun % LOOK_EVERY === 0;
    done.begun += 1;
    const began = clock();
    const held = await contender.acquire(resource);
    if (held === null) {
      done.failed += 1;
      continue;
    }
    const taken = clock();
    if (look) await intruder.look(resource);
    const leaving = clock();
    await contender.release(held);
    done.seconds.push(clock() - leaving + taken - began);
  }
}

async function refused(contender, intruder, resource, until, done) {
  while (clock() < until) {
    const began = clock();
    const held = await contender.acquire(resource);
    done.seconds.push(clock() - began);
    intruder.looks += 1;
    if (held !== null) {
      intruder.overlaps += 1;
      await contender.release(held);
    }
  }
}

const jobs = {
  async "pairs.pairs"(contender, intruder, timing) {
    const names = Array.from({ length: KEYS }, (_, place) => name("pair", place));
    return measured(intruder, timing, (until, done) =>
      somePairs(contender, intruder, names, until, done),
    );
  },

  async "refusals.refusals"(contender, intruder, timing) {
    const resource = name("held", 0);
    const held = await contender.wait(resource);
    await intruder.look(resource);
    const figures = await measured(intruder, timing, (until, done) =>
      refused(contender, intruder, resource, until, done),
    );
    await contender.release(held);
    return figures;
  },

  async "tasks.tasks"(contender, intruder, { count, ...timing }) {
    const names = Array.from({ length: count }, (_, place) =>
      name(`k${Math.floor(place / 1000)}`, place % 1000),
    );
    return measured(intruder, timing, (until, done) =>
      Promise.all(names.map((own) => somePairs(contender, intruder, [own], until, done))),
    );
  },

  async "handoff.drain"(contender, intruder, { folder, seconds, waiters = 8 }) {
    const gate = new Turnstile(`${folder}/turn`);
    const gaps = [];
    const began = clock();
    for (let drains = 0; clock() < began + seconds || drains < 2; drains += 1) {
      const resource = name("drain", drains % KEYS);
      const turns = [];
      const turn = async () => {
        const held = await contender.wait(resource);
        const taken = clock();
        await gate.inside(() => sleep(0.001));
        turns.push([taken, clock()]);
        await contender.release(held);
      };
      const held = await contender.wait(resource);
      const queue = Array.from({ length: waiters }, turn);
      await sleep(0.05);
      let left = clock();
      await contender.release(held);
      await Promise.all(queue);
      for (const [taken, leaving] of turns.sort((a, b) => a[0] - b[0])) {
        gaps.push(taken - left);
        left = leaving;
      }
    }
    return { ...latencies(gaps), turns: gaps.length, looks: gaps.length, overlaps: gate.overlaps };
  },

  async "faults.pairs"(contender, intruder, { seconds, down = 0 }) {
    const events = [];
    const until = clock() + seconds;
    for (let place = 0; clock() < until; ) {
      const began = clock();
      let taken = began;
      let leaving = began;
      let held = null;
      try {
        const resource = name("fault", events.length % KEYS);
        held = await contender.acquire(resource);
        taken = leaving = clock();
        if (held !== null) {
          if (place % KEYS === 0) await intruder.look(resource, down);
          leaving = clock();
          await contender.release(held);
          place += 1;
        }
      } catch {
        held = null;
      }
      events.push([began, clock() - leaving + taken - began, held !== null]);
    }
    return { events, looks: intruder.looks, overlaps: intruder.overlaps };
  },
};

const say = (answer) => process.stdout.write(`${JSON.stringify(answer)}\n`);
let contender;
let masters;
for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  try {
    if (contender === undefined) {
      masters = asked.masters;
      contender = new Contender(masters, asked.options);
      await contender.connect();
      say({ ready: true });
      continue;
    }
    const { job, ...how } = asked;
    const intruder = new Intruder(masters);
    say(await jobs[job](contender, intruder, how));
    for (const client of intruder.clients) client.disconnect();
  } catch (error) {
    say({ error: String(error?.stack ?? error) });
  }
}
process.exit(0);
