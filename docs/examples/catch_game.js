// The game of catch_game.py in JavaScript, with one player. Written from docs/protocol.md, whose sections it names.
// npm install zeromq @msgpack/msgpack
// beast train --local.placement serve --env Catch-v0 --algo ppo --preset classic-ppo --insecure &
// node docs/examples/catch_game.js tcp://127.0.0.1:5555 tcp://127.0.0.1:5560 60
"use strict";
const crypto = require("crypto");
const zmq = require("zeromq");
const { encode, decode } = require("@msgpack/msgpack");

const [HELLO, WELCOME, ERROR, BYE, INFER, ACT, ROLLOUT, ACK, HERE] = [1, 2, 3, 4, 8, 9, 10, 11, 13];
const BIG = { useBigInt64: true }; // ids need all 63 bits
const [ROWS, COLUMNS] = [10, 5];
const OBS = { kind: "box", dtype: "<f4", shape: [ROWS * COLUMNS], sizes: [], low: [-Infinity], high: [Infinity] };
const ACTION = { kind: "discrete", dtype: "<i8", shape: [], sizes: [3], low: [], high: [] };
const ENV = { env_id: "Catch-v0", obs: OBS, action: ACTION, frame_stack: 1, frame_skip: 1, action_mask: false };
const sender = (crypto.randomBytes(8).readBigUInt64LE() >> 1n) | 1n;
const fail = (sentence) => { console.error(sentence); process.exit(1); };

// Section 5: fields [name, type, shape] at multiples of 8 bytes, the row padded to 64.
function layout(fields) {
  const at = {};
  let size = 0;
  for (const [name, type, shape] of fields) {
    const count = shape.reduce((product, each) => product * each, 1);
    at[name] = { offset: size, bytes: count * Number(type.slice(2)) };
    size += Math.ceil(at[name].bytes / 8) * 8;
  }
  return { at, size: Math.max(64, Math.ceil(size / 64) * 64) };
}
const arrivals = (...lead) => [["obs", "<f4", [...lead, ...OBS.shape]], ["first", "|b1", lead], ["reward", "<f4", lead],
  ["terminated", "|b1", lead], ["truncated", "|b1", lead]];
const [obs, first, ...others] = arrivals();
const STEP_ROW = layout([obs, ...others, first]);

// Sections 2, 3 and 7: slot 0 of this client on one plane. Its owner has the terms and handles WELCOMEs and answers.
class Session {
  constructor(letter, endpoint, owner) {
    Object.assign(this, { owner, open: false, number: 0, epoch: 0, seq: 0, request: null });
    Object.assign(this, { helloAt: 0, pause: 0, heardAt: Date.now() });
    this.topic = Buffer.alloc(9, letter);
    this.topic.writeBigUInt64LE(sender, 1);
    const [, host, port] = /^(.*?)(?::(\d+))?$/.exec(endpoint);
    const address = (index) => (port ? `${host}:${Number(port) + index}` : `${endpoint}.${index}`);
    this.push = new zmq.Push({ immediate: true, sendTimeout: 0, linger: 200 });
    this.sub = new zmq.Subscriber();
    this.sub.subscribe(this.topic);
    this.sub.connect(address(1));
    this.push.connect(address(0));
    this.sending = Promise.resolve();
    this.timer = setInterval(() => this.tick(Date.now()), 20);
    this.listen();
  }
  send(kind, epoch, seq, body, ...frames) {
    const message = [encode([4, kind, sender, 0, epoch, seq, ...body], BIG), ...frames];
    this.sending = this.sending.then(() => this.push.send(message)).catch(() => {}); // absent: sent again
  }
  tick(now) {
    if (!this.open && this.owner.terms && now >= this.helloAt) {
      this.helloAt = now + 200;
      this.send(HELLO, 0, 0, [this.owner.terms()]);
    } else if (this.open && this.request && now >= this.request.at) {
      this.request.at = now + this.request.patience;
      this.request.patience = Math.min(2 * this.request.patience, 8000);
      this.send(INFER, this.epoch, this.seq, ...this.request.message);
    }
    // Rule 8, reconnecting, is left to whatever restarts this program.
    if (now - this.heardAt > 60000 && (!this.open || this.request)) fail("a server has not answered for 60 s");
  }
  ask(...message) { // the broker's answer, or null if the session is lost, before or after the request
    if (!this.open) return null;
    this.seq += 1;
    this.heardAt = Date.now();
    return new Promise((done) => {
      this.request = { message, done, at: 0, patience: 2000 };
      this.tick(this.heardAt);
    });
  }
  settle(answer) {
    const request = this.request;
    this.request = null;
    if (request) request.done(answer);
  }
  lose(now) {
    this.open = false;
    this.helloAt = now + this.pause; // rule 11, with pauses from the second time on
    this.pause = Math.min(Math.max(200, 2 * this.pause), 8000);
    this.settle(null);
  }
  async listen() {
    for await (const [head, ...frames] of this.sub) {
      const now = Date.now();
      const [, kind, , , epoch, seq, ...body] = decode(head.subarray(9), BIG);
      this.heardAt = now;
      if (this.open && now - this.openedAt > 2000) this.pause = 0;
      if (kind === WELCOME && !(this.open && epoch === this.epoch)) {
        if (this.open) this.settle(null);
        Object.assign(this, { open: true, number: this.number + 1, epoch, seq: Number(seq), openedAt: now });
        this.owner.welcome(body[0], this);
      } else if (kind === ERROR && body[0] === "unknown_session") {
        if (this.open && Number(seq) === this.seq) this.lose(now);
      } else if (kind === ERROR && body[0] === "busy") {
        this.helloAt = now + 1000;
      } else if (kind === ERROR) {
        fail(`refused: ${body[1]}`);
      } else if (this.open && (kind === BYE ? epoch === this.epoch : kind === HERE && epoch !== this.epoch)) {
        this.lose(now);
      } else if (kind === HERE && Number(seq) === 0) {
        this.owner.again(this);
      } else if (this.open && epoch === this.epoch && (kind === ACT || kind === ACK)) {
        this.owner.answer(this, Number(seq), body, frames);
      }
    }
  }
  async close() {
    clearInterval(this.timer);
    this.send(BYE, this.epoch, 0, []);
    await this.sending;
    this.push.close();
    this.sub.close();
  }
}

// Section 9.
class Broker {
  terms() { return { env: ENV, num_envs: 1 }; }
  welcome({ policy }) { this.policy = policy; }
  again(session) { if (session.request) session.request.at = 0; }
  answer(session, seq, [version], [act, core]) {
    if (seq === session.seq) session.settle({ version, act, core, epoch: session.epoch });
  }
}

// Section 10: no rollout begins while `window` of them are in flight; each is kept until it is acknowledged.
class Learner {
  constructor(policy) { Object.assign(this, { policy, kept: [], seq: 0, window: 0, progressAt: 0 }); }
  terms() {
    return { env: ENV, policy: this.policy, num_envs: 1, first: this.kept.length ? this.kept[0].seq : this.seq + 1 };
  }
  welcome({ window, unroll_length, received }, session) {
    Object.assign(this, { window: Number(window), T: Number(unroll_length) });
    this.acknowledge(session.seq);
    for (const each of this.kept) if (each.seq > Number(received)) this.send(session, each);
  }
  again(session) { if (this.kept.length || !this.window) session.lose(Date.now()); }
  answer(_session, _seq, [consumed, window]) {
    this.window = Number(window);
    this.acknowledge(Number(consumed));
  }
  acknowledge(seq) {
    this.kept = this.kept.filter((each) => each.seq > seq);
    this.progressAt = Date.now();
  }
  push(session, row, episodes, acting) {
    this.kept.push({ seq: ++this.seq, row, body: [1, episodes, acting] });
    if (session.open) this.send(session, this.kept[this.kept.length - 1]);
  }
  send(session, { seq, row, body }) {
    session.seq = seq;
    session.send(ROLLOUT, session.epoch, seq, body, row);
  }
}

const until = async (probe) => { while (!probe()) await new Promise((done) => setTimeout(done, 5)); };

class Player {
  async connect(broker, learner) {
    this.broker = new Session("i", broker, new Broker());
    await until(() => this.broker.open);
    const policy = this.broker.owner.policy;
    this.learner = new Session("r", learner, new Learner(policy));
    await until(() => this.learner.open);
    this.T = this.learner.owner.T;
    this.act = layout([["action", "<i8", []], ...policy.extras]);
    const extras = policy.extras.map(([name, type, shape]) => [name, type, [this.T, ...shape]]);
    this.rollout = layout([...arrivals(this.T + 1), ["last_action", "<i8", [this.T + 1]], ...extras,
      ["policy_version", "<i8", [this.T]], ["core_state", "<f4", [policy.core_size]]]);
    Object.assign(this, { episodes: [], t: 0, row: null, action: 0n, acting: 0 });
  }
  // Entry t of a field of the rollout in progress. A field has T + 1 entries if it has one for obs T, otherwise T.
  entry(name, t) {
    const { offset, bytes } = this.rollout.at[name];
    const size = bytes / (name in STEP_ROW.at || name === "last_action" ? this.T + 1 : this.T);
    return this.row.subarray(offset + t * size, offset + (t + 1) * size);
  }
  record(step) {
    for (const [name, { offset, bytes }] of Object.entries(STEP_ROW.at)) {
      step.copy(this.entry(name, this.t), 0, offset, offset + bytes);
    }
    this.entry("last_action", this.t).writeBigInt64LE(this.action);
  }
  begin(step, action) { // a rollout that starts with this observation
    Object.assign(this, { t: 0, row: Buffer.alloc(this.rollout.size), action });
    this.record(step);
  }
  // Report the outcome of the last action; returns the next action.
  async show(view, reward, terminated, truncated, isFirst) {
    const step = Buffer.alloc(STEP_ROW.size), at = STEP_ROW.at;
    view.forEach((value, index) => step.writeFloatLE(value, at.obs.offset + 4 * index));
    step.writeFloatLE(reward, at.reward.offset);
    step[at.terminated.offset] = Number(terminated);
    step[at.truncated.offset] = Number(truncated);
    step[at.first.offset] = Number(isFirst);
    if (this.row) this.record(step);
    if (this.row && this.t === this.T) await this.deliver(step);
    for (;;) {
      await until(() => this.broker.open);
      if (this.session !== this.broker.number) { // a new session, which remembers nothing: both sides begin here
        this.session = this.broker.number;
        step[at.first.offset] = 1;
        this.begin(step, 0n);
      }
      const answer = await this.broker.ask([this.t === 0], step);
      if (answer) return this.remember(answer);
    }
  }
  async deliver(step) {
    const { learner, row } = this, { owner } = learner;
    this.begin(step, this.action);
    owner.push(learner, row, this.episodes.splice(0, 1000), this.acting);
    await until(() => {
      if (learner.open && Date.now() - owner.progressAt > 10000) {
        owner.progressAt = Date.now();
        learner.lose(owner.progressAt);
      }
      return owner.kept.length < owner.window;
    });
  }
  remember({ version, act, core, epoch }) {
    for (const [name] of this.broker.owner.policy.extras) {
      const { offset, bytes } = this.act.at[name];
      act.copy(this.entry(name, this.t), 0, offset, offset + bytes);
    }
    this.entry("policy_version", this.t).writeBigInt64LE(BigInt(version));
    if (core && this.t === 0) core.copy(this.row, this.rollout.at.core_state.offset);
    Object.assign(this, { action: act.readBigInt64LE(0), acting: epoch, t: this.t + 1 });
    return Number(this.action);
  }
}

async function main([broker, learner, seconds]) {
  const player = new Player(), end = Date.now() + 1000 * Number(seconds), returns = [];
  await player.connect(broker, learner);
  while (Date.now() < end) {
    const ball = Math.floor(Math.random() * COLUMNS);
    let [row, paddle] = [0, COLUMNS >> 1];
    const look = () => {
      const seen = new Array(ROWS * COLUMNS).fill(0);
      seen[row * COLUMNS + ball] = seen[(ROWS - 1) * COLUMNS + paddle] = 1;
      return seen;
    };
    let action = await player.show(look(), 0, false, false, true);
    while (row < ROWS - 1) {
      row += 1;
      paddle = Math.min(Math.max(paddle + action - 1, 0), COLUMNS - 1);
      const over = row === ROWS - 1, reward = over ? (ball === paddle ? 1 : -1) : 0;
      if (over) player.episodes.push([reward, row]);
      action = await player.show(look(), reward, over, false, false); // the action for the last observation is ignored
      if (over) returns.push(reward);
    }
    if (returns.length % 500 === 0) {
      const mean = returns.slice(-500).reduce((sum, each) => sum + each, 0) / 500;
      console.log(`${returns.length} games, mean return ${mean.toFixed(2)}, ${player.learner.owner.seq} rollouts`);
    }
  }
  await Promise.all([player.broker.close(), player.learner.close()]);
}

main(process.argv.slice(2)).catch((error) => fail(error.stack));
