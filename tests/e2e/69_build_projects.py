#!/usr/bin/env python3
"""husk build of Dockerfiles as public projects have them: a Go server in stages that ends in an empty image, a Node service with
bind and cache mounts for npm, a Python application in a virtual environment. Each is built and run, unchanged, with its base image
from a registry on loopback. The base images are made of the Go of scripts/go, Node and npm from npm, and this host's Python. A project
has its dependencies as files, because the guest has no network."""

# timeout: 1500
import base64
import contextlib
import functools
import hashlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import tarfile
import zipfile

from lib.harness import *
from lib.npm import installed, node
from lib.registry import registry
from lib.roots import Image, copy_program, small_root

PROGRAMS = ("mkdir", "chmod", "cp", "mv", "rm", "env", "id", "uname", "sed", "grep", "dirname", "basename")


def write(place, **files):
    """The files of a project: {path: text}."""
    for name, text in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text) if isinstance(text, bytes) else path.write_text(text)


def usual_root(place, *more):
    root = small_root(place)
    for program in PROGRAMS:
        copy_program(root, shutil.which(program, path="/usr/bin:/bin"))
    for program in more:
        copy_program(root, program)
    (root / "usr/bin").mkdir(parents=True, exist_ok=True)
    if not (root / "usr/bin/env").exists():
        os.link(root / "bin/env", root / "usr/bin/env")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nnode:x:1000:\n")
    return root


def copy_tree(root, path, *without):
    target = root / str(path).lstrip("/")
    shutil.copytree(path, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "testdata", "*_test.go", "test", "docs", "man", *without))


def serve(hub, place, root, name, **config):
    image = Image(config.pop("environment"), **config)
    image.add_tree(root)
    image.oci(place / "layout", "one")
    hub.push(place / "layout", "one", name)


@contextlib.contextmanager
def usual_registry():
    """A registry that has the names without a host."""
    with registry() as hub:
        os.environ["HUSK_REGISTRY"] = hub.host
        try:
            yield hub
        finally:
            del os.environ["HUSK_REGISTRY"]
            husk("image", "prune")


def build(place, name, *options, **more):
    return husk("build", "-t", name, *options, str(place), timeout=900, **more)


def steps(result, what):
    return [line for line in result.error.splitlines() if line.startswith("[") and what in line]


GO_DOCKERFILE = """# syntax=docker/dockerfile:1

ARG GO_VERSION=1
FROM --platform=$BUILDPLATFORM golang:${GO_VERSION} AS build
WORKDIR /src
COPY go.mod go.sum* ./
RUN --mount=type=cache,target=/go/pkg/mod/ \\
    go mod download -x
COPY . .
ARG VERSION=dev
ARG TARGETOS TARGETARCH
RUN --mount=type=cache,target=/go/pkg/mod/ \\
    --mount=type=cache,target=/root/.cache/go-build \\
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \\
    go build -trimpath -ldflags="-s -w -X main.version=${VERSION}" -o /bin/server ./cmd/server

FROM build AS test
RUN go test ./...

FROM scratch AS final
LABEL org.opencontainers.image.title="greeter" \\
      org.opencontainers.image.version="1"
COPY --from=build /bin/server /bin/
EXPOSE 8080
USER 65532:65532
ENTRYPOINT [ "/bin/server" ]
CMD [ "world" ]
"""


def go_root():
    """The folder of a Go: the machine's, or one that is fetched."""
    done = subprocess.run([TOP / "scripts/go", BUILD / "compat/go"], capture_output=True, text=True, timeout=900, check=False)
    assert_equal(done.returncode, 0, done.stderr)
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    return pathlib.Path(subprocess.run([done.stdout.strip(), "env", "GOROOT"], env=environment, capture_output=True, text=True, check=True).stdout.strip())


@test
def test_go_in_stages():
    goroot = go_root()
    with scratch() as place, usual_registry() as hub:
        root = usual_root(place)
        target = root / "usr/local/go"
        (target / "bin").mkdir(parents=True)
        shutil.copy(goroot / "bin/go", target / "bin/go")
        for name in ("VERSION", "go.env"):
            if (goroot / name).exists():
                shutil.copy(goroot / name, target / name)
        tools = next((goroot / "pkg/tool").glob("linux_*"))
        (target / "pkg/tool" / tools.name).mkdir(parents=True)
        for name in ("compile", "link", "asm"):
            shutil.copy(tools / name, target / "pkg/tool" / tools.name / name)
        shutil.copytree(goroot / "pkg/include", target / "pkg/include")
        shutil.copytree(goroot / "src", target / "src", symlinks=True, ignore=lambda folder, names: {
            name for name in names if name in ("testdata", "cmd") or name.endswith("_test.go")})
        serve(hub, place, root, "golang:1", environment=["PATH=/go/bin:/usr/local/go/bin:/usr/bin:/bin", "GOTOOLCHAIN=local", "GOPATH=/go", "HOME=/root"])
        project = place / "project"
        write(project, **{
            "Dockerfile": GO_DOCKERFILE,
            ".dockerignore": "**/.git\n**/*.md\nDockerfile*\nbin/\n",
            "go.mod": "module example.org/greeter\n\ngo 1.19\n",
            "README.md": "not copied\n",
            "internal/greet/greet.go": 'package greet\n\nfunc Hello(who string) string { return "hello " + who }\n',
            "cmd/server/main.go": 'package main\n\nimport (\n\t"os"\n\n\t"example.org/greeter/internal/greet"\n)\n\nvar version = "none"\n\nfunc main() {\n'
                                  '\tos.Stdout.WriteString(greet.Hello(os.Args[1]) + " from " + version + "\\n")\n\tif _, err := os.Stat("/etc/passwd"); err == nil {\n'
                                  '\t\tos.Exit(3)\n\t}\n\tif os.Getuid() != 65532 {\n\t\tos.Exit(4)\n\t}\n}\n',
        })
        result = build(project, "greeter", "--build-arg", "VERSION=v1.2.3")
        assert not steps(result, "go test"), result.error
        assert_equal(husk("run", "-t", "greeter").text, "hello world from v1.2.3\n")
        image = husk("image", "inspect", "greeter").json()
        assert_equal((image["command"], image["user"], image["ports"]), (["/bin/server", "world"], "65532:65532", ["8080/tcp"]))
        # One changed source file: modules are not asked for again, and the compiler's own cache is still there.
        write(project, **{"internal/greet/greet.go": 'package greet\n\nfunc Hello(who string) string { return "good day, " + who }\n', "README.md": "changed\n"})
        result = build(project, "greeter", "--build-arg", "VERSION=v2")
        assert_equal([("go mod" in line) for line in steps(result, "cached: RUN")], [True], result.error)
        assert_equal(husk("run", "-t", "greeter").text, "good day, world from v2\n")
        husk("image", "rm", "greeter")


NODE_DOCKERFILE = """# syntax=docker/dockerfile:1

ARG NODE_VERSION=20

FROM node:${NODE_VERSION}-slim AS base
WORKDIR /usr/src/app

FROM base AS deps
RUN --mount=type=bind,source=package.json,target=package.json \\
    --mount=type=bind,source=package-lock.json,target=package-lock.json \\
    --mount=type=bind,source=vendor,target=vendor \\
    --mount=type=cache,target=/root/.npm \\
    npm ci --omit=dev

FROM base AS final
ENV NODE_ENV=production PORT=3000
USER node
COPY package.json .
COPY --from=deps /usr/src/app/node_modules ./node_modules
COPY . .
EXPOSE ${PORT}
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s \\
    CMD node -e "fetch('http://127.0.0.1:3000/').then(r => process.exit(r.ok ? 0 : 1))"
CMD [ "node", "src/index.js" ]
"""


def npm_package(name, **files):
    """What npm pack makes."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"package/{path}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return made.getvalue()


@test
def test_node_with_cache_mounts():
    program, npm = node(), installed("npm") / "node_modules/npm"
    with scratch() as place, usual_registry() as hub:
        root = usual_root(place)
        copy_program(root, program, "/usr/bin/node")
        shutil.copytree(npm, root / "usr/lib/node_modules/npm", symlinks=True, ignore=shutil.ignore_patterns("docs", "man"))
        os.symlink("../lib/node_modules/npm/bin/npm-cli.js", root / "usr/bin/npm")
        (root / "home/node").mkdir(parents=True)
        serve(hub, place, root, "node:20-slim", environment=["PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/root"], Cmd=["node"])
        tarball = npm_package("greeter", **{"package.json": json.dumps({"name": "greeter", "version": "1.0.0", "main": "index.js"}),
                                            "index.js": "module.exports = who => `hello ${who}`;\n"})
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(tarball).digest()).decode()
        wanted = {"greeter": "file:vendor/greeter-1.0.0.tgz"}
        project = place / "project"
        write(project, **{
            "Dockerfile": NODE_DOCKERFILE,
            ".dockerignore": "**/node_modules\n**/.git\n**/npm-debug.log\nDockerfile*\n*.md\n",
            "package.json": json.dumps({"name": "service", "version": "1.0.0", "dependencies": wanted}),
            "package-lock.json": json.dumps({"name": "service", "version": "1.0.0", "lockfileVersion": 3, "requires": True, "packages": {
                "": {"name": "service", "version": "1.0.0", "dependencies": wanted},
                "node_modules/greeter": {"version": "1.0.0", "resolved": "file:vendor/greeter-1.0.0.tgz", "integrity": integrity}}}),
            "vendor/greeter-1.0.0.tgz": tarball,
            "node_modules/greeter/index.js": "throw new Error('of the host');\n",
            "src/index.js": "const greet = require('greeter');\nconst server = require('http').createServer((request, response) => {\n"
                            "  response.end(`${greet(process.env.NODE_ENV)} ${process.getuid()} ${process.cwd()}`);\n"
                            "});\nserver.listen(process.env.PORT, '127.0.0.1', () => console.log('listening'));\n",
        })
        build(project, "service")
        box = create("-t", "service")
        ask = "fetch('http://127.0.0.1:3000/').then(r => r.text()).then(t => console.log(t), () => process.exit(7))"
        husk("exec", "-d", box, "--", "node", "src/index.js")
        until(lambda: husk("exec", box, "--", "node", "-e", ask, code=None).code == 0, "the service answers")
        assert_equal(husk("exec", box, "--", "node", "-e", ask).text, "hello production 1000 /usr/src/app\n")
        remove(box)
        image = husk("image", "inspect", "service").json()
        assert_equal(image["healthcheck"]["StartPeriod"], 10 * 10**9)
        assert_equal((image["command"], image["user"], image["ports"]), (["node", "src/index.js"], "node", ["3000/tcp"]))
        # Another source file: npm does not run again.
        with open(project / "src/index.js", "a", encoding="ascii") as file:
            file.write("// changed\n")
        assert_equal(steps(build(project, "service"), "npm ci"), [])
        husk("image", "rm", "service")


PYTHON_DOCKERFILE = """# syntax=docker/dockerfile:1

ARG PYTHON_VERSION=3
FROM python:${PYTHON_VERSION}-slim AS builder
ENV PYTHONDONTWRITEBYTECODE=1 \\
    PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/venv
ENV PATH="/opt/venv/bin:$PATH"
COPY requirements.txt .
RUN --mount=type=cache,target=/root/.cache/pip \\
    --mount=type=bind,source=wheels,target=/wheels \\
    pip install --no-index --find-links=/wheels -r requirements.txt

FROM python:${PYTHON_VERSION}-slim
ARG UID=10001
ENV PYTHONUNBUFFERED=1 \\
    PATH="/opt/venv/bin:$PATH"
RUN <<EOF
set -e
echo "appuser:x:${UID}:${UID}::/app:/bin/sh" >> /etc/passwd
echo "appuser:x:${UID}:" >> /etc/group
EOF
COPY --from=builder /opt/venv /opt/venv
COPY --chmod=755 <<'EOF' /usr/local/bin/docker-entrypoint.sh
#!/bin/sh
set -e
if [ "$1" = "serve" ]; then
    shift
    set -- python -m app "$@"
fi
exec "$@"
EOF
WORKDIR /app
COPY --chown=appuser:appuser app ./app
USER appuser
EXPOSE 8000
STOPSIGNAL SIGINT
HEALTHCHECK --interval=5m --timeout=3s CMD ["python", "-c", "import app"]
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["serve", "world"]
"""


def wheel(name, text):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(f"{name}.py", text)
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{name}-1.0.dist-info/RECORD", f"{name}.py,,\n{name}-1.0.dist-info/METADATA,,\n{name}-1.0.dist-info/WHEEL,,\n{name}-1.0.dist-info/RECORD,,\n")
    return made.getvalue()


@functools.lru_cache(maxsize=None)
def debian_python():
    """Debian's Python: the program, its library, and the wheels that venv takes pip from."""
    program = os.path.realpath("/usr/bin/python3")
    library = pathlib.Path("/usr/lib") / os.path.basename(program)
    wheels = pathlib.Path("/usr/share/python-wheels")
    if not library.is_dir() or not (library / "ensurepip").is_dir() or not wheels.is_dir():
        raise Skip("python3-venv is not installed")
    return program, library, wheels


@test
def test_python_in_a_venv():
    program, library, wheels = debian_python()
    with scratch() as place, usual_registry() as hub:
        root = usual_root(place, program)
        for name in ("python3", "python"):
            os.symlink(os.path.basename(program), root / "usr/bin" / name)
        copy_tree(root, library, "config-*", "idlelib", "tkinter", "lib2to3")
        copy_tree(root, wheels)
        for extension in (library / "lib-dynload").glob("*.so"):
            for line in subprocess.run(["ldd", extension], capture_output=True, text=True, check=True).stdout.splitlines():
                path = line.split(" => ")[-1].split(" (")[0].strip()
                if path.startswith("/lib") and not (root / path.lstrip("/")).exists():
                    (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(os.path.realpath(path), root / path.lstrip("/"))
        serve(hub, place, root, "python:3-slim", environment=["PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "HOME=/root"], Cmd=["python"])
        project = place / "project"
        write(project, **{
            "Dockerfile": PYTHON_DOCKERFILE,
            ".dockerignore": "**/__pycache__\n**/*.pyc\n.venv\n",
            "requirements.txt": "greeter==1.0\n",
            "wheels/greeter-1.0-py3-none-any.whl": wheel("greeter", "def hello(who):\n    return f'hello {who}'\n"),
            ".venv/bin/python": "of the host\n",
            "app/__init__.py": "",
            "app/__main__.py": "import os, sys, greeter\nprint(greeter.hello(sys.argv[1]), os.getuid(), os.getcwd(), sys.prefix)\n",
        })
        build(project, "application")
        assert_equal(husk("run", "-t", "application").text, "hello world 10001 /app /opt/venv\n")
        assert_equal(husk("run", "-t", "application", "--shell", "python -m app you; ls -l app/__init__.py | cat > /tmp/l; read a b owner c < /tmp/l; echo $owner").text,
                     "hello you 10001 /app /opt/venv\nappuser\n")
        image = husk("image", "inspect", "application").json()
        assert_equal((image["command"], image["stop_signal"], image["healthcheck"]["Test"]),
                     (["docker-entrypoint.sh", "serve", "world"], "SIGINT", ["CMD", "python", "-c", "import app"]))
        # Another requirement: the virtual environment is kept, pip runs again.
        write(project, **{"requirements.txt": "greeter>=1.0\n"})
        result = build(project, "application")
        assert_equal(len(steps(result, "cached: RUN python -m venv")), 1, result.error)
        assert_equal(len(steps(result, "] RUN --mount=type=cache,target=/root/.cache/pip")), 1, result.error)
        husk("image", "rm", "application")


main()
