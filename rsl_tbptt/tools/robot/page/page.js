// The page around the robot: picture, mouse, keys, sliders, and the table of results.

import * as THREE from "three";
import { OrbitControls } from "./lib/OrbitControls.js";
import { load } from "./robot.js";

const WINDOW_S = 5, LIES_S = 1.5, MOST_BEHIND_S = 0.1;
const [PLANE, SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX, MESH] = [0, 2, 3, 4, 5, 6, 7];
const SKY = "#dfe8f2", PULL = "#c2410c", LIGHT = [160, 173, 190, 255], DARK = [132, 146, 166, 255];
const KEYS = { ws: "lin_vel_x", ad: "lin_vel_y", qe: "ang_vel_z" };
const element = (id) => document.getElementById(id);

function shape(model, geom) {
  const [a, b, c] = model.geom_size.subarray(3 * geom);
  const upright = (geometry) => geometry.rotateX(Math.PI / 2); // three's axis is y, MuJoCo's z
  switch (model.geom_type[geom]) {
    case PLANE: return new THREE.PlaneGeometry(100, 100);
    case SPHERE: return new THREE.SphereGeometry(a);
    case CAPSULE: return upright(new THREE.CapsuleGeometry(a, 2 * b));
    case ELLIPSOID: return new THREE.SphereGeometry(1).scale(a, b, c);
    case CYLINDER: return upright(new THREE.CylinderGeometry(a, a, 2 * b));
    case BOX: return new THREE.BoxGeometry(2 * a, 2 * b, 2 * c);
    case MESH: return mesh(model, model.geom_dataid[geom]);
  }
}

function mesh(model, id) {
  const part = (values, first, number) => (
    Array.from(values.subarray(3 * first[id], 3 * (first[id] + number[id]))));
  const vertices = part(model.mesh_vert, model.mesh_vertadr, model.mesh_vertnum);
  const geometry = new THREE.BufferGeometry();
  geometry.setAttribute("position", new THREE.Float32BufferAttribute(vertices, 3));
  geometry.setIndex(part(model.mesh_face, model.mesh_faceadr, model.mesh_facenum));
  geometry.computeVertexNormals();
  return geometry;
}

function bodies(model) {
  const groups = Array.from({ length: model.nbody }, () => new THREE.Group());
  const squares = new THREE.DataTexture(Uint8Array.of(...LIGHT, ...DARK, ...DARK, ...LIGHT), 2, 2);
  squares.wrapS = squares.wrapT = THREE.RepeatWrapping;
  squares.repeat.set(100, 100);
  squares.needsUpdate = true;
  for (let geom = 0; geom < model.ngeom; geom++) {
    const [body, material] = [model.geom_bodyid[geom], model.geom_matid[geom]];
    const isGround = model.body_weldid[body] === 0;
    const [r, g, b, opacity] = material < 0
      ? model.geom_rgba.subarray(4 * geom) : model.mat_rgba.subarray(4 * material);
    if (model.geom_group[geom] > 2 || opacity === 0) continue;
    const look = isGround ? { map: squares } : { color: new THREE.Color(r, g, b), roughness: 0.5 };
    const part = new THREE.Mesh(shape(model, geom), new THREE.MeshStandardMaterial(look));
    part.position.fromArray(model.geom_pos, 3 * geom);
    const [w, ...xyz] = model.geom_quat.subarray(4 * geom, 4 * geom + 4);
    part.quaternion.set(...xyz, w);
    Object.assign(part, { castShadow: !isGround, receiveShadow: true, userData: { isGround } });
    groups[body].add(part);
  }
  return groups;
}

class View {
  constructor(robot) {
    const scene = new THREE.Scene();
    this.bodies = bodies(robot.model);
    const sun = new THREE.DirectionalLight("#ffffff", 2.5);
    sun.position.set(1, -1.5, 4);
    sun.castShadow = true;
    this.at = new THREE.Group().add(sun, sun.target); // the place below the robot
    this.line = new THREE.Line(undefined, new THREE.LineBasicMaterial({ color: PULL }));
    this.line.frustumCulled = false;
    scene.add(new THREE.HemisphereLight("#ffffff", "#8899aa", 2), this.at, this.line);
    scene.add(...this.bodies);
    scene.background = new THREE.Color(SKY);
    scene.fog = new THREE.Fog(SKY, 5, 20);
    const renderer = new THREE.WebGLRenderer({ antialias: true });
    renderer.shadowMap.enabled = true;
    renderer.setPixelRatio(Math.min(devicePixelRatio, 2));
    element("view").prepend(renderer.domElement);
    const camera = new THREE.PerspectiveCamera(45, 1, 0.05, 40);
    camera.up.set(0, 0, 1);
    camera.position.set(1.1, -1.5, 0.8);
    this.controls = new OrbitControls(camera, renderer.domElement);
    this.controls.maxPolarAngle = 1.5; // stays above the ground
    Object.assign(this, { robot, scene, renderer, camera });
    new ResizeObserver(() => this.resize()).observe(element("view"));
    this.pullByMouse(renderer.domElement);
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = element("view");
    this.renderer.setSize(width, height);
    this.camera.aspect = width / height;
    this.camera.updateProjectionMatrix();
  }

  draw() {
    const { data, config, pull } = this.robot;
    this.bodies.forEach((group, body) => {
      group.position.fromArray(data.xpos, 3 * body);
      const [w, ...xyz] = data.xquat.subarray(4 * body, 4 * body + 4);
      group.quaternion.set(...xyz, w);
    });
    const moved = this.bodies[config.base].position.clone().setZ(0).sub(this.at.position);
    this.at.position.add(moved);
    this.camera.position.add(moved);
    this.controls.target.copy(this.at.position).setZ(0.2);
    this.controls.update();
    this.line.visible = pull.select > 0;
    const grabbed = this.bodies[pull.select].localToWorld(new THREE.Vector3(...pull.localpos));
    this.line.geometry.setFromPoints([grabbed, new THREE.Vector3(...pull.refselpos)]);
    this.renderer.render(this.scene, this.camera);
  }

  // A pointer that goes down on the robot pulls there, in the plane of the screen.
  pullByMouse(canvas) {
    const { robot: { pull }, controls, camera } = this, ray = new THREE.Raycaster();
    const plane = new THREE.Plane(), point = new THREE.Vector3();
    const aim = ({ offsetX: x, offsetY: y }) => ray.setFromCamera(new THREE.Vector2(
      2 * x / canvas.clientWidth - 1, 1 - 2 * y / canvas.clientHeight), camera);
    canvas.addEventListener("pointerdown", (event) => {
      aim(event);
      const [hit] = ray.intersectObjects(this.bodies);
      if (!hit || hit.object.userData.isGround) return;
      const body = this.bodies.indexOf(hit.object.parent);
      plane.setFromNormalAndCoplanarPoint(ray.ray.direction, hit.point);
      pull.select = body;
      pull.refselpos.set(hit.point.toArray());
      pull.localpos.set(this.bodies[body].worldToLocal(hit.point).toArray());
      controls.enabled = false;
    }, { capture: true }); // before the controls turn the camera
    canvas.addEventListener("pointermove", (event) => {
      aim(event);
      if (ray.ray.intersectPlane(plane, point)) pull.refselpos.set(point.toArray());
    });
    window.onpointerup = window.onpointercancel = () => {
      pull.select = 0;
      controls.enabled = true;
    };
  }
}

class Results {
  rows = new Map();

  note(robot) {
    const { title: policy, carried } = robot.policy;
    const title = robot.forgets && carried ? `${policy}, forgetting` : policy;
    if (!this.rows.has(title)) {
      const line = element("results").insertRow();
      for (const text of [title, "", 0]) line.insertCell().textContent = text;
      this.rows.set(title, { line, errors: [] });
    }
    const { line, errors } = this.rows.get(title);
    errors.push(robot.trackingError);
    errors.splice(0, errors.length - Math.round(WINDOW_S / robot.config.step_dt));
    const mean = errors.reduce((sum, error) => sum + error) / errors.length;
    line.cells[1].textContent = mean.toFixed(2);
    if (this.now) this.now.className = "";
    line.className = "now";
    this.now = line;
  }
}

function connect(robot) {
  const { commands, policies, step_dt: step } = robot.config;
  const slide = (id, settings, use) => {
    const slider = Object.assign(element(id), settings);
    slider.oninput = () => {
      slider.nextElementSibling.value = slider.value;
      use(slider.valueAsNumber);
    };
    slider.oninput();
  };
  Object.entries(commands).forEach(([id, [min, max]], i) => {
    slide(id, { min, max, value: robot.command[i] }, (x) => { robot.command[i] = x; });
  });
  const delay = 500 * step * Math.max(...robot.terms.map(({ late }) => late));
  slide("late", { step: 1000 * step, value: delay }, (ms) => { robot.late = ms / 1000 / step; });
  slide("errors", {}, (percent) => { robot.errors = percent / 100; });
  slide("gain", {}, (percent) => { robot.gain = percent / 100; });
  const [menu, forgets] = [element("policy"), element("forgets")];
  menu.append(...policies.map(({ title }, i) => new Option(title, i)));
  menu.onchange = () => {
    robot.start(policies[menu.value]);
    forgets.disabled = !robot.policy.carried;
    menu.blur(); // keys are commands again
  };
  menu.onchange();
  forgets.onchange = () => { robot.forgets = forgets.checked; };
  element("reset").onclick = () => robot.start(robot.policy);
  addEventListener("keydown", ({ key }) => {
    if (key === "f") forgets.click();
    if (key === "r") element("reset").click();
    const [[pair, id] = []] = Object.entries(KEYS).filter(([pair]) => pair.includes(key));
    if (!id) return;
    element(id).valueAsNumber += pair.startsWith(key) ? 0.1 : -0.1;
    element(id).oninput();
  });
}

async function main() {
  const robot = await load();
  const view = new View(robot), results = new Results();
  connect(robot);
  element("hint").textContent = "Drag the robot to push it. Then let it forget everything.";
  let [owed, lain, last] = [0, 0, performance.now()];
  for (;;) {
    const now = await new Promise(requestAnimationFrame);
    owed = Math.min(owed + (now - last) / 1000, MOST_BEHIND_S);
    last = now;
    for (const dt = robot.config.step_dt; owed >= dt; owed -= dt) {
      await robot.step();
      results.note(robot);
      if (robot.hasFallen && lain === 0) results.now.cells[2].textContent++;
      lain = robot.hasFallen ? lain + dt : 0;
      if (lain > LIES_S) robot.start(robot.policy);
    }
    view.draw();
  }
}

main().catch((error) => {
  element("hint").textContent = `This page does not work here: ${error.message}`;
  throw error;
});
