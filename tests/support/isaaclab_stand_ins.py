"""Stand-ins for the files that Isaac Lab's stock tasks load from an asset server.

A box on four legs with three joints each has the body and joint names of ANYmal-D's config, and
nothing else of that robot. A small random LSTM replaces its motor, and this repository's cartpole
replaces Isaac Lab's.
"""

import os
from pathlib import Path

import torch

CARTPOLE = Path(__file__).parents[2] / "tasks" / "isaaclab" / "assets" / "cartpole.usda"
LINK = 0.3  # m
LEGS = {"LF": (1, 1), "RF": (1, -1), "LH": (-1, 1), "RH": (-1, -1)}
"""Front or hind, and left or right."""
PARTS = {
    "_HIP": ("_HAA", "X"),
    "_THIGH": ("_HFE", "Y"),
    "_SHANK": ("_KFE", "Y"),
    "_FOOT": ("", "X"),
}
"""Bodies of a leg, with the joint to the one before and its axis; a foot has none."""

BODY = """
    def Xform "{name}" (prepend apiSchemas = ["PhysicsRigidBodyAPI", "PhysicsMassAPI"])
    {{
        point3f physics:centerOfMass = (0, 0, 0)
        float3 physics:diagonalInertia = ({inertia}, {inertia}, {inertia})
        float physics:mass = {mass}
        quatf physics:principalAxes = (1, 0, 0, 0)
        double3 xformOp:translate = {at}
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
        point3f physics:localPos0 = {at}
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
    write(root / "Robots" / "ANYbotics" / "ANYmal-D" / "anymal_d.usd", quadruped())
    ground = "Environments/Grid/default_ground_plane_checker_v1/default_ground_plane.usda"
    write(root / ground, GROUND)
    motor = root / "ActuatorNets" / "ANYbotics" / "anydrive_3_lstm_jit.pt"
    motor.parent.mkdir(parents=True, exist_ok=True)
    torch.jit.script(Motor()).save(motor)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def quadruped() -> str:
    """Return a robot as USDA text; its base stands two links above its feet."""
    prims = [BODY.format(name="base", at=(0.0, 0.0, 0.0), mass=15.0, radius=0.1, inertia=0.15)]
    for leg, (front, left) in LEGS.items():
        parent, at = "base", (0.0, 0.0, 0.0)
        steps = [(0.3 * front, 0.2 * left, 0.0), (0.0, 0.1 * left, 0.0)]
        steps += [(0.0, 0.0, -LINK), (0.0, 0.0, -LINK)]
        for (part, (joint, axis)), step in zip(PARTS.items(), steps, strict=True):
            at, name = tuple(a + b for a, b in zip(at, step, strict=True)), leg + part
            prims.append(BODY.format(name=name, at=at, mass=0.5, radius=0.03, inertia=0.005))
            kind = "Revolute" if joint else "Fixed"
            schemas = '(prepend apiSchemas = ["PhysicsDriveAPI:angular"])' if joint else ""
            names = {"name": leg + (joint or "_foot_fixed"), "parent": parent, "child": name}
            prims.append(JOINT.format(kind=kind, schemas=schemas, axis=axis, at=step, **names))
            parent = name
    return ROBOT.format(prims="".join(prims))
