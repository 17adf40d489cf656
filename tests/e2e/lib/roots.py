"""Root filesystems and container images from a few files of this host."""

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile


def copy_program(root, program, place=None):
    """Copies a program of this host and its libraries into a root, the program to the same place or another."""
    listing = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    for path, place in [(program, place or program), *((path, path) for path in re.findall(r"(/\S+) \(0x", listing))]:
        target = root / place.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(path), target)


def small_root(place):
    """A root filesystem of a few files: a shell and a little more."""
    root = place / "root"
    for name in ("etc", "tmp", "root", "bin"):
        os.makedirs(root / name, exist_ok=True)
    for program in ("/bin/dash", "/bin/cat", "/bin/ls", "/bin/sleep"):
        copy_program(root, program)
    shutil.copy(root / "bin/dash", root / "bin/sh")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    (root / "etc/who").write_text("version one\n")
    return root


class Image:
    """A container image that is being built: layers (bytes of tars), then written as an OCI layout or in docker's format."""

    def __init__(self, environment=(), architecture="amd64", **config):
        self.environment, self.architecture, self.layers = list(environment), architecture, []
        self.more = {"Cmd": ["/bin/sh"], **config}

    def add_tree(self, root):
        """A layer of a directory."""
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w") as archive:
            archive.add(root, ".")
        self.layers.append(made.getvalue())

    def add(self, *entries):
        """A layer of (name, content) and (name, TarInfo type, link or mode) entries, in this order."""
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w") as archive:
            for name, *rest in entries:
                entry = tarfile.TarInfo(name)
                entry.mode = 0o644
                if isinstance(rest[0], str):
                    entry.size = len(rest[0])
                    archive.addfile(entry, io.BytesIO(rest[0].encode()))
                    continue
                entry.type = rest[0]
                if entry.type == tarfile.DIRTYPE:
                    entry.mode = rest[1] if len(rest) > 1 else 0o755
                elif len(rest) > 1:
                    entry.linkname = rest[1]
                archive.addfile(entry)
        self.layers.append(made.getvalue())

    def config(self):
        document = {
            "os": "linux",
            "architecture": self.architecture,
            "config": {"Env": self.environment, **self.more},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest(layer)}" for layer in self.layers]},
        }
        return json.dumps(document).encode()

    def oci(self, layout, reference=None, nest=0, more=()):
        """Writes an OCI layout; its layers are packed in turn with gzip, zstd and not at all. `nest`: indexes in between.
        `more`: descriptors beside it."""
        os.makedirs(layout / "blobs/sha256", exist_ok=True)
        packed = [
            (gzip.compress(data, 1, mtime=0), "+gzip") if i % 3 == 0 else (zstd(data), "+zstd") if i % 3 == 1 else (data, "")
            for i, data in enumerate(self.layers)
        ]
        kind = "application/vnd.oci.image"
        manifest = {
            "schemaVersion": 2,
            "config": blob(layout, self.config(), f"{kind}.config.v1+json"),
            "layers": [blob(layout, data, f"{kind}.layer.v1.tar{how}") for data, how in packed],
        }
        entry = blob(layout, json.dumps(manifest).encode(), f"{kind}.manifest.v1+json")
        entry["platform"] = {"os": "linux", "architecture": self.architecture}
        entries = [entry, *more]
        for _ in range(nest):
            index = json.dumps({"schemaVersion": 2, "manifests": entries}).encode()
            entries = [blob(layout, index, f"{kind}.index.v1+json")]
        if reference:
            entries[0]["annotations"] = {"org.opencontainers.image.ref.name": reference}
        (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))
        return entries[0]

    def docker(self, path, *tags):
        """Writes the format of docker save."""
        config = self.config()
        members = {f"{digest(config)}.json": config}
        names = []
        for layer in self.layers:
            names.append(f"{digest(layer)[:20]}/layer.tar")
            members[names[-1]] = layer
        manifest = [{"Config": f"{digest(config)}.json", "RepoTags": list(tags), "Layers": names}]
        members["manifest.json"] = json.dumps(manifest).encode()
        with tarfile.open(path, "w") as archive:
            for name, data in members.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))


def digest(data):
    return hashlib.sha256(data).hexdigest()


def zstd(data):
    return subprocess.run(["zstd", "-q", "-c"], input=data, capture_output=True, check=True).stdout


def blob(layout, data, kind):
    (layout / "blobs/sha256" / digest(data)).write_bytes(data)
    return {"mediaType": kind, "digest": f"sha256:{digest(data)}", "size": len(data)}
