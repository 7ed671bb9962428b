"""Serves CartPole-v1 to any actor. Written from docs/protocol.md; needs the standard library, pyzmq and msgpack.
Start it as: python docs/examples/foreign_env_server.py tcp://127.0.0.1:5550"""

import math
import random
import struct
import sys

import msgpack
import zmq

VERSION, (HELLO, WELCOME, ERROR, BYE, RESET, STEP, OBS) = 4, range(1, 8)
SPEC = {"env_id": "CartPole-v1", "frame_stack": 1, "frame_skip": 1, "action_mask": False}
SPEC["obs"] = {"kind": "box", "dtype": "<f4", "shape": [4], "sizes": [], "low": [-math.inf], "high": [math.inf]}
SPEC["action"] = {"kind": "discrete", "dtype": "<i8", "shape": [], "sizes": [2], "low": [], "high": []}
ACTION_ROW, STEP_ROW = struct.Struct("<q56x"), struct.Struct("<4f f4x ?7x ?7x ?23x")  # 64 bytes each


class CartPole:  # Barto, Sutton and Anderson (1983): Euler steps of 20 ms, at most 500 of them
    def __init__(self, seed):
        self.random, self.over = random.Random(seed), True

    def reset(self, seed=None):
        self.random = self.random if seed is None else random.Random(seed)
        self.state, self.steps, self.over = [self.random.uniform(-0.05, 0.05) for _ in range(4)], 0, False
        return STEP_ROW.pack(*self.state, 0.0, 0, 0, 1)

    def step(self, action, episodes):
        if self.over:
            return self.reset()  # the restart rule: this action is ignored
        x, speed, angle, spin = self.state
        mass, lever = 1.1, 0.1 * 0.5  # kg of cart and pole; kg of the pole times half its length in m
        drive = ((10.0 if action else -10.0) + lever * spin**2 * math.sin(angle)) / mass
        twist = (9.8 * math.sin(angle) - math.cos(angle) * drive) / (0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / mass))
        pull = drive - lever * twist * math.cos(angle) / mass
        self.state = [x + 0.02 * speed, speed + 0.02 * pull, angle + 0.02 * spin, spin + 0.02 * twist]
        self.steps += 1
        terminated, truncated = abs(self.state[0]) > 2.4 or abs(self.state[2]) > math.radians(12), self.steps == 500
        self.over = terminated or truncated
        episodes += [[float(self.steps), self.steps]] if self.over else []  # each step is worth 1
        return STEP_ROW.pack(*self.state, 1.0, terminated, truncated, 0)


def hello(sessions, key, terms):
    if key not in sessions:
        env, count, seed = terms["env"]["id"], terms["num_envs"], terms["seed"]
        if env != SPEC["env_id"] or count not in range(1, 4097) or len(sessions) == 64:
            return ERROR, 0, ["terms", f"expected {SPEC['env_id']}, up to 4096 of them, in 64 sessions"]
        sessions[key] = [CartPole(seed + i) for i in range(count)], 0, None
    return WELCOME, sessions[key][1], [{"env": SPEC}]


def act(sessions, key, kind, seq, body, *payload):
    envs, newest, answer = sessions[key]
    if seq > newest:
        seed, *others = body if body and kind == RESET else [None]  # others: options, mask, progress
        seeds = seed if isinstance(seed, list) else [seed if seed is None else seed + i for i in range(len(envs))]
        if len(seeds) != len(envs) or others[:2].count(None) < len(others[:2]):
            return ERROR, seq, ["terms", "expected a seed for each environment, and neither options nor a mask"]
        actions = [row[0] for row in ACTION_ROW.iter_unpack(*payload)] if kind == STEP else [0] * len(envs)
        if len(actions) != len(envs) or not {0, 1}.issuperset(actions):
            return ERROR, seq, ["terms", "expected an action, 0 or 1, for each environment"]
        newest, episodes = seq, []
        rows = [env.reset(seeds.pop(0)) if kind == RESET else env.step(actions.pop(0), episodes) for env in envs]
        answer = OBS, seq, [episodes], b"".join(rows)
        sessions[key] = envs, newest, answer
    return answer if seq == newest else None


def reply(epoch, sessions, header, *payload):
    version, kind, sender, *rest = msgpack.unpackb(header)
    slot, asked, seq, *body = rest if version == VERSION else (0, 0, 0)
    if any(type(entry) is not int or not 0 <= entry < 2**63 for entry in (kind, sender, slot, asked, seq)):
        raise ValueError("not a header")
    key, answer = (sender, slot), None
    if version != VERSION:
        answer = ERROR, 0, ["version", f"the message has version {version}, this env-server uses {VERSION}"]
    elif kind == HELLO:
        answer = hello(sessions, key, *body)
    elif kind in (RESET, STEP) and (asked != epoch or key not in sessions):
        answer = ERROR, seq, ["unknown_session", "send HELLO again"]
    elif kind in (RESET, STEP):
        answer = act(sessions, key, kind, seq, body, *payload)
    elif kind == BYE:  # of any epoch: who leaves before WELCOME knows none
        sessions.pop(key, None)
    if answer is None:
        return None
    kind, seq, body, *rows = answer
    header = msgpack.packb([VERSION, kind, *key, epoch, seq, *body])
    return [b"s" + struct.pack("<Q", sender) + header, *rows]


pull, xpub = zmq.Context.instance().socket(zmq.PULL), zmq.Context.instance().socket(zmq.XPUB)
host, _, port = sys.argv[1].rpartition(":")
for index, socket in enumerate((pull, xpub)):
    socket.set(zmq.MAXMSGSIZE, 1 << 20)
    socket.bind(f"{host}:{int(port) + index}" if host.startswith("tcp:") else f"{sys.argv[1]}.{index}")
epoch, sessions = random.SystemRandom().randrange(1, 2**63), {}
while zmq.select([pull, xpub], [], []):
    try:
        if xpub.poll(0) and (event := xpub.recv())[:2] == b"\0s":  # a client has gone
            sessions = {key: value for key, value in sessions.items() if struct.pack("<Q", key[0]) != event[2:]}
        if pull.poll(0) and (frames := reply(epoch, sessions, *pull.recv_multipart())):
            xpub.send_multipart(frames)
    except Exception as error:  # no message of any client may end the server
        print(f"refused a message: {error!r}"[:200], flush=True)
