"""Two hosts: network namespaces that one wire joins, each with a name and an address of its own."""

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "structure"))
import script_test  # noqa: E402

NETWORK = "10.77.1"
FAR_RANKS = (2, 3)
# mpirun's way to the other host: what it would have ssh do there.
AGENT = """#!/bin/sh
shift
exec ip netns exec {far} unshare --uts sh -c "hostname {far}; $*"
"""


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)


class Hosts:
    """Two hosts, gone at the end with whatever still runs there."""

    def __init__(self):
        self.names = [f"sw{os.getpid()}{which}" for which in "ab"]
        self.made = False

    def remove(self):
        for name in self.names:
            for process in ip("netns", "pids", name).stdout.split():
                os.kill(int(process), signal.SIGKILL)
            ip("netns", "del", name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def make(self):
        if self.made:
            return
        if os.geteuid() != 0 or any(shutil.which(tool) is None for tool in ("ip", "unshare")):
            raise script_test.Skip("no network namespaces")
        self.folder = tempfile.mkdtemp(prefix="spillway-hosts-", dir=os.environ.get("TMPDIR", "."))
        # In a chroot they can be made but not entered: what is no mount point is not shared with another namespace.
        if any(ip("netns", *words).returncode
               for name in self.names for words in (("add", name), ("exec", name, "true"))):
            self.remove()
            raise script_test.Skip("no network namespaces")
        atexit.register(self.remove)
        near, far = self.names
        ip("link", "add", "wire", "netns", near, "type", "veth", "peer", "name", "wire", "netns", far)
        for number, name in enumerate(self.names, 1):
            ip("-n", name, "addr", "add", f"{NETWORK}.{number}/24", "dev", "wire")
            for link in ("lo", "wire"):
                ip("-n", name, "link", "set", link, "up")
        self.agent = os.path.join(self.folder, "agent")
        with open(self.agent, "w", encoding="utf-8") as file:
            file.write(AGENT.format(far=far))
        os.chmod(self.agent, 0o755)
        self.made = True

    def launcher(self):
        """mpirun on the first host, with two ranks on each."""
        self.make()
        return ["ip", "netns", "exec", self.names[0], "env", f"TMPDIR={self.folder}", "mpirun", "--host", f"{NETWORK}.1:2,{NETWORK}.2:2", "--mca",
                "plm_rsh_agent", os.path.abspath(self.agent), "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include",
                f"{NETWORK}.0/24", "--mca", "oob_tcp_if_include", f"{NETWORK}.0/24"]

    def cut(self):
        ip("-n", self.names[0], "link", "set", "wire", "down")

    def join(self):
        ip("-n", self.names[0], "link", "set", "wire", "up")


HOSTS = Hosts()
