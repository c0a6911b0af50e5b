"""The results of `./dev gpu`: one JSON file, into which every command puts its own at once, and the lines that say it."""

import json
import os
import re

VERSION = 2
GIGA, TERA = 1e9, 1e12


def kept_name(document):
    words = re.sub(r"[^a-z0-9]+", "-", document["device"]["name"].lower()).strip("-")
    return f"{words}-{document['date']}.json"


def new(device, date):
    return {"spillway_gpu": VERSION, "device": device, "date": date, "stages": {}}


def load(path, device):
    """Returns the results that are there, of the same GPU and driver; a driver that changed in between is an error."""
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    if document.get("spillway_gpu") != VERSION or document.get("device") != device:
        raise ValueError(f"{path} is of another machine or version; move it away, or name another folder (--out)")
    return document


def put(document, stage, commit, name, result):
    """Takes the place of what the command had; those of others stay."""
    held = document["stages"].setdefault(stage, {"results": {}})
    held["results"][name] = {**result, "commit": commit}


def has(document, stage, name):
    """Tells whether a command has ended, well or badly, rather than been cut off."""
    result = document["stages"].get(stage, {"results": {}})["results"].get(name)
    return result is not None and not result.get("limit")


def is_good(document, stage, name):
    """Tells whether a command has ended well."""
    return document["stages"].get(stage, {"results": {}})["results"].get(name, {}).get("ok", False)


def save(path, document):
    """A reader finds the file as it was or as it is, whenever this program ends."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.write("\n")
    os.replace(path + ".new", path)


def at(value, *path):
    """Returns the value at a path of names within a document, or None."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else value[name] if isinstance(value, list) and value else None
    return value


# One row for each bench: its name, where the figure lies, its divisor, and its goal.
STEP_ROWS = (("tokens/s", ("speed", "tokens_per_s"), 1, None),
             ("model flops of peak", ("speed", "of_peak"), 1, None),
             ("model flops of products", ("speed", "of_products"), 1, 0.75),
             ("of the speed of light", ("speed", "speed_of_light", "share"), 1, None),
             ("predicted to placed", ("steps", "predicted", "placed_ratio"), 1, None))
ROWS = {
    "copy": (("upload GB/s", ("sizes", -1, "upload", "bytes_per_s"), GIGA, None),
             ("download GB/s", ("sizes", -1, "download", "bytes_per_s"), GIGA, None),
             ("upload, both run, of alone", ("sizes", -1, "both", "of_upload"), 1, 0.9),
             ("download, both run, of alone", ("sizes", -1, "both", "of_download"), 1, 0.9)),
    "update": (("host Gparam/s", ("precisions", 0, "parameters_per_s"), GIGA, None),
               ("GPU Gparam/s", ("precisions", 0, "on_device", "parameters_per_s"), GIGA, None),
               ("GPU of copies there", ("precisions", 0, "on_device", "of_copy"), 1, 0.85)),
    "gemm": (("Tflop/s", ("totals", "all", "flops_per_s"), TERA, None),),
    "attention": (("forward Tflop/s", ("forward", "flops_per_s"), TERA, None),
                  ("backward Tflop/s", ("backward", "flops_per_s"), TERA, None)),
    "compute": (("block's products of its time", ("totals", "block", "products_share"), 1, None),
                ("all products of all time", ("totals", "all", "products_share"), 1, None)),
    "step": STEP_ROWS,
}
# Goals of single results, beside the rows above: attention at head size 128 over 8,192 tokens.
REQUIRED = {("step-7b", "tokens/s"): 14000.0, ("attention-8192", "forward Tflop/s"): 300.0,
            ("attention-8192", "backward Tflop/s"): 220.0}
RESIDENT_SHARE, PRODUCTS_SHARE = 0.95, 0.9
SHOWN_FACTS = ("gpu", "clocks", "host")


def peer_rows(values):
    for what, pair in values.get("pairs", {}).items():
        if "of_peer" in pair:
            yield f"{what}, of PyTorch's speed", pair["of_peer"], PRODUCTS_SHARE if pair["of_peer_least"] else None


def rows_of(name, values):
    """Each number of a result that is worth a line: what it is, its value, and what it must reach or None."""
    for what, path, unit, least in ROWS.get(values.get("bench"), ()):
        found = at(values, *path)
        if found is not None:
            yield what, found / unit, REQUIRED.get((name, what), least)
    resident = at(values, "steps", "resident", "placed_ratio")
    if resident:
        yield "of the resident speed", 1 / resident, RESIDENT_SHARE
    yield from peer_rows(values)


def texts_of(name, result):
    """Returns remarks beside the numbers."""
    values = result.get("values") or {}
    if "absent" in result:
        yield f"absent: {result['absent']} is not here"
    elif not result["ok"]:
        yield f"{'CUT OFF' if result.get('limit') else 'FAILED'}: {result['error']}"
    elif "counts" in result:
        yield result["counts"]
    for fact in SHOWN_FACTS:
        if isinstance(values.get(fact), dict):
            yield ", ".join(f"{key} {value}" for key, value in values[fact].items())
    for key, value in values.items():
        if key.startswith("tool "):
            yield f"{key}: {value}"
    for reason in sorted({pair["not_compared"] for pair in values.get("pairs", {}).values() if "not_compared" in pair}):
        yield f"not compared with PyTorch: {reason}"
    for finding in values.get("findings", ()):
        if finding["what"] in ("gpu", "self-test"):
            yield f"{finding['what']}: {finding['found']}"


def lines_of(stage, name, result):
    head = f"{stage:<15} {name:<24}"
    lines = [f"{head} {text}" for text in texts_of(name, result)]
    for what, value, least in rows_of(name, result.get("values") or {}):
        mark = "" if least is None else f"  {'reaches' if value >= least else 'BELOW'} {least:g}"
        lines.append(f"{head} {what:<40} {value:>10.4g}{mark}")
    return lines or [f"{head} done"]


def table(document):
    """A line for each number, with what it must reach, and one for whatever failed."""
    lines = [f"{document['device']['name']}, driver {document['device']['driver']}, {document['date']}"]
    for stage, held in document["stages"].items():
        for name, result in held["results"].items():
            lines += lines_of(stage, name, result)
    return lines
