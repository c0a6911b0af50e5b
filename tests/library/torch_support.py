"""For tests of the Python package that need other packages: finds them, and skips checks by name where one is missing."""

import importlib
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PYTHON = os.path.join(ROOT, "python")
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "structure"), PYTHON]
if len(sys.argv) > 1:
    os.environ["SPILLWAY_LIBRARY"] = os.path.abspath(sys.argv[1])
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
import script_test  # noqa: E402
import spillway  # noqa: E402, F401

SEED = 5


def found(name):
    """A package, or None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


torch = found("torch")


def needs(*packages):
    """Gives a check a folder of its own and fixed random numbers, and skips it where a package is missing."""
    def decorate(check):
        def checked():
            for package in packages:
                if found(package) is None:
                    raise script_test.Skip(f"no {package}")
            torch.manual_seed(SEED)
            with tempfile.TemporaryDirectory() as folder:
                return check(os.path.join(folder, "store"))
        checked.__name__ = check.__name__
        return checked
    return decorate
