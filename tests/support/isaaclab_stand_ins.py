"""Stand-ins for the files that Isaac Lab's stock tasks load from an asset server.

A box on four legs with three joints each has the body and joint names of ANYmal-D's and Go2's
configs, and nothing else of those robots. A small random LSTM replaces ANYmal's motor, and this
repository's cartpole replaces Isaac Lab's.
"""

import os
from pathlib import Path

import torch

CARTPOLE = Path(__file__).parents[2] / "tasks" / "isaaclab" / "assets" / "cartpole.usda"
LINK = 0.3  # m
ROBOTS = {
    "ANYbotics/ANYmal-D/anymal_d.usd": {
        "legs": {"LF": (1, 1), "RF": (1, -1), "LH": (-1, 1), "RH": (-1, -1)},
        "bodies": ("_HIP", "_THIGH", "_SHANK", "_FOOT"),
        "joints": ("_HAA", "_HFE", "_KFE"),
    },
    "Unitree/Go2/go2.usd": {
        "legs": {"FL": (1, 1), "FR": (1, -1), "RL": (-1, 1), "RR": (-1, -1)},
        "bodies": ("_hip", "_thigh", "_calf", "_foot"),
        "joints": ("_hip_joint", "_thigh_joint", "_calf_joint"),
    },
}

BODY = """
    def Xform "{name}" (prepend apiSchemas = ["PhysicsRigidBodyAPI", "PhysicsMassAPI"])
    {{
        point3f physics:centerOfMass = (0, 0, 0)
        float3 physics:diagonalInertia = ({inertia}, {inertia}, {inertia})
        float physics:mass = {mass}
        quatf physics:principalAxes = (1, 0, 0, 0)
        double3 xformOp:translate = ({x}, {y}, {z})
        uniform token[] xformOpOrder = ["xformOp:translate"]

        def Sphere "shape" (prepend apiSchemas = ["PhysicsCollisionAPI"])
        {{
            double radius = {radius}
        }}
    }}
"""
JOINT = """
    def Physics{kind}Joint "{name}" {schemas}
    {{
        uniform token physics:axis = "{axis}"
        rel physics:body0 = </Robot/{parent}>
        rel physics:body1 = </Robot/{child}>
        point3f physics:localPos0 = ({x}, {y}, {z})
        point3f physics:localPos1 = (0, 0, 0)
        quatf physics:localRot0 = (1, 0, 0, 0)
        quatf physics:localRot1 = (1, 0, 0, 0)
        float physics:lowerLimit = -180
        float physics:upperLimit = 180
    }}
"""
ROBOT = """#usda 1.0
(
    defaultPrim = "Robot"
    metersPerUnit = 1
    upAxis = "Z"
)

def Xform "Robot" (prepend apiSchemas = ["PhysicsArticulationRootAPI"])
{{{prims}}}
"""
GROUND = """#usda 1.0
(
    defaultPrim = "Ground"
    metersPerUnit = 1
    upAxis = "Z"
)

def Xform "Ground"
{
    def Plane "plane" (prepend apiSchemas = ["PhysicsCollisionAPI"])
    {
        uniform token axis = "Z"
    }

    def Xform "Environment"
    {
        double3 xformOp:scale = (1, 1, 1)
        uniform token[] xformOpOrder = ["xformOp:scale"]

        def Mesh "Geometry"
        {
            texCoord2f[] primvars:st = [(0, 0), (1, 0), (1, 1), (0, 1)]
        }
    }
}
"""


class Motor(torch.nn.Module):
    """An actuator network as Isaac Lab loads it: an LSTM named ``lstm`` and its state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(2, 4, batch_first=True)
        self.torque = torch.nn.Linear(4, 1)

    def forward(
        self, error: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        output, state = self.lstm(error, state)
        return 20.0 * self.torque(output), state


def write_asset_root() -> None:
    """Write the files that stock tasks load from an asset server, where this process reads them."""
    root = Path(os.environ["ISAACSIM_ASSET_ROOT"]) / "Isaac" / "IsaacLab"
    write(root / "Robots" / "Classic" / "Cartpole" / "cartpole.usd", CARTPOLE.read_text())
    for path, names in ROBOTS.items():
        write(root / "Robots" / path, quadruped(**names))
    ground = "Environments/Grid/default_ground_plane_checker_v1/default_ground_plane.usda"
    write(root / ground, GROUND)
    motor = root / "ActuatorNets" / "ANYbotics" / "anydrive_3_lstm_jit.pt"
    motor.parent.mkdir(parents=True, exist_ok=True)
    torch.jit.script(Motor()).save(motor)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def quadruped(legs: dict, bodies: tuple, joints: tuple) -> str:
    """Return a robot as USDA text; its base stands two links above its feet."""
    prims = [body("base", (0.0, 0.0, 0.0), mass=15.0, radius=0.1)]
    for leg, (front, left) in legs.items():
        parent, at = "base", (0.0, 0.0, 0.0)
        steps = [(0.3 * front, 0.2 * left, 0.0), (0.0, 0.1 * left, 0.0)]
        steps += [(0.0, 0.0, -LINK), (0.0, 0.0, -LINK)]
        for name, joint, axis, step in zip(bodies, (*joints, None), "XYYX", steps, strict=True):
            at = tuple(a + b for a, b in zip(at, step, strict=True))
            prims.append(body(leg + name, at, mass=0.5, radius=0.03))
            prims.append(connect(leg, joint, axis, parent, leg + name, step))
            parent = leg + name
    return ROBOT.format(prims="".join(prims))


def body(name: str, at: tuple, mass: float, radius: float) -> str:
    x, y, z = at
    return BODY.format(name=name, x=x, y=y, z=z, mass=mass, radius=radius, inertia=0.01 * mass)


def connect(leg: str, joint: str | None, axis: str, parent: str, child: str, step: tuple) -> str:
    x, y, z = step
    return JOINT.format(
        kind="Revolute" if joint else "Fixed",
        name=leg + (joint or "_foot_fixed"),
        schemas='(prepend apiSchemas = ["PhysicsDriveAPI:angular"])' if joint else "",
        axis=axis,
        parent=parent,
        child=child,
        x=x,
        y=y,
        z=z,
    )
