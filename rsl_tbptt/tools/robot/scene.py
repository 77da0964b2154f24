"""A robot and its ground as one MuJoCo file, for a page in the browser.

The file moves as the simulator's model does. It has no textures, and meshes that are only seen
have fewer faces.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any
from xml.etree import ElementTree

import numpy as np

FACES = 4000
"""Most faces of a mesh that is only seen."""
SMALLEST = 5e-4
"""Size of the first grid for fewer faces, in metres."""


def one_file(spec: Any) -> str:
    """Return a model as XML that refers to no other file, with the model's comment.

    Args:
        spec: The model, a ``mujoco.MjSpec``. Its bodies get their inertia as numbers, so that no
            mesh decides it.

    Raises:
        ValueError: If the ground is a field of heights, which a page does not draw, or MuJoCo
            cannot read the file.
    """
    model = spec.compile()
    if model.nhfield:
        raise ValueError(f"The ground has {model.nhfield} fields of heights, expected flat ground.")
    for body in spec.bodies[1:]:
        number = body.id
        body.explicitinertial, body.mass = True, model.body_mass[number]
        body.ipos, body.iquat = model.body_ipos[number], model.body_iquat[number]
        body.inertia, body.fullinertia = model.body_inertia[number], [np.nan] * 6
    spec.compile()
    root = ElementTree.fromstring(spec.to_xml())
    for defaults in root.iter("default"):
        for nameless in defaults.findall("default"):
            if not nameless.get("class"):  # MuJoCo writes it and does not read it
                defaults.remove(nameless)
    for assets in root.iter("asset"):
        for asset in [*assets]:
            if asset.tag == "mesh":
                _write_mesh(asset, model)
            elif asset.tag == "material":
                asset.attrib.pop("texture", None)
                for layer in asset.findall("layer"):
                    asset.remove(layer)
            else:
                assets.remove(asset)
    comment = spec.comment.replace("--", "- -")  # XML has no two of them in a comment
    text = f"<!--\n{comment}\n-->\n{ElementTree.tostring(root, encoding='unicode')}"
    import_module("mujoco").MjModel.from_xml_string(text)
    return text


def _write_mesh(element: Any, model: Any) -> None:
    """Write a mesh's numbers into its element, in the frame of its file."""
    mujoco, name = import_module("mujoco"), element.get("name")
    mesh = model.mesh(name).id
    first, number = model.mesh_vertadr[mesh], model.mesh_vertnum[mesh]
    vertices = model.mesh_vert[first : first + number].astype(float)
    first, number = model.mesh_faceadr[mesh], model.mesh_facenum[mesh]
    faces = model.mesh_face[first : first + number]
    # The compiler moves a mesh into its own frame of inertia.
    rotation = np.zeros(9)
    mujoco.mju_quat2Mat(rotation, model.mesh_quat[mesh])
    vertices = vertices @ rotation.reshape(3, 3).T + model.mesh_pos[mesh]
    geoms = (model.geom_dataid == mesh) & (model.geom_type == mujoco.mjtGeom.mjGEOM_MESH)
    if not (model.geom_contype[geoms] | model.geom_conaffinity[geoms]).any():
        vertices, faces = with_fewer_faces(vertices, faces)
    element.attrib.clear()
    element.attrib |= {"name": name, "inertia": "shell", "vertex": _text(vertices, ".5g")}
    element.attrib["face"] = _text(faces, "d")


def with_fewer_faces(vertices: np.ndarray, faces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Join the vertices in each cell of a grid until :data:`FACES` suffice.

    Args:
        vertices: Shape (V, 3), in metres.
        faces: Numbers of vertices. Shape (F, 3).

    Returns:
        Vertices and faces.
    """
    cell = SMALLEST
    while len(faces) > FACES:
        _, joined, counts = np.unique(
            np.round(vertices / cell), axis=0, return_inverse=True, return_counts=True
        )
        joined = joined.reshape(-1)
        means = np.zeros((len(counts), 3))
        np.add.at(means, joined, vertices)
        vertices, faces = means / counts[:, None], joined[faces]
        a, b, c = faces.T
        faces = faces[(a != b) & (b != c) & (c != a)]
        cell *= 1.3
    return vertices, faces


def _text(values: np.ndarray, form: str) -> str:
    return " ".join(format(value, form) for value in values.ravel())
