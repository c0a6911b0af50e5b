"""Draws a pair as an SVG: one bar a contender, with the median, and a thin line from the least to the most of its rounds."""

from html import escape

import summary

WIDTH, LEFT, RIGHT, TOP, ROW = 720, 230, 120, 44, 30
OURS, PEER, INK = "#2a6f97", "#b0b7bd", "#222222"


def name_of(pair):
    return f"peers-{pair['name']}.svg"


def figure_of(pair):
    """The figure that is drawn: the first."""
    return next(iter(summary.figures_of(pair)), None)


def drawn(pair):
    return [one for one in pair["contenders"] if not one["missing"] and summary.values(one, figure_of(pair) or "")]


def can_draw(pair):
    return len(drawn(pair)) >= 2


def is_ours(pair, contender):
    words = contender["name"] + contender["settings"]
    return "spillway" in words or any(goal["ours"] == contender["name"] for goal in pair["goals"])


def bar(pair, contender, y, scale):
    figure = figure_of(pair)
    middle, (low, high) = summary.median(contender, figure), summary.spread(contender, figure)
    x, low_x, high_x = (LEFT + scale * value for value in (middle, low, high))
    fill = OURS if is_ours(pair, contender) else PEER
    return (f'<text x="{LEFT - 8}" y="{y + 17}" text-anchor="end">{escape(contender["name"])}</text>\n'
            f'<rect x="{LEFT}" y="{y + 4}" width="{x - LEFT:.1f}" height="18" fill="{fill}"/>\n'
            f'<line x1="{low_x:.1f}" y1="{y + 13}" x2="{high_x:.1f}" y2="{y + 13}" stroke="{INK}"/>\n'
            f'<text x="{max(x, high_x) + 6:.1f}" y="{y + 17}">{escape(summary.text_of(figure, middle))}</text>\n')


def svg(pair):
    shown, figure = drawn(pair), figure_of(pair)
    most = max(summary.spread(one, figure)[1] for one in shown)
    scale = (WIDTH - LEFT - RIGHT) / most
    height = TOP + ROW * len(shown) + 10
    sense = "shorter is better" if summary.less_is_better(figure) else "longer is better"
    bars = "".join(bar(pair, one, TOP + ROW * i, scale) for i, one in enumerate(shown))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
            f'font-family="sans-serif" font-size="13" fill="{INK}">\n'
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>\n'
            f'<text x="12" y="24" font-size="15">{escape(pair["title"])} ({sense})</text>\n{bars}</svg>\n')
