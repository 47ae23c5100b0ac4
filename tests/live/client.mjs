// A client of the lock in another language, written from docs/contributing/on-the-wire.md and the scripts that it links to.
//
// node client.mjs CONFIG: adds 1 to a file N times under a lock, and prints a line of JSON for each
// lock that it was granted: {"fence", "value"}. CONFIG is JSON: {masters, prefix, lua, key, file, times}.
// It does not wait in the queue: it asks again. "redis" comes from npm.
import { createHash, randomBytes } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { createClient, RESP_TYPES } from "redis";

const config = JSON.parse(process.argv[2]);
const PREFIX = config.prefix, TTL = 10_000, SKEW = 500_000;
const CONSTANTS = { SKEW, FENCE_TTL: 600_000, MAX_TTL: 60_000, NAME: Buffer.byteLength(`${PREFIX}:lock:`) + 1 };
const MASTER_TIMEOUT = 250; // ms: a silent master has no vote
const INFO_EVERY = 2_000; // ms: what a master is must be known from INFO this recently
const STATUSES = {
  GRANTED: 1, REFUSED: 0, NOT_READY: -1, BURIED: -2, FENCE_AHEAD: -3, CORRUPT: -4, ABSENT: -5,
  RESERVED: -7,
};
const COMMANDS = ["acquire", "confirm", "extend", "release"];
const key = (kind) => `${PREFIX}:${kind}:${config.key}`;
const HELD = `${PREFIX}:held`, MARKER = `${PREFIX}:master`;
let round = 0;

function script(name) {
  const file = (part) =>
    readFileSync(`${config.lua}/${part}.lua`, "utf8").replace(/^ *-- include (\w+)\.lua\n/gm, (_, part) => file(part));
  const source = file(name).replace(/\b[A-Z]+(_[A-Z]+)*\b/g, (word) => STATUSES[word] ?? CONSTANTS[word] ?? word);
  return { source, sha: createHash("sha1").update(source).digest("hex") };
}
const SCRIPTS = Object.fromEntries(COMMANDS.map((name) => [name, script(name)]));

/** A master, with the marker that it was seen to have. */
class Master {
  constructor(url) {
    this.client = createClient({ url });
    this.client.on("error", () => {});
    this.seen = -Infinity;
  }

  /** Read who the server is, and whether its marker is valid: that of this run. */
  async look() {
    if (performance.now() - this.seen < INFO_EVERY) return;
    const asked = performance.now();
    const info = await this.client.info();
    const run = /run_id:(\w+)/.exec(info)[1];
    if (!/role:master/.test(info)) throw new Error("not a master");
    const marker = (await this.client.get(MARKER)) ?? "";
    const [of, ready] = marker.split(" ");
    if (of !== run) throw new Error("not trusted: another run");
    Object.assign(this, { marker, ready, seen: asked });
  }

  /** Send a script; return the numbers of its reply after the round's. */
  async ask(name, keys, args, number, trusted) {
    const tail = trusted ? [this.marker, this.ready] : [];
    const words = [String(keys.length), ...keys, String(number), ...args, ...tail];
    const { source, sha } = SCRIPTS[name];
    let reply;
    try {
      reply = await this.send(["EVALSHA", sha, ...words]);
    } catch (error) {
      if (!String(error.message).startsWith("NOSCRIPT")) throw error;
      reply = await this.send(["EVAL", source, ...words]);
    }
    const numbers = Array.from({ length: reply.length >> 3 }, (_, i) => Number(reply.readBigInt64LE(8 * i)));
    if (numbers[0] !== number) throw new Error("the answer to another command");
    return numbers.slice(1);
  }

  send(words) {
    return this.client.sendCommand(words, { typeMapping: { [RESP_TYPES.BLOB_STRING]: Buffer } });
  }
}

const masters = config.masters.map((url) => new Master(url));
const majority = Math.floor(masters.length / 2) + 1;

/** Ask all masters at once; return the replies once a majority grants, or all have answered. */
async function everyone(name, keys, args, trusted) {
  const number = ++round;
  const replies = [];
  let decide;
  const decided = new Promise((done) => (decide = done));
  const asked = masters.map(async (master) => {
    if (trusted) await master.look();
    replies.push(await master.ask(name, keys, args, number, trusted));
    if (granted(replies).length >= majority) decide();
  });
  await Promise.race([decided, Promise.allSettled(asked), late()]);
  return [...replies];
}

async function late() {
  await sleep(MASTER_TIMEOUT, null, { ref: false });
}

const granted = (replies) => replies.filter(([status]) => status === STATUSES.GRANTED);

/** Return {value, fence, until} or null. A fence is valid once a majority has stored it. */
async function acquire() {
  const token = randomBytes(16).toString("hex");
  const value = `${token} ${JSON.stringify({ host: "node", pid: process.pid, app: "client.mjs" })}`;
  const numbers = Buffer.alloc(24);
  [Date.now() * 1000, TTL, 0].forEach((n, i) => numbers.writeDoubleLE(n, 8 * i));
  const began = performance.now();
  const keys = [MARKER, HELD, `${PREFIX}:tomb:${token}`, key("lock"), key("fence"), key("queue")];
  const won = granted(await everyone("acquire", keys, [value, numbers], true));
  const until = began + TTL - (TTL / 100 + 2);
  const times = won.map(([, time]) => time);
  const agree = Math.max(...times) - Math.min(...times) <= SKEW;
  if (won.length >= majority && agree) {
    const fence = Math.max(...won.map(([, , stored]) => stored));
    const stored = won.filter(([, , one]) => one === fence).length;
    if (stored >= majority || (await confirmed(value, fence))) {
      if (performance.now() < until) return { value, fence, until };
    }
  }
  await release({ value });
  return null;
}

async function confirmed(value, fence) {
  const keys = [MARKER, key("lock"), key("fence")];
  return granted(await everyone("confirm", keys, [value, String(fence)], true)).length >= majority;
}

async function extend(held) {
  const began = performance.now();
  const args = [held.value, String(TTL)];
  const replies = await everyone("extend", [MARKER, HELD, key("lock")], args, true);
  if (granted(replies).length < majority) throw new Error("lost");
  held.until = began + TTL - (TTL / 100 + 2);
}

async function release(held) {
  await everyone("release", [HELD, key("lock"), key("queue")], [held.value], false);
}

const connected = masters.map((master) => master.client.connect());
await Promise.allSettled(connected.map((one) => Promise.race([one, late()])));
for (let left = config.times; left > 0; ) {
  const held = await acquire();
  if (held === null) {
    await sleep(1 + Math.random() * 5);
    continue;
  }
  const value = Number(readFileSync(config.file, "utf8"));
  await extend(held);
  if (performance.now() > held.until) throw new Error("held for too long");
  writeFileSync(config.file, String(value + 1));
  console.log(JSON.stringify({ fence: held.fence, value: value + 1 }));
  await release(held);
  left -= 1;
}
masters.forEach((master) => master.client.destroy());
