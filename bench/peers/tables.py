#!/usr/bin/env python3
"""Makes the tables and pictures of docs/evidence/peers.md and README.md from the results of `./dev peers`. The same results
give the same bytes.

usage: tables.py FILE [--evidence FILE] [--readme FILE] [--pictures DIR]
"""

import argparse
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = (HERE, os.path.join(HERE, "..", "..", "tools"))
import picture  # noqa: E402
import summary  # noqa: E402
from marked import put_between_marks  # noqa: E402

MARK = "bench/peers/tables.py"


def cell_of(contender, figure):
    """A median, then the least and the most of the rounds."""
    middle, ends = summary.median(contender, figure), summary.spread(contender, figure)
    if middle is None:
        return ""
    name = "seconds_s" if figure.endswith("_s") and not figure.endswith("_per_s") else "_bytes_per_s"
    low, high = (summary.text_of(name, end).split()[0] for end in ends)
    return f"{summary.text_of(name, middle).strip()} ({low} to {high})"


def heading(figure):
    return {"step_s": "a step", "update_s": "an update"}.get(figure) or figure.removesuffix("_bytes_per_s")


def row_of(pair, contender, figures):
    if contender["missing"]:
        return [contender["name"], *[""] * (len(figures) + 3), contender["missing"]]
    peak, written = (summary.median(contender, name) for name in ("peak_bytes", "step_written_bytes"))
    return [contender["name"], *(cell_of(contender, figure) for figure in figures),
            summary.text_of("peak_bytes", peak) if peak else "", "" if written is None else f"{written / summary.GB:.2f} GB",
            summary.losses_text(pair, contender), contender["settings"]]


def losses_table(pair):
    """Losses of each step side by side, of the first round."""
    trained = [one for one in pair["contenders"] if not one["missing"] and one["runs"] and one["runs"][0].get("losses")]
    if not trained:
        return []
    lines = ["", f"Losses by step, which may differ by {pair['loss_tolerance']:.2g} of the first:", "",
             f"| step | {' | '.join(one['name'] for one in trained)} |", "|---" * (1 + len(trained)) + "|"]
    for number in range(min(len(one["runs"][0]["losses"]) for one in trained)):
        lines.append(f"| {number + 1} | {' | '.join(format(one['runs'][0]['losses'][number], '.4f') for one in trained)} |")
    return lines


def pair_lines(pair):
    figures = summary.figures_of(pair)
    heads = ["contender", *map(heading, figures), "peak memory", "written a step", "losses apart", "settings"]
    rows = [row_of(pair, one, figures) for one in pair["contenders"]]
    used = [i for i in range(len(heads)) if i in (0, len(heads) - 1) or any(row[i] for row in rows)]
    table = [f"| {' | '.join(row[i] for i in used)} |" for row in (heads, *rows)]
    table.insert(1, "|---" * len(used) + "|")
    goals = ["", *(f"- {summary.goal_line(pair, goal)}" for goal in pair["goals"])] if pair["goals"] else []
    return [f"### {pair['title']}", "",
            f"Pair `{pair['name']}`, {pair['rounds']} rounds in turn, {pair['time'][:10]}, commit {pair['commit']}.", "", *table,
            *goals, *losses_table(pair), ""]


def machine_line(machine):
    return (f"{machine['cpu']}, {machine['threads']} threads, {machine['memory_bytes'] / summary.GIB:.3g} GiB, "
            f"Linux {machine['kernel']}.")


def machine_lines(pairs):
    """The machine; several machines each with the pairs that were measured there."""
    of = {}
    for pair in pairs:
        of.setdefault(machine_line(pair["machine"]), []).append(f"`{pair['name']}`")
    return list(of) if len(of) == 1 else [f"- {', '.join(names)}: {line}" for line, names in of.items()]


def peers_line(pairs):
    """The versions of the peers that were measured, and why the others were not."""
    found = [(name, one) for pair in pairs for name, one in pair["versions"].items()]
    here = {f"{name} {one['version']}": name for name, one in found if not one["missing"]}
    absent = {name: one["missing"] for name, one in found if name not in here.values()}
    return (f"Peers: {', '.join(here)}." +
            (f" Not here: {'; '.join(f'{name}: {why}' for name, why in absent.items())}." if absent else ""))


def evidence(results, pictures):
    lines = [*machine_lines(results["pairs"]), "", peers_line(results["pairs"]), "",
             "Figures are medians over the rounds; the least and the most are in brackets.", ""]
    for pair in results["pairs"]:
        lines += pair_lines(pair)
        if pictures and picture.can_draw(pair):
            lines += [f"![{pair['title']}]({pictures}/{picture.name_of(pair)})", ""]
    return "\n".join(lines).rstrip() + "\n"


def figure_text(figure, value):
    """A figure with its unit and three significant digits."""
    if figure.endswith("_bytes_per_s"):
        return f"{value / summary.GB:#.3g} GB/s"
    return f"{value * 1e3:#.3g} ms" if value < 0.1 else f"{value:#.3g} s"


def ratio_text(ratio):
    """How many times the peer's speed ours is; a loss in percent of the peer's speed."""
    slower = round(100 * (1 - ratio))
    return f"{slower}% slower" if slower > 0 else f"{ratio:.2f}× as fast"


def workload_of(pair, goal):
    """A pair's title, what is read or written, and which of our contenders stands for spillway."""
    parts = [summary.word_of(goal["figure"])] if goal["figure"].endswith("_per_s") else []
    parts += [] if goal["ours"] == "spillway" else [goal["ours"].removeprefix("spillway ")]
    return ": ".join((pair["title"].removeprefix("Step of "), *parts))


def readme_rows(results):
    """README's table: one row for each comparison of time with a peer, short enough for 100 columns. A peer's settings are
    left out of its name; the other tables have them."""
    lines = ["| workload | spillway | peer | ratio |", "|---|---|---|---|"]
    for pair in results["pairs"]:
        for goal in pair["goals"]:
            figure, found = goal["figure"], summary.ratio(pair, goal)
            if found is None or not figure.endswith("_s"):
                continue
            peer = summary.best_of(pair, goal["than"], figure)
            ours = summary.median(summary.contender_named(pair, goal["ours"]), figure)
            lines.append(f"| {workload_of(pair, goal)} | {figure_text(figure, ours)} | {peer['name'].split(',')[0]}: "
                         f"{figure_text(figure, summary.median(peer, figure))} | {ratio_text(found[0])} |")
    return "\n".join(lines) + "\n"


def draw(results, folder):
    os.makedirs(folder, exist_ok=True)
    for pair in results["pairs"]:
        if picture.can_draw(pair):
            with open(os.path.join(folder, picture.name_of(pair)), "w", encoding="utf-8") as file:
                file.write(picture.svg(pair))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\nusage")[0])
    parser.add_argument("results", metavar="FILE")
    parser.add_argument("--evidence", metavar="FILE", help="put the tables between the marks of this file")
    parser.add_argument("--readme", metavar="FILE", help="put the short table between the marks of this file")
    parser.add_argument("--pictures", metavar="DIR", help="draw a picture of each pair into this folder")
    given = parser.parse_args()
    with open(given.results, encoding="utf-8") as file:
        results = json.load(file)
    beside = given.pictures and os.path.relpath(given.pictures, os.path.dirname(given.evidence or given.pictures))
    if given.pictures:
        draw(results, given.pictures)
    if given.evidence:
        put_between_marks(given.evidence, MARK, evidence(results, beside))
    if given.readme:
        put_between_marks(given.readme, MARK, readme_rows(results))
    if not (given.evidence or given.readme or given.pictures):
        print(evidence(results, None), end="")


if __name__ == "__main__":
    main()
