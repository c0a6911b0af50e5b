"""The results of `./dev gpu`: one JSON file for a GPU and a day, into which every stage puts its own, and a table."""

import json
import os
import re

VERSION = 1
GIGA, TERA = 1e9, 1e12


def file_name(device, date):
    words = re.sub(r"[^a-z0-9]+", "-", device["name"].lower()).strip("-")
    return f"{words}-{date}.json"


def load(path, device, date):
    """What is there of the same GPU and day, or an empty document. A driver that changed in between is an error."""
    if not os.path.exists(path):
        return {"spillway_gpu": VERSION, "device": device, "date": date, "stages": {}}
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    if document.get("spillway_gpu") != VERSION or document.get("device") != device:
        raise ValueError(f"{path} is of another machine or version; move it away, or name another day")
    return document


def merge(document, stage, commit, results):
    """Takes the place of what the stage had; those of other stages stay."""
    document["stages"][stage] = {"commit": commit, "ok": bool(results) and all(one["ok"] for one in results.values()),
                                 "results": results}
    return document


def save(path, document):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1, sort_keys=True)
        file.write("\n")
    os.replace(path + ".new", path)


def at(value, *path):
    """What lies there, or None."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else value[name] if isinstance(value, list) and value else None
    return value


# Of each bench: what a row says, where it lies, what it is divided by, and what it must reach.
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
               ("GPU of copies there", ("precisions", 0, "on_device", "of_copy"), 1, None)),
    "gemm": (("Tflop/s", ("totals", "all", "flops_per_s"), TERA, None),),
    "attention": (("forward Tflop/s", ("forward", "flops_per_s"), TERA, None),
                  ("backward Tflop/s", ("backward", "flops_per_s"), TERA, None)),
    "compute": (("block's products of its time", ("totals", "block", "products_share"), 1, None),
                ("all products of all time", ("totals", "all", "products_share"), 1, None)),
    "step": STEP_ROWS,
}
# What the issue asks of single results, beside the rows above.
REQUIRED = {("step-7b", "tokens/s"): 14000.0}
RESIDENT_SHARE = 0.95


def rows_of(name, values):
    for what, path, unit, least in ROWS.get(values.get("bench"), ()):
        found = at(values, *path)
        if found is not None:
            yield what, found / unit, REQUIRED.get((name, what), least)
    resident = at(values, "steps", "resident", "placed_ratio")
    if resident is not None:
        yield "of the resident speed", 1 / resident, RESIDENT_SHARE


def table(document):
    """A line for each number, with what it must reach, and one for whatever failed."""
    lines = [f"{document['device']['name']}, driver {document['device']['driver']}, {document['date']}"]
    for stage, held in document["stages"].items():
        for name, result in sorted(held["results"].items()):
            if not result["ok"]:
                lines.append(f"{stage:<11} {name:<28} FAILED: {result['error']}")
            elif "counts" in result:
                lines.append(f"{stage:<11} {name:<28} {result['counts']}")
            for what, value, least in rows_of(name, result.get("values") or {}):
                mark = "" if least is None else f"  {'reaches' if value >= least else 'BELOW'} {least:g}"
                lines.append(f"{stage:<11} {name:<28} {what:<30} {value:>12.4g}{mark}")
    return lines
