#!/usr/bin/env python3
"""Runs the benchmark programs of a Meson build folder: its executables whose names start with bench_."""

import argparse
import json
import os
import subprocess
import sys


def benchmark_programs(build):
    listing = subprocess.run(["meson", "introspect", "--targets", build], stdout=subprocess.PIPE, check=True)
    targets = json.loads(listing.stdout)
    return sorted(target["filename"][0] for target in targets
                  if target["type"] == "executable" and target["name"].startswith("bench_"))


def main():
    parser = argparse.ArgumentParser(description="Runs the benchmark programs of a build folder.")
    parser.add_argument("build", help="the Meson build folder")
    parser.add_argument("names", nargs="*", help="run those whose name contains one of these (default: all)")
    options = parser.parse_args()
    programs = benchmark_programs(options.build)
    if options.names:
        programs = [path for path in programs if any(name in os.path.basename(path) for name in options.names)]
    if not programs:
        print("run_bench: this build has no such benchmark program", file=sys.stderr)
        return 1
    failed = 0
    for path in programs:
        print(f"== {os.path.basename(path)}", flush=True)
        failed += subprocess.run([path], check=False).returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
