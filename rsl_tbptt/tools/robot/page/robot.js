// What the robot does and a policy sees, as in training: MuJoCo and ONNX Runtime in WebAssembly.
// robot.json describes both; rsl_tbptt/tools/robot/web.py writes it.

import loadMujoco from "./lib/mujoco.js";
import * as ort from "./lib/ort.wasm.bundle.min.mjs";

const LONGEST_DELAY = 16;

// The terms of observations, by training's functions.
const TERMS = {
  builtin_sensor: ({ data }, { adr, width }) => data.sensordata.subarray(adr, adr + width),
  base_ang_vel: (robot) => robot.velocity.slice(3),
  base_lin_vel: (robot) => robot.velocity.slice(0, 3),
  projected_gravity: (robot) => robot.rotation.slice(6).map((up) => -up),
  joint_pos_rel: ({ data }, { qpos, zero }) => qpos.map((adr, i) => data.qpos[adr] - zero[i]),
  joint_vel_rel: ({ data }, { dof }) => dof.map((adr) => data.qvel[adr]),
  last_action: (robot) => robot.actions[0],
  generated_commands: (robot) => robot.command,
  // What else the teacher of the Go1 sees.
  action_before: (robot) => robot.actions[1],
  arrived_before: (robot) => robot.actions[1].map((x) => clamp(robot.gain * x, 1)),
  actuator_force: ({ data }) => data.actuator_force,
  feet_contact: (robot) => robot.contacts,
  feet_air_time: (robot) => robot.airTimes,
  motor_gain: (robot, { width }) => Array(width).fill(robot.gain),
  zeros: (robot, { width }) => Array(width).fill(0),
};

const clamp = (x, limit) => (limit === null ? x : Math.min(Math.max(x, -limit), limit));

async function unpacked(path) {
  const response = await fetch(new URL(path, import.meta.url));
  if (!response.ok) throw new Error(`${path}: ${response.status} ${response.statusText}`);
  const raw = new Uint8Array(await response.arrayBuffer());
  if (raw[0] !== 0x1f || raw[1] !== 0x8b) return raw; // some servers unpack a .gz themselves
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

export async function load() {
  const files = ["mujoco", "ort-wasm-simd-threaded"].map((name) => `lib/${name}.wasm.gz`);
  files.push("robot.json", "scene.xml.gz");
  const [wasmBinary, runtime, json, xml] = await Promise.all(files.map(unpacked));
  const text = (bytes) => new TextDecoder().decode(bytes);
  const config = JSON.parse(text(json));
  Object.assign(ort.env.wasm, { numThreads: 1, wasmBinary: runtime });
  const mujoco = await loadMujoco({ wasmBinary });
  const model = mujoco.MjModel.from_xml_string(text(xml));
  await Promise.all(config.policies.map(async (policy) => {
    policy.session = await ort.InferenceSession.create(await unpacked(policy.file));
  }));
  return new Robot(mujoco, model, config);
}

class Robot {
  command = [0.5, 0, 0];
  forgets = false; // clears the memory before every step
  late = 0; // by which sensors are late, in control steps
  errors = 1; // of the sensors, in units of training's largest
  gain = 1; // share of an action that arrives at the motors

  constructor(mujoco, model, config) {
    Object.assign(this, { mujoco, model, config, data: new mujoco.MjData(model) });
    model.vis.map.stiffness = 30; // times the mass of 5 kg: 150 N/m, damped
    this.pull = Object.assign(new mujoco.MjvPerturb(), { localmass: 5, active: 1 });
    this.start(config.policies[0]);
  }

  // Takes effect before the next step: a step may be waiting for its actions.
  start(policy) {
    Object.assign(this, { policy, starts: true });
  }

  get terms() {
    return Object.values(this.policy.inputs).flat();
  }

  begin() {
    const { mujoco, model, data, config, policy } = this;
    mujoco.mj_resetData(model, data);
    data.qpos.set(config.qpos);
    config.actions.actuators.forEach((id, i) => { data.ctrl[id] = config.actions.offset[i]; });
    mujoco.mj_forward(model, data);
    this.actions = [0, 1].map(() => config.actions.scale.map(() => 0));
    this.landed = this.contacts = this.airTimes = config.feet.map(() => 0);
    for (const term of this.terms) {
      term.drawn = Array.from({ length: term.width }, () => 2 * Math.random() - 1);
      term.sensed = term.shown = null;
    }
    this.memory = new ort.Tensor("float32", new Float32Array(policy.carried), [1, policy.carried]);
    this.starts = false;
  }

  get rotation() { // of the base, row by row
    return [...this.data.xmat.subarray(9 * this.config.base, 9 * this.config.base + 9)];
  }

  get velocity() { // of the base in its frame: linear, then angular
    const [r, adr] = [this.rotation, this.config.base_dof];
    const [x, y, z, ...angular] = this.data.qvel.subarray(adr, adr + 6);
    return [...[0, 1, 2].map((i) => r[i] * x + r[3 + i] * y + r[6 + i] * z), ...angular];
  }

  get trackingError() {
    const [x, y] = this.velocity;
    return Math.hypot(x - this.command[0], y - this.command[1]);
  }

  get hasFallen() {
    return this.rotation[8] < 0; // upside down
  }

  observe() {
    return Object.fromEntries(Object.entries(this.policy.inputs).map(([group, terms]) => (
      [group, terms.flatMap((term) => this.seen(term))])));
  }

  seen(term) {
    let value = [...TERMS[term.function](this, term)];
    if (term.noise !== undefined) { // a sensor
      const wrong = (i) => term.error * term.drawn[i] + term.noise * (2 * Math.random() - 1);
      value = value.map((x, i) => x + this.errors * wrong(i));
      term.sensed = [value, ...(term.sensed ?? [])].slice(0, LONGEST_DELAY);
      value = term.sensed[Math.min(Math.round(this.late), term.sensed.length - 1)];
    }
    if (term.clip) value = value.map((x) => Math.min(Math.max(x, term.clip[0]), term.clip[1]));
    value = value.map((x, i) => x * term.scale[i]);
    term.shown = [...(term.shown ?? Array(term.history).fill(value)).slice(1), value];
    return term.shown.flat();
  }

  async act(observations) {
    const { session, carried } = this.policy;
    const feeds = {};
    for (const [group, values] of Object.entries(observations)) {
      feeds[group] = new ort.Tensor("float32", values, [1, values.length]);
    }
    if (carried) {
      feeds.adapt_hx = this.memory;
      feeds.is_init = new ort.Tensor("bool", [this.forgets], [1]);
    }
    const results = await session.run(feeds);
    this.memory = results["next,adapt_hx"];
    return [...results.actions.data];
  }

  async step() {
    const { mujoco, model, data, config } = this;
    const { actuators, scale, offset, clip } = config.actions;
    if (this.starts) this.begin();
    const actions = (await this.act(this.observe())).map((x) => clamp(x, clip));
    this.actions = [actions, this.actions[0]];
    actuators.forEach((id, i) => {
      data.ctrl[id] = offset[i] + scale[i] * clamp(this.gain * actions[i], clip);
    });
    data.xfrc_applied.fill(0);
    mujoco.mjv_applyPerturbForce(model, data, this.pull);
    for (let i = 0; i < config.substeps; i++) mujoco.mj_step(model, data);
    if (config.forward) mujoco.mj_forward(model, data);
    // A contact is seen one step late, and a foot's time in the air counts until then.
    this.contacts = this.landed;
    this.landed = config.feet.map((adr) => Number(data.sensordata[adr] > 0));
    this.airTimes = this.airTimes.map((t, i) => (this.contacts[i] ? 0 : t) + config.step_dt);
  }
}
