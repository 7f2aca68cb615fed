"""Builds the images of the Containerfile, and starts a fleet of them: tracker, agent, optimizer, a client and the page.

    python scripts/container_check.py [OPTION ...]     # options of `podman build`, such as --build-arg BASE=debian

Where podman can run no container, as within many containers, the same commands run in the mounted images by chroot.
This needs root. Builds take minutes and the network.
"""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import tempfile
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGETS = ("tracker", "agent", "optimizer", "web", "agent-cuda", "optimizer-cuda")
CUDA_LIBRARIES = {"agent-cuda": ("libcudart",), "optimizer-cuda": ("libcudart", "libnvrtc")}
STATE = "/var/lib/tvm-fleet"

_CHROOT = f"""
mkdir -p "$1{STATE}" && mount --bind "$2" "$1{STATE}"
mount --rbind /dev "$1/dev" && mount --rbind /proc "$1/proc" && mount -t tmpfs none "$1/tmp"
root=$1
shift 2
exec chroot "$root" /usr/bin/env -i "$@"
"""

_LOAD_CUDA = """
import ctypes, pathlib, sys, sysconfig
site = pathlib.Path(sysconfig.get_path("purelib"))
for name in sys.argv[1:]:
    ctypes.CDLL(str(next(site.glob(f"nvidia/**/{name}.so.*"))))
"""

_SERVING_TRACKER = re.compile(r"tracker listening on \S+:(\d+)")
_ASKING_AGENT = re.compile(r"fleet agent approve ([\w-]+)")
_STARTED_OPTIMIZER = re.compile(r"(optimizer started)")
_SERVING_PAGE = re.compile(r"fleet web login --port (\d+)")
_SERVING_AGENT = re.compile(r"agent listening on \S+, serving (.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A built image, and a folder that stands for its volume."""

    name: str
    entry: tuple[str, ...]
    environment: tuple[str, ...]
    """Each "NAME=VALUE"."""

    volume: Path
    root: Path | None
    """Its mounted files; None: it runs as a container."""

    def command(self, *words: str) -> list[str]:
        """Return a command that runs words inside."""
        if self.root is None:
            options = ["--rm", "--interactive", "--network=host", f"--volume={self.volume}:{STATE}"]
            return ["podman", "run", *options, "--entrypoint", words[0], self.name, *words[1:]]
        inside = ["unshare", "--mount", "sh", "-ec", _CHROOT, "sh"]
        return [*inside, str(self.root), str(self.volume), *self.environment, *words]

    def run(self, *words: str, given: str = "") -> str:
        """Run words inside with this input; return their output."""
        done = subprocess.run(self.command(*words), input=given, stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout

    @contextmanager
    def serving(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        """Run the entry point with more options during the block."""
        command = self.command(*self.entry, *options)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            try:
                yield process
            finally:
                process.terminate()


def can_run() -> bool:
    """Tell whether podman can run a container here."""
    command = ["podman", "run", "--rm", "--rootfs", "/:O", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def build(target: str, options: list[str], runs: bool, folder: Path, stack: ExitStack) -> Image:
    """Build an image. Unless containers can run, mount a writable copy of it."""
    name = f"fleet-{target}"
    subprocess.run(["podman", "build", "--target", target, "--tag", name, *options, str(ROOT)], check=True)
    config = json.loads(podman("image", "inspect", name))[0]["Config"]
    volume = folder / target
    volume.mkdir()
    root = None
    if not runs:
        container = podman("create", name)
        stack.callback(podman, "rm", container)
        root = Path(podman("mount", container))
    return Image(
        name=name,
        entry=tuple(config["Entrypoint"]),
        environment=tuple(config["Env"]),
        volume=volume,
        root=root,
    )


def podman(*words: str) -> str:
    """Return the output of a podman command."""
    return subprocess.run(["podman", *words], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def wait_for(process: subprocess.Popen[str], pattern: re.Pattern[str]) -> str:
    """Return the group of the first line that matches.

    Raises:
        SystemExit: the process ended without one.
    """
    for line in process.stdout or ():
        print(f"  {line.rstrip()}", flush=True)
        if found := pattern.search(line):
            return found[1]
    raise SystemExit(f"{process.args!r} ended before it printed {pattern.pattern!r}")


def start_fleet(image_of: Callable[[str], Image]) -> None:
    """Start all processes, approve the agent, and acquire its device."""
    tracker, agent, optimizer, web = map(image_of, TARGETS[:4])
    with ExitStack() as stack:
        serving = stack.enter_context(tracker.serving("--no-discovery", "--port", "0"))
        address = ("--tracker", f"127.0.0.1:{wait_for(serving, _SERVING_TRACKER)}")
        board = stack.enter_context(agent.serving(*address))
        tracker.run("fleet", "agent", "approve", wait_for(board, _ASKING_AGENT), *address)
        wait_for(board, _SERVING_AGENT)
        print(tracker.run("fleet", "acquire", "cpu", *address, "--", "echo", "held a device of the agent's image"))
        token = tracker.run("fleet", "tracker", "token", "create", "--role", "user", *address)
        optimizer.run("fleet", "login", *address, given=token)
        wait_for(stack.enter_context(optimizer.serving(*address)), _STARTED_OPTIMIZER)
        token = tracker.run("fleet", "tracker", "token", "create", "--role", "user", *address)
        web.run("fleet", "login", *address, given=token)
        page = stack.enter_context(web.serving(*address, "--url", "https://fleet.test", "--port", "0"))
        port = wait_for(page, _SERVING_PAGE)
        shown = read_page(web.run("fleet", "web", "login", "--port", port), int(port))
        if "-cpu</a>" not in shown:
            raise SystemExit(f"the page does not show the agent's device:\n{shown}")
        print("  the page shows the agent's device", flush=True)


def read_page(link: str, port: int) -> str:
    """Sign in by a link and return the page of the fleet. Does a proxy's part: pages are at another name, by TLS."""
    address = urllib.parse.urlsplit(link)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Host": address.netloc, "Origin": f"https://{address.netloc}"}
    form = {**headers, "Content-Type": "application/x-www-form-urlencoded"}
    connection.request("POST", "/login", address.query, form)
    signed_in = connection.getresponse()
    signed_in.read()
    connection.request("GET", "/", headers={**headers, "Cookie": signed_in.headers["Set-Cookie"].partition(";")[0]})
    return connection.getresponse().read().decode()


def check_cuda(image: Image, libraries: tuple[str, ...]) -> None:
    """Load NVIDIA's libraries in an image, and start its command. A GPU would need the host's driver, too.

    Raises:
        subprocess.CalledProcessError: one is missing, or does not load.
    """
    image.run("python", "-c", _LOAD_CUDA, *libraries)
    image.run(*image.entry[:3], "--help")
    print(f"  {image.name} loads {', '.join(libraries)}", flush=True)


def main() -> int:
    runs = can_run()
    print("images run as containers" if runs else "no container can run here: images run by chroot", flush=True)
    with tempfile.TemporaryDirectory(prefix="fleet-containers-") as folder, ExitStack() as stack:
        images = {target: build(target, sys.argv[1:], runs, Path(folder), stack) for target in TARGETS}
        start_fleet(images.__getitem__)
        for target, libraries in CUDA_LIBRARIES.items():
            check_cuda(images[target], libraries)
    print("all images work")
    return 0


if __name__ == "__main__":
    sys.exit(main())
