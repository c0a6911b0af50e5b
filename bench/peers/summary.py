"""Medians, spreads and ratios of the raw numbers of a result, and the lines of text that show them."""

import statistics

GIB, GB = 1 << 30, 1e9
LESS_IS_BETTER = ("_s", "_bytes")


def less_is_better(figure):
    return figure.endswith(LESS_IS_BETTER) and not figure.endswith("_per_s")


def text_of(figure, value):
    if figure.endswith("_bytes_per_s"):
        return f"{figure.removesuffix('_bytes_per_s')} {value / GB:.3g} GB/s"
    if figure.endswith("_bytes"):
        return f"{value / GIB:.3g} GiB"
    return f"{value:.3g} s"


def value_in(run, figure):
    """A figure of a run, or of the run as a whole."""
    return run["figures"].get(figure, run.get(figure))


def values(contender, figure):
    """A contender's figure by round."""
    found = {run["round"]: value_in(run, figure) for run in contender["runs"]}
    return {number: value for number, value in found.items() if value is not None}


def median(contender, figure):
    found = values(contender, figure)
    return statistics.median(found.values()) if found else None


def spread(contender, figure):
    found = values(contender, figure)
    return (min(found.values()), max(found.values())) if found else None


def contender_named(pair, name):
    return next(one for one in pair["contenders"] if one["name"] == name)


def best_of(pair, names, figure):
    """The contender of the best median among `names`, or None."""
    found = [one for one in (contender_named(pair, name) for name in names) if values(one, figure) and not one["missing"]]
    if not found:
        return None
    return (min if less_is_better(figure) else max)(found, key=lambda one: median(one, figure))


def ratio(pair, goal):
    """The median over rounds of how much better ours is, with its least and most; None where one of both has no figure."""
    other = best_of(pair, goal["than"], goal["figure"])
    mine = values(contender_named(pair, goal["ours"]), goal["figure"])
    theirs = values(other, goal["figure"]) if other else {}
    less = less_is_better(goal["figure"])
    found = [theirs[number] / mine[number] if less else mine[number] / theirs[number]
             for number in mine if number in theirs and mine[number] and theirs[number]]
    return (statistics.median(found), min(found), max(found)) if found else None


def loss_difference(pair, contender):
    """The largest difference of a loss from the first contender's at the same step, relative to it; None without losses."""
    def losses(one):
        return one["runs"][0].get("losses") if one["runs"] else None
    first, own = losses(pair["contenders"][0]), losses(contender)
    if not first or not own:
        return None
    return max(abs(a - b) / abs(a) for a, b in zip(first, own))


def losses_text(pair, contender):
    """That difference in words, which say so where it is beyond the pair's tolerance; empty without losses."""
    apart = loss_difference(pair, contender)
    if apart is None:
        return ""
    return f"{apart:.1e}" if apart <= pair["loss_tolerance"] else f"{apart:.1e}, too far: not the same training"


def figures_of(pair):
    """Names of all figures of a pair, in the order in which they were first given."""
    return list(dict.fromkeys(name for one in pair["contenders"] for run in one["runs"] for name in run["figures"]))


def word_of(figure):
    """Returns what a figure is of: "step", "update", "read", "peak memory"."""
    return figure.removesuffix("_bytes_per_s").removesuffix("_s").replace("_bytes", " memory")


def goal_line(pair, goal):
    found = ratio(pair, goal)
    than = " or ".join(goal["than"])
    what = f"{goal['ours']} against {than}, {word_of(goal['figure'])}"
    if found is None:
        return f"{what}: not measured"
    return (f"{what}: {found[0]:.2f} times ({found[1]:.2f} to {found[2]:.2f}); goal {goal['least']:.3g}: "
            f"{'reached' if found[0] >= goal['least'] else 'not reached'}")


def lines_of(pair):
    """A pair as lines of text for a terminal."""
    lines = [pair["title"]]
    for one in pair["contenders"]:
        if one["missing"]:
            lines.append(f"  {one['name']}: {one['missing']}")
            continue
        parts = [text_of(figure, median(one, figure)) for figure in figures_of(pair) if values(one, figure)]
        peak, apart = median(one, "peak_bytes"), losses_text(pair, one)
        parts += [f"{text_of('peak_bytes', peak)} of memory"] if peak else []
        parts += [f"losses apart by {apart}"] if apart else []
        lines.append(f"  {one['name']}: {', '.join(parts)}")
    return lines + [f"  {goal_line(pair, goal)}" for goal in pair["goals"]]
