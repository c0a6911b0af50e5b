"""The tree's own rules: who may include whom, a README in each folder, files that stay small."""

import os
import re
import shutil
import subprocess

import script_test
import sources

MAX_LINES = 1000
QUOTED_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')


def problem_of_include(path, number, included):
    room, other = sources.room_of(path), sources.room_of(included)
    if not os.path.isfile(os.path.join(sources.ROOT, included)):
        return f"{path}:{number}: '{included}' is not a path from the root"
    if room is None or other is None:
        return f"{path}:{number}: {path if room is None else included} lies in no room of sources.ORDER"
    if not sources.may_include(room, other):
        return f"{path}:{number}: {room} must not include {other}"
    return None


def includes_follow_the_order():
    problems = []
    for path in sources.c_sources():
        for number, line in enumerate(sources.lines_of(path), 1):
            include = QUOTED_INCLUDE.match(line)
            problem = include and problem_of_include(path, number, include[1])
            if problem:
                problems.append(problem)
    return problems


def includes_of_the_order_are_refused():
    """The check itself: each of these must be found wrong."""
    wrong = [("core/size.c", "io/store/store.h"), ("io/store/store.c", "kernels/device.h"), ("kernels/device.c", "io/store/store.h"),
             ("offload/plan/planner.c", "model/hf/config.h"), ("core/size.c", "size.h")]
    return [f"{path} may include {other}" for path, other in wrong if problem_of_include(path, 1, other) is None]


def every_folder_has_a_readme():
    return [f"{folder}/README.md is missing" for folder in sources.folders()
            if not os.path.isfile(os.path.join(sources.ROOT, folder, "README.md"))]


def files_stay_small():
    counted = ((path, len(sources.lines_of(path))) for path in sources.c_sources())
    return [f"{path} has {count} lines; {MAX_LINES} are the most" for path, count in counted if count > MAX_LINES]


OTHER_FOLDERS = {".ci", "docs", "python", "tools"}
ROOT_FILES = {".clang-format", ".clang-tidy", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "dev",
              "main.c", "meson.build", "meson_options.txt"}


def one_file_reads_json():
    """Limits, and what is JSON, are the same everywhere: core/json.c alone calls the library's parser."""
    return [f"{path} calls json_load; core/json.h is the program's reader of JSON" for path in sources.c_sources()
            if not path.startswith("tests/") and path != "core/json.c"
            and any(re.search(r"\bjson_load", line) for line in sources.lines_of(path))]


def the_root_holds_what_is_named():
    """Runs that were tried by hand in the root leave files there, which a commit of everything would take."""
    if not os.path.exists(os.path.join(sources.ROOT, ".git")) or shutil.which("git") is None:
        raise script_test.Skip("no git")
    listed = subprocess.run(["git", "-C", sources.ROOT, "-c", "safe.directory=*", "ls-files", "-z"], capture_output=True, text=True,
                            check=True)
    known = ROOT_FILES | OTHER_FOLDERS | set(map(sources.top_of, sources.ROOMS))
    return [f"{name} lies in the root, but is not named in this test"
            for name in sorted({sources.top_of(path) for path in listed.stdout.split("\0") if path} - known)]


# Fragments without a subject, and pronouns without a noun, at the beginning of a comment of C or of the scripts.
BEGINNINGS = r"(Of|Those|What|Whether|Likewise|The same of)\b"
FRAGMENT = re.compile(r"(?:/\*|//) " + BEGINNINGS)
SCRIPT_FRAGMENT = re.compile(r'(?:^|\s)(?:# |""")' + BEGINNINGS)


def comments_have_a_subject():
    """Scripts are those of Python, the shell and Meson."""
    scripts = [path for folder in (*dict.fromkeys(map(sources.top_of, sources.ROOMS)), "tools")
               for path in sources.files_of(folder, (".py", ".sh", "meson.build"))]
    looked_at = [(path, FRAGMENT) for path in sources.c_sources()] + [(path, SCRIPT_FRAGMENT) for path in scripts]
    return [f"{path}:{number}: a comment begins with '{found[1]}'; name its subject"
            for path, fragment in looked_at
            for number, line in enumerate(sources.lines_of(path), 1) if (found := fragment.search(line))]


# Calls that follow a path from the root or the current directory, and with it any link.
BY_PATH = re.compile(r"(?<![\w.>])(open|fopen|creat|unlink|rename|rmdir|mkdir|opendir|chmod|lstat)\(")
REACH_RUNS = ("core/files/", "run/folder/", "run/", "run/stores/", "io/queue/", "io/store/", "io/safetensors/")
# Block devices, data that the user names, and what is kept about the machine.
NOT_OF_RUNS = ("io/store/block.c", "core/files/cache.c", "run/data/")


def files_of_runs_are_reached_through_their_folder():
    """By core/confine.h."""
    return [f"{path}:{number}: {called[1]} may lead out of the folder of a run; call sw_path_{called[1]} or its like"
            for path in sources.c_sources() if path.startswith(REACH_RUNS) and not path.startswith(NOT_OF_RUNS)
            for number, line in enumerate(sources.lines_of(path), 1) if (called := BY_PATH.search(line.split("/*")[0]))]


script_test.run(includes_follow_the_order, includes_of_the_order_are_refused, every_folder_has_a_readme,
                files_stay_small, one_file_reads_json, the_root_holds_what_is_named, comments_have_a_subject,
                files_of_runs_are_reached_through_their_folder)
