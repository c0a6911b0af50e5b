"""Makes spillway's wheel: the Python package, libspillway.so, the program, and the libraries that both need. `./dev wheel` calls it.

usage: wheel.py LIBRARY PROGRAM OUT    the files of the library and of the program; the folder for the wheel"""

import base64
import hashlib
import os
import re
import stat
import subprocess
import sys
import tempfile
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Libraries that every system has, those of the C library and the compiler (PEP 600); all others go into the wheel.
SYSTEM = re.compile(r"^(linux-vdso|ld-linux.*|lib(c|m|dl|rt|pthread|util|resolv|gcc_s|stdc\+\+))\.so")
MACHINE = os.uname().machine


def output_of(*words):
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def needed_by(path):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", output_of("readelf", "-d", path))


def found_for(path):
    """The file of each library that the loader finds for this one, by soname."""
    return dict(re.findall(r"^\s*(\S+) => (/\S+)", output_of("ldd", path), re.M))


def in_order(path):
    """The libraries that a file needs and that go into the wheel, those that others need first: file by soname."""
    places, order = found_for(path), {}

    def visit(file):
        for name in needed_by(file):
            if SYSTEM.match(name) or name in order:
                continue
            if name not in places:
                sys.exit(f"wheel.py: {file} needs {name}, which is not found")
            visit(places[name])
            order[name] = places[name]
    visit(path)
    return order


def soname_of(path):
    return re.search(r"\(SONAME\).*\[(.*)\]", output_of("readelf", "-d", path))[1]


def glibc_of(files):
    """The newest version of the C library whose symbols these need: (2, 36)."""
    versions = re.findall(r"\bGLIBC_(\d+)\.(\d+)", "".join(output_of("readelf", "-V", file) for file in files))
    return max((int(major), int(minor)) for major, minor in versions)


def version_of():
    with open(os.path.join(ROOT, "meson.build"), encoding="utf-8") as file:
        return re.search(r"^  version: '(.*)'", file.read(), re.M)[1]


def description():
    """The text that a package index shows: what the package is, and the first program of the guide."""
    with open(os.path.join(ROOT, "python", "spillway", "__init__.py"), encoding="utf-8") as file:
        about = re.match(r'"""(.*?)"""', file.read(), re.S)[1]
    with open(os.path.join(ROOT, "docs", "guide", "library.md"), encoding="utf-8") as file:
        program = re.search(r"^```python\n.*?^```\n", file.read(), re.M | re.S)[0]
    return f"# {about}\n{program}\nThe store needs a file system with direct I/O, such as ext4 or xfs. `help(spillway.AdamW)` explains each argument.\n"


def metadata(version):
    return (f"Metadata-Version: 2.1\nName: spillway\nVersion: {version}\nSummary: AdamW whose state lives in host memory and on NVMe, "
            "in a crash-safe store\nLicense: Apache-2.0\nRequires-Python: >=3.10\nClassifier: Operating System :: POSIX :: Linux\n"
            f"Description-Content-Type: text/markdown\n\n{description()}")


class Wheel:
    """A wheel that is written, and the list of its files (PEP 427)."""

    def __init__(self, path, info, level):
        self.archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=level)
        self.info, self.records = info, []

    def add(self, name, content, mode=0o644):
        entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
        entry.external_attr = (stat.S_IFREG | mode) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self.records.append(f"{name},sha256={digest},{len(content)}\n")
        self.archive.writestr(entry, content, compresslevel=self.archive.compresslevel)

    def close(self):
        name = f"{self.info}/RECORD"
        self.archive.writestr(name, "".join([*self.records, f"{name},,\n"]))
        self.archive.close()


def stripped(file, folder):
    to = os.path.join(folder, "stripped")
    subprocess.run(["strip", "--strip-unneeded", "-o", to, file], check=True)
    with open(to, "rb") as made:
        return made.read()


def make(library, program, out, level=9):
    """Writes the wheel, and returns its path. level: of compression, from 0 to 9."""
    of_library, version = {**in_order(library), os.path.basename(soname_of(library)): library}, version_of()
    libraries = {**of_library, **in_order(program)}
    glibc = glibc_of([program, *libraries.values()])
    tag = f"py3-none-manylinux_{glibc[0]}_{glibc[1]}_{MACHINE}"
    info, package = f"spillway-{version}.dist-info", os.path.join(ROOT, "python", "spillway")
    path = os.path.join(out, f"spillway-{version}-{tag}.whl")
    wheel = Wheel(path, info, level)
    for name in sorted(os.listdir(package)):
        if name.endswith(".py") or name == "py.typed":
            with open(os.path.join(package, name), "rb") as file:
                wheel.add(f"spillway/{name}", file.read())
    with tempfile.TemporaryDirectory() as folder:
        for name, file in libraries.items():
            wheel.add(f"spillway/lib/{name}", stripped(file, folder))
        wheel.add("spillway/bin/spillway", stripped(program, folder), 0o755)
    wheel.add("spillway/lib/order.txt", "".join(f"{name}\n" for name in of_library).encode())
    wheel.add(f"{info}/entry_points.txt", b"[console_scripts]\nspillway = spillway._program:main\n")
    wheel.add(f"{info}/METADATA", metadata(version).encode())
    with open(os.path.join(ROOT, "LICENSE"), "rb") as file:
        wheel.add(f"{info}/LICENSE", file.read())
    wheel.add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: spillway\nRoot-Is-Purelib: false\nTag: {tag}\n".encode())
    wheel.close()
    return path


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    os.makedirs(sys.argv[3], exist_ok=True)
    print(make(*sys.argv[1:]))
