"""Which cuBLASLt the device loads, and what it says where there is none that will do: libraries in the place of
NVIDIA's, in folders as Python wheels and toolkits have them."""

import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "structure"))
import script_test  # noqa: E402
import limits  # noqa: E402

PROGRAM, WHOLE, PARTIAL = (os.environ[name] for name in ("SW_LOAD_CUBLASLT", "SW_FAKE_CUBLASLT", "SW_PARTIAL_CUBLASLT"))
NAME = "libspillway_cublasLt.so."  # as the program under test is compiled; NVIDIA's own may be here
WHEEL = {"12": "lib/python3.11/site-packages/nvidia/cublas/lib", "13": "lib/python3.12/site-packages/nvidia/cu13/lib"}
SCRATCH = tempfile.mkdtemp(dir=os.environ.get("TMPDIR", "."))


def environment_with(name, *majors, library=WHOLE):
    """A Python environment whose wheels have the library of these versions."""
    root = os.path.join(SCRATCH, name)
    for major in majors:
        os.makedirs(os.path.join(root, WHEEL[major]))
        shutil.copy(library, os.path.join(root, WHEEL[major], NAME + major))
    os.makedirs(os.path.join(root, "bin"), exist_ok=True)
    os.symlink("/bin/true", os.path.join(root, "bin", "python3"))
    return root


def load(root, fake="130100 16"):
    return limits.run([PROGRAM], capture_output=True, text=True, check=True,
                          env={"PATH": os.path.join(root, "bin"), "FAKE_CUBLASLT": fake}).stdout


def lacking(what, said, *words):
    return [f"{what}: no '{word}' in {said!r}" for word in words if word not in said]


def both_majors_serve():
    """The one that the program was built with comes first."""
    problems = []
    for name, majors, version, said in (("twelve", ("12",), "120804 16", "cuBLASLt 12.8.4"),
                                        ("thirteen", ("13",), "130100 16", "cuBLASLt 13.1.0"),
                                        ("both", ("12", "13"), "130002 16", "cuBLASLt 13.0.2")):
        root = environment_with(name, *majors)
        path = os.path.join(root, "bin", "..", WHEEL[majors[-1]], NAME + majors[-1])
        problems += lacking(name, load(root, version), "loaded: " + said, os.path.basename(path), WHEEL[majors[-1]])
    return problems


def others_are_refused_by_name():
    root = environment_with("other", "13")
    problems = lacking("14", load(root, "140000 16"), "refused", "--device cuda", NAME + "13", "140000", "12 and 13",
                       "LD_LIBRARY_PATH", "--device cpu")
    problems += lacking("11", load(root, "11604 16"), "refused", "11604")
    problems += lacking("a larger description", load(root, "130100 4096"), "refused", NAME + "13", "too new",
                        "130100")
    root = environment_with("partial", "13", library=PARTIAL)
    return problems + lacking("a library without products", load(root), "refused", "no function cublasLtMatmul",
                              NAME + "13", "--device cpu")


def nothing_is_found():
    said = load(environment_with("nothing"))
    return lacking("nothing", said, "refused", NAME + "13", "CUDA Toolkit", "wheel", "LD_LIBRARY_PATH", "--device cpu")


try:
    script_test.run(both_majors_serve, others_are_refused_by_name, nothing_is_found)
finally:
    shutil.rmtree(SCRATCH, ignore_errors=True)
