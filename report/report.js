"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const runs = data.runs;
const NS = document.querySelector("template").content.querySelector("svg").namespaceURI;
const byId = id => document.getElementById(id);

// --- Words and numbers ---------------------------------------------------------------------------------------------

function element(name, properties = {}, ...children) {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
}

function drawn(name, attributes, parent) {
    const made = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes))
        made.setAttribute(key, value);
    parent.append(made);
    return made;
}

const known = value => value !== null && value !== undefined && Number.isFinite(value);
const digits = (value, count) => known(value) ? Number(value.toPrecision(count)).toString() : "-";
function percent(value) {
    if (!known(value))
        return "-";
    return value > 0 && value < 0.001 ? "<0.1%" : `${digits(100 * value, value < 0.0995 ? 2 : 3)}%`;
}


function scaled(value, step, units) {
    if (!known(value))
        return "-";
    let power = 0;
    while (Math.abs(value) >= step && power + 1 < units.length) {
        value /= step;
        power++;
    }
    return `${Math.abs(value) >= 1000 ? Math.round(value) : digits(value, 3)}${units[power]}`;
}

const amount = value => Math.abs(value) < 1e4 ? digits(value, 4) : scaled(value, 1000, ["", "k", "M", "G", "T"]);
const rate = value => scaled(value, 1000, ["", "k", "M", "G"]);
const bytes = value => scaled(value, 1000, [" B", " kB", " MB", " GB", " TB", " PB"]);
const loss = value => known(value) ? value.toFixed(4) : "-";
const small = value => value === 0 || !known(value) ? digits(value, 3) : Math.abs(value) < 0.01 ? value.toExponential(2) : digits(value, 3);

function duration(seconds) {
    if (!known(seconds))
        return "-";
    if (seconds < 0.9995 && seconds > 0)
        return seconds < 0.0009995 ? `${digits(seconds * 1e6, 3)} \u00b5s` : `${digits(seconds * 1e3, 3)} ms`;
    if (seconds < 100)
        return `${digits(seconds, 3)} s`;
    if (seconds < 6000)
        return `${Math.round(seconds / 60)} min`;
    return seconds < 360000 ? `${digits(seconds / 3600, 3)} h` : `${digits(seconds / 86400, 3)} days`;
}

// --- Runs ----------------------------------------------------------------------------------------------------------

// Above MANY runs, a table stands for the cards, and curves are drawn without their spread.
const LONG_NAME = 36, MANY = 3;

function nameRuns() {
    const short = run => run.folder.replace(/\/+$/, "").split("/").pop() || run.folder;
    const names = runs.map(short);
    runs.forEach((run, i) => {
        run.name = names.indexOf(names[i]) === names.lastIndexOf(names[i]) ? names[i] : run.folder;
        run.short = run.name.length > LONG_NAME ? `${run.name.slice(0, 16)}\u2026${run.name.slice(-18)}` : run.name;
        run.color = `var(--c${i})`;
        run.shown = true;
        run.recent = recentOf(run);
    });
}

// The last fifth of the points, of which there are at least ten.
function lastPoints(run) {
    const count = run.columns.step.length;
    return [...Array(count).keys()].slice(-Math.max(10, Math.round(count / 5)));
}

function meanAt(values, points) {
    const found = points.map(i => values[i]).filter(known);
    return found.length ? found.reduce((sum, value) => sum + value, 0) / found.length : null;
}

function recentOf(run) {
    const points = lastPoints(run), lanes = {};
    for (const [lane, shares] of Object.entries(run.lanes))
        lanes[lane] = Math.min(1, meanAt(shares, points) ?? 0);
    const busiest = Object.keys(lanes).reduce((best, lane) => lanes[lane] > lanes[best] ? lane : best);
    return {lanes, busiest, loss: meanAt(run.columns.loss, points), rate: meanAt(run.columns.tokens_per_second, points),
            step_s: meanAt(run.columns.step_s, points), mfu: meanAt(run.columns.mfu, points)};
}

const ADVICE = {
    read: "The drive is the limit: more tokens a step (--batch-tokens), more host memory, or another drive.",
    write: "The drive is the limit: more tokens a step (--batch-tokens), more host memory, or another drive.",
    upload: "The link to the device is the limit: weights on the device (--place), or a larger group (--order).",
    download: "The link to the device is the limit: gradients on the device (--place), or more tokens a step.",
    update: "The optimizer's update is the limit: more cores (--threads), or --update device.",
    comm: "The exchange between ranks is the limit: another network, or more tokens a step.",
};

function timeFinding(run) {
    const {lanes, busiest} = run.recent, share = lanes[busiest];
    if (lanes.compute >= 0.85)
        return [true, `The device computes for ${percent(lanes.compute)} of a step, so offloading costs next to nothing.`];
    if (share >= 0.7 && busiest !== "compute")
        return [false, `${busiest} is busy for ${percent(share)} of a step, compute for ${percent(lanes.compute)}. ${ADVICE[busiest]}`];
    return [false, `No lane is busy for more than ${percent(share)} of a step (${busiest}): lanes wait for each other. ` +
            (run.timeline ? "One step, below, shows what waits." : "--trace shows what a step waits for.")];
}

// A step without any token that has a loss has no number, and nothing is wrong with its weights.
function recentLoss(run) {
    if (known(run.recent.loss))
        return loss(run.recent.loss);
    return run.empty > 0 ? "-" : "not finite";
}

function lossFindings(run) {
    const found = [], values = run.columns.loss, count = values.length, finite = values.findLastIndex((value, i) => known(value) || run.columns.loss_tokens[i] === 0);
    const head = meanAt(values, [...Array(count).keys()].slice(0, Math.max(1, Math.round(count / 50))));
    if (known(head) && known(run.recent.loss))
        found.push([run.recent.loss < head, `The loss ${run.recent.loss < head ? "fell" : "rose"} from ${loss(head)} ` +
                    `to ${loss(run.recent.loss)} nats a token.`]);
    if (finite < count - 1)
        found.push([false, "The loss of the last step is not a finite number" +
                    (finite >= 0 ? `; it last was at step ${run.columns.step[finite]}.` : ".")]);
    if (run.best && run.evaluations.length > 1)
        found.push(validationFinding(run));
    return found;
}

function validationFinding(run) {
    const [step, least] = run.best, [lastStep, last] = run.last_evaluation;
    if (!known(last))
        return [false, `The validation loss of step ${lastStep} is not a finite number; it was best at step ${step}: ${loss(least)}.`];
    return last > least * 1.005
        ? [false, `The validation loss rose from ${loss(least)} at step ${step} to ${loss(last)}: the model learns the training data by heart.`]
        : [true, `The validation loss is best at step ${step}: ${loss(least)}.`];
}

function findings(run) {
    const few = run.steps < 3, total = run.settings.steps, clipped = run.clipped / Math.max(1, run.steps), last = run.columns.step.at(-1);
    const found = few ? [[false, "There are too few steps to judge."]] : [...lossFindings(run), timeFinding(run)];
    if (run.skipped > 0)
        found.push([false, `${run.skipped} of ${run.steps} steps were skipped: their gradients were not finite.`]);
    if (run.empty > 0)
        found.push([false, `${run.empty} of ${run.steps} steps had no token with a loss and learnt nothing: a longer --seq keeps ` +
                    "completions with their prompts, and larger --batch-tokens mix more sequences into a step."]);
    if (clipped > 0.5 && !few)
        found.push([false, `${percent(clipped)} of the steps were clipped (--clip ${run.settings.clip}): try a lower --lr ` +
                    "or a longer --warmup."]);
    if (known(total) && last < total)
        found.push([false, `${last} of ${total} steps are done` +
                    (run.eta_seconds > 0 ? `; at this speed the others take ${duration(run.eta_seconds)}.` : ".")]);
    return found;
}

function card(run) {
    const last = run.columns.step.at(-1), total = run.settings.steps, clipped = run.clipped / Math.max(1, run.steps);
    const numbers = [
        [recentLoss(run), "loss, mean of the last steps"],
        [run.best ? loss(run.best[1]) : "-", run.best ? `best validation, step ${run.best[0]}` : "no validation"],
        [known(total) ? `${amount(last)} / ${amount(total)}` : amount(last), "steps"],
        [amount(run.tokens), "tokens"],
        [duration(run.seconds), "of training"],
        [rate(run.recent.rate), "tokens a second"],
        [duration(run.recent.step_s), "a step"],
        [`${run.recent.busiest} ${percent(run.recent.lanes[run.recent.busiest])}`, "busiest lane"],
        [percent(clipped), "of the steps clipped"],
    ];
    if (known(run.recent.mfu))
        numbers.push([percent(run.recent.mfu), "of the device's peak (MFU)"]);
    const grid = element("div", {className: "numbers"}, ...numbers.map(([value, what]) =>
        element("div", {}, element("b", {textContent: value}), element("span", {textContent: what}))));
    const list = element("ul", {}, ...findings(run).map(([good, text]) =>
        element("li", {className: good ? "good" : "bad", textContent: text})));
    const made = element("div", {className: "run"}, element("div", {className: "name", textContent: run.name}), grid, list);
    made.style.borderColor = run.color;
    return made;
}

function emptyCard(run) {
    const made = element("div", {className: "run"}, element("div", {className: "name", textContent: run.name}),
        element("p", {textContent: "The run has finished no step yet."}));
    made.style.borderColor = run.color;
    return made;
}

// One row a run, with the cards below it to be opened.
function summary() {
    const head = ["run", "loss", "best validation", "steps", "tokens", "tokens a second", "a step", "busiest lane", "clipped"];
    const rows = runs.map(run => ({cells: run.columns.step.length
        ? [run.short, recentLoss(run), run.best ? `${loss(run.best[1])}, step ${amount(run.best[0])}` : "-",
           amount(run.columns.step.at(-1)), amount(run.tokens), rate(run.recent.rate), duration(run.recent.step_s),
           `${run.recent.busiest} ${percent(run.recent.lanes[run.recent.busiest])}`, percent(run.clipped / Math.max(1, run.steps))]
        : [run.short, "no step yet", ...Array(7).fill("-")]}));
    const made = table(head, rows, "summary");
    made.querySelectorAll("td.first").forEach((cell, i) => {
        cell.style.borderLeft = `4px solid ${runs[i].color}`;
        cell.title = runs[i].name;
    });
    return [made, foldable("cards", {}, "What was found of each run", ...cards())];
}

const cards = () => runs.map(run => run.columns.step.length ? card(run) : emptyCard(run));

// --- Charts --------------------------------------------------------------------------------------------------------

const view = {axis: "step", smoothing: 0.6, log: false, picked: 0, step: 0, sampled: 0, loaded: 0, ...readView()};
view.open = {...view.open};
view.slides = {...view.slides};
const redraws = [];

// What the reader chose before the page was loaded again. An address that somebody changed is as good as none.
function readView() {
    try {
        return JSON.parse(decodeURIComponent(location.hash.slice(1)) || "{}");
    } catch {
        return {};
    }
}

const keepView = () => location.replace(`#${encodeURIComponent(JSON.stringify(view))}`);

// Keeps whether the reader opened a part, also over a reload.
function foldable(key, properties, title, ...children) {
    const made = element("details", {...properties, open: view.open[key] ?? properties.open ?? false},
        element("summary", {textContent: title}), ...children);
    made.addEventListener("toggle", () => {
        if ((view.open[key] ?? properties.open ?? false) !== made.open) {
            view.open[key] = made.open;
            keepView();
        }
    });
    return made;
}

const AXES = {
    step: {title: "step", text: value => Math.round(value).toLocaleString("en")},
    tokens: {title: "tokens", text: amount},
    seconds: {title: "hours", text: value => digits(value, 4)},
};

const alongAxis = run => view.axis === "seconds" ? run.columns.seconds.map(s => s / 3600) : run.columns[view.axis];

// Where a step lies on the horizontal axis, between the points around it.
function placeOf(run, step) {
    const steps = run.columns.step, along = alongAxis(run);
    let at = steps.findIndex(value => value >= step);
    if (at < 0)
        at = steps.length - 1;
    if (at <= 0 || steps[at] === step)
        return along[Math.max(0, at)];
    const share = Math.min(1, (step - steps[at - 1]) / (steps[at] - steps[at - 1]));
    return along[at - 1] + share * (along[at] - along[at - 1]);
}

// An exponential mean over the points before and behind each point: it does not lag behind the curve. The smoothing is
// meant for 300 points; with others it reaches over the same share of the curve.
function smooth(values) {
    const sums = values.map(() => [0, 0]), decay = view.smoothing ** (300 / values.length);
    for (const order of [[...values.keys()], [...values.keys()].reverse()]) {
        let sum = 0, weight = 0;
        for (const i of order) {
            sums[i][0] += sum;
            sums[i][1] += weight;
            if (known(values[i])) {
                sums[i][0] += values[i] / 2;
                sums[i][1] += 1 / 2;
                sum += values[i];
                weight++;
            }
            sum *= decay;
            weight *= decay;
        }
    }
    return sums.map(([sum, weight], i) => weight > 0 && known(values[i]) ? sum / weight : null);
}

function niceStep(range, count, factors) {
    const rough = range / count, power = 10 ** Math.floor(Math.log10(rough));
    return power * factors.find(factor => factor * power >= rough * 0.999);
}

function ticks(low, high, count, factors = [1, 2, 5, 10]) {
    const step = niceStep(high - low, count, factors), found = [];
    // Counting ends also where i is too large to be counted on.
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9 && found.length <= 4 * count; i++)
        found.push(i * step);
    return found;
}

function logTicks(low, high) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
        found.push(...[1, 1.5, 2, 3, 4, 5, 7].map(factor => factor * 10 ** power));
    const inside = found.filter(value => value >= low && value <= high);
    return inside.length > 1 ? inside : ticks(low, high, 4);
}

// The range that the curves take. Rare spikes, beyond ten times the middle range, are cut off.
function rangeOf(series, options) {
    const values = series.flatMap(one => ["y", "raw", "low", "high"].flatMap(name => one[name] ?? [])).filter(known).sort((a, b) => a - b);
    if (options.level !== undefined && values.length)
        values.push(options.level);
    if (!values.length)
        return [0, 1];
    let low = values[0], high = values.reduce((most, value) => Math.max(most, value));
    const at = share => values[Math.floor(share * (values.length - 1))];
    if (!options.most && high - at(0.98) > 10 * (at(0.98) - at(0.02)) && at(0.98) > at(0.02))
        high = at(0.98) + (at(0.98) - at(0.02));
    if (options.fromZero)
        low = Math.min(0, low);
    high = options.most ?? high;
    if (high - low <= 1e-12 * Math.abs(high))
        high = low + (Math.abs(low) * 0.1 || 1);
    const margin = options.most || options.log ? 0 : 0.04 * (high - low);
    return [low === 0 ? 0 : low - margin, high + margin];
}

function path(xs, ys, toX, toY) {
    let text = "", pen = "M";
    xs.forEach((x, i) => {
        if (known(ys[i]) && known(x)) {
            text += `${pen}${toX(x).toFixed(1)} ${toY(ys[i]).toFixed(1)}`;
            pen = "L";
        } else {
            pen = "M";
        }
    });
    return text;
}

function band(one, toX, toY) {
    const whole = one.x.map((_, i) => i).filter(i => known(one.low[i]) && known(one.high[i]));
    const points = [...whole.map(i => [i, one.high[i]]), ...whole.reverse().map(i => [i, one.low[i]])];
    return points.length ? `M${points.map(([i, y]) => `${toX(one.x[i]).toFixed(1)} ${toY(y).toFixed(1)}`).join("L")}Z` : "";
}

function drawAxes(svg, box, x, y, options) {
    const axis = AXES[view.axis];
    for (const value of options.log ? logTicks(...y.range) : ticks(...y.range, 4, [1, 2, 2.5, 5, 10])) {
        const at = y.to(value);
        drawn("line", {class: "grid", x1: box.left, x2: box.right, y1: at, y2: at}, svg);
        drawn("text", {x: box.left - 6, y: at + 4, "text-anchor": "end"}, svg).textContent = options.text(value);
    }
    const marks = ticks(...x.range, Math.max(2, (box.right - box.left) / 85));
    marks.forEach(value => {
        const at = x.to(value), end = at > box.right - 24 ? "end" : "middle";
        drawn("text", {x: end === "end" ? box.right : at, y: box.bottom + 16, "text-anchor": end}, svg).textContent = axis.text(value);
    });
    drawn("text", {x: (box.left + box.right) / 2, y: box.bottom + 32, "text-anchor": "middle"}, svg).textContent = axis.title;
}

function drawSeries(svg, one, x, y) {
    if (one.low)
        drawn("path", {class: "band", d: band(one, x.to, y.to), fill: one.color}, svg);
    if (one.raw)
        drawn("path", {class: "curve raw", d: path(one.x, one.raw, x.to, y.to), stroke: one.color}, svg);
    drawn("path", {class: "curve", d: path(one.x, one.y, x.to, y.to), stroke: one.color, "stroke-dasharray": one.dash ?? ""}, svg);
    if (one.dots || one.x.length === 1)
        one.x.forEach((value, i) => known(one.y[i]) &&
            drawn("circle", {cx: x.to(value), cy: y.to(one.y[i]), r: one.x.length > 60 ? 1.5 : 3, fill: one.color}, svg));
}

function nearest(xs, value) {
    let low = 0, high = xs.length - 1;
    while (high - low > 1) {
        const middle = (low + high) >> 1;
        if (xs[middle] < value)
            low = middle;
        else
            high = middle;
    }
    return Math.abs(xs[low] - value) <= Math.abs(xs[high] - value) ? low : high;
}

function showTip(event, series, x, options) {
    const tip = byId("tip"), at = x.from(event.offsetX);
    const rows = series.filter(one => one.x.length).map(one => {
        const i = nearest(one.x, at), row = element("div", {}, element("i"), `${one.name}: ${options.tip(one.y[i])}`);
        const raw = one.raw && known(one.raw[i]) ? ` (not smoothed ${options.tip(one.raw[i])})` : "";
        row.append(raw);
        row.firstChild.style.background = one.color;
        return row;
    });
    tip.replaceChildren(element("div", {textContent: `${AXES[view.axis].title} ${AXES[view.axis].text(at)}`}), ...rows);
    placeTip(event);
}

// Shows the tip beside the pointer, inside the window.
function placeTip(event) {
    const tip = byId("tip");
    tip.hidden = false;
    const width = tip.offsetWidth, height = tip.offsetHeight;
    tip.style.left = `${Math.max(4, event.clientX + 16 + width > innerWidth ? event.clientX - width - 16 : event.clientX + 16)}px`;
    tip.style.top = `${Math.max(4, Math.min(event.clientY + 12, innerHeight - height - 4))}px`;
}

function watchPointer(svg, box, series, x, options) {
    const cursor = drawn("line", {class: "cursor", y1: box.top, y2: box.bottom, visibility: "hidden"}, svg);
    svg.onpointermove = event => {
        const at = Math.min(box.right, Math.max(box.left, event.offsetX));
        cursor.setAttribute("x1", at);
        cursor.setAttribute("x2", at);
        cursor.setAttribute("visibility", "visible");
        showTip(event, series, x, options);
    };
    svg.onpointerleave = () => {
        cursor.setAttribute("visibility", "hidden");
        byId("tip").hidden = true;
    };
}

// options: title, unit, text (of a tick), tip (of a value), fromZero, most, level (a dashed line), log.
function drawChart(holder, series, options) {
    const width = Math.max(260, holder.clientWidth - 24), height = options.wide ? 320 : 230;
    const box = {left: 58, right: width - 8, top: 8, bottom: height - 40};
    const svg = document.createElementNS(NS, "svg");
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", options.title);
    const xs = series.flatMap(one => one.x), range = rangeOf(series, options);
    const from = xs.reduce((a, b) => Math.min(a, b), Infinity), to = xs.reduce((a, b) => Math.max(a, b), -Infinity);
    const x = {range: known(from) && from < to ? [from, to] : [0, known(to) ? Math.max(to, 1) : 1]};
    const isLog = options.log && range[0] > 0, scale = isLog ? Math.log : value => value;
    const bounds = range.map(scale), y = {range};
    x.to = value => box.left + (value - x.range[0]) / (x.range[1] - x.range[0]) * (box.right - box.left);
    x.from = at => x.range[0] + (Math.min(box.right, Math.max(box.left, at)) - box.left) / (box.right - box.left) * (x.range[1] - x.range[0]);
    y.to = value => box.bottom - (Math.min(bounds[1], Math.max(bounds[0], isLog && value <= 0 ? bounds[0] : scale(value))) - bounds[0]) /
        (bounds[1] - bounds[0]) * (box.bottom - box.top);
    drawAxes(svg, box, x, y, {...options, log: isLog});
    if (options.level !== undefined)
        drawn("line", {class: "level", x1: box.left, x2: box.right, y1: y.to(options.level), y2: y.to(options.level)}, svg);
    series.forEach(one => drawSeries(svg, one, x, y));
    watchPointer(svg, box, series, x, options);
    return svg;
}

const keyOf = (name, color, dash) => {
    const key = element("span", {}, element("i"), name);
    key.firstChild.style.background = dash ? `repeating-linear-gradient(90deg, ${color} 0 4px, transparent 4px 7px)` : color;
    return key;
};

// makeSeries is called for each drawing, since what is shown changes.
function addChart(parent, options, makeSeries) {
    const holder = element("div", {className: options.wide ? "chart wide" : "chart"},
        element("h3", {}, `${options.title} `, element("span", {className: "unit", textContent: options.unit ?? ""})),
        element("div", {className: "keys"}), element("div"));
    const [, keys, place] = holder.children;
    options.tip ??= options.text;
    redraws.push(() => {
        const series = makeSeries(), all = {...options, ...options.now?.()};
        keys.replaceChildren(...(options.keys ? series.filter(one => !one.unkeyed).map(one => keyOf(one.name, one.color, one.dash)) : []),
            ...(series.some(one => one.unkeyed) ? [keyOf("validation", "var(--quiet)", true)] : []));
        place.replaceChildren(drawChart(holder, series, all));
    });
    parent.append(holder);
}

const shownRuns = () => runs.filter(run => run.shown && run.columns.step.length);
const column = (name, more) => () => shownRuns().map(run => ({name: run.short, color: run.color, x: alongAxis(run), y: run.columns[name],
    ...more?.(run)}));

// A curve that is smoothed, over the values of single steps.
const spread = name => run => shownRuns().length > MANY ? {y: smooth(run.columns[name])} : ({y: smooth(run.columns[name]), raw: run.columns[name],
    ...(run.width > 1 ? {low: run.columns[`${name}_least`], high: run.columns[`${name}_most`]} : {})});

function lossSeries() {
    const several = shownRuns().length > 1;
    return shownRuns().flatMap(run => {
        const found = [{name: several ? run.short : "loss", color: run.color, x: alongAxis(run), ...spread("loss")(run)}];
        if (run.evaluations.length)
            found.push({name: several ? `${run.short}, validation` : "validation", unkeyed: several, color: several ? run.color : "var(--c1)", dash: "6 4",
                        dots: true, x: run.evaluations.map(([step]) => placeOf(run, step)), y: run.evaluations.map(([, value]) => value)});
        return found;
    });
}

function drawCurves() {
    const parent = byId("curves"), several = runs.length > 1 && runs.length <= MANY, clips = new Set(runs.map(run => run.settings.clip));
    const clip = clips.size === 1 && runs[0].settings.clip > 0 ? {level: runs[0].settings.clip} : {};
    const compares = runs.some(run => run.rewards);
    addChart(parent, {title: "Loss", unit: compares ? "nats a pair" : "nats a token", wide: true, keys: runs.length <= MANY, text: value => digits(value, 4), tip: loss,
                      now: () => ({log: view.log})}, lossSeries);
    if (compares) {
        addChart(parent, {title: "Rewards", unit: "beta times the change of a reply's log-probability", text: small, keys: true}, rewardSeries);
        addChart(parent, {title: "Accuracy", unit: "pairs whose chosen reply has the higher reward", text: percent, fromZero: true, most: 1,
                          keys: several}, () => comparingRuns().map(run => ({name: run.short, color: run.color, x: alongAxis(run),
                                                                           y: smooth(run.rewards.accuracy)})));
    }
    if (runs.some(run => run.routing))
        addChart(parent, {title: "Busiest expert", unit: "even shares of its layer's tokens", text: small, fromZero: true, keys: several},
                 () => shownRuns().filter(run => run.routing).map(run => ({name: run.short, color: run.color, x: alongAxis(run), y: smooth(run.routing.load)})));
    if (runs.some(run => run.routing?.aux_loss.some(known)))
        addChart(parent, {title: "Balancing loss", unit: "1 where experts share evenly; not part of the loss", text: small, keys: several},
                 () => shownRuns().filter(run => run.routing).map(run => ({name: run.short, color: run.color, x: alongAxis(run), y: smooth(run.routing.aux_loss)})));
    addChart(parent, {title: "Gradient norm", unit: clip.level ? `before clipping; dashed: --clip ${clip.level}` : "before clipping",
                      text: small, fromZero: true, keys: several, ...clip}, column("grad_norm", spread("grad_norm")));
    addChart(parent, {title: "Steps clipped", unit: "share", text: percent, fromZero: true, most: 1, keys: several}, clippedSeries);
    addChart(parent, {title: "Learning rate", text: small, fromZero: true, keys: several}, column("lr"));
    addChart(parent, {title: "Throughput", unit: "tokens a second", text: rate, fromZero: true, keys: several},
             column("tokens_per_second", spread("tokens_per_second")));
}

const comparingRuns = () => shownRuns().filter(run => run.rewards);

// Of several runs only the margins: three curves a run would hide each other.
function rewardSeries() {
    const found = comparingRuns(), names = found.length > 1 ? ["margin"] : ["margin", "chosen", "rejected"];
    return found.flatMap(run => names.map((name, i) => ({name: found.length > 1 ? `${run.short}, ${name}` : name, x: alongAxis(run),
        y: smooth(run.rewards[name]), color: found.length > 1 ? run.color : `var(--c${i})`})));
}

// The share among the steps around each point: with one step a point, it would be a fence of zeros and ones.
function clippedSeries() {
    return shownRuns().map(run => {
        const shares = run.columns.clipped, reach = Math.max(1, Math.round(shares.length / 50));
        return {name: run.short, color: run.color, x: alongAxis(run),
                y: shares.map((_, i) => meanAt(shares, [...Array(2 * reach + 1).keys()].map(k => i - reach + k)))};
    });
}

const PATHS = {nvme_read: "read from NVMe", nvme_write: "written to NVMe", upload: "to the device", download: "from the device",
               comm: "between ranks"};
// Where a step reads and writes as much, one curve lies on the other.
const DASHES = {nvme_write: "7 5", download: "7 5"};
const usedOnly = (group, least) => Object.entries(group).filter(([, values]) => values.some(value => value > least));

function pickedSeries(group, least, names) {
    const run = runs[view.picked];
    return usedOnly(run[group], least).map(([key, values]) => ({name: names?.[key] ?? key, x: alongAxis(run), y: smooth(values),
        color: `var(--c${Object.keys(run[group]).indexOf(key)})`, dash: DASHES[key]}));
}

function drawDetails() {
    const parent = byId("details");
    addChart(parent, {title: "Busy share of lanes", text: percent, fromZero: true, most: 1, keys: true},
             () => pickedSeries("lanes", 0.005));
    addChart(parent, {title: "Bytes moved", unit: "a second", text: bytes, fromZero: true, keys: true},
             () => pickedSeries("rates", 0, PATHS));
}

// --- Tables --------------------------------------------------------------------------------------------------------

function drawLanes() {
    for (const run of runs.filter(one => one.columns.step.length)) {
        const bars = element("div", {className: "bar"});
        for (const [lane, share] of Object.entries(run.recent.lanes)) {
            const fill = element("i");
            fill.style.width = `${100 * share}%`;
            fill.style.background = run.color;
            bars.append(element("span", {textContent: lane}), element("div", {}, fill), element("span", {textContent: percent(share)}));
        }
        byId("lanes").append(element("div", {}, ...(runs.length > 1 ? [element("h3", {textContent: run.short, title: run.name})] : []), bars));
    }
}

function table(head, rows, kind) {
    const row = (cells, kind, name) => element("tr", {className: name ?? ""}, ...cells.map((cell, i) =>
        element(kind, {textContent: cell, className: i === 0 ? "first" : ""})));
    return element("div", {className: "scroll"}, element("table", {className: kind ?? ""}, element("thead", {}, row(head, "th")),
        element("tbody", {}, ...rows.map(one => row(one.cells, "td", one.differs ? "differs" : "")))));
}

function drawBytes() {
    const head = ["", ...runs.map(run => run.short)], most = values => values.filter(known).reduce((a, b) => Math.max(a, b), 0);
    const rows = Object.entries(PATHS).map(([key, name]) => ({cells: [name, ...runs.map(run =>
        `${bytes(run.bytes[key])} (${bytes(run.bytes[key] / Math.max(1, run.steps))} a step)`)]}));
    const budgets = {device: "device_memory", host: "host_memory"};
    for (const tier of ["device", "host", "nvme"])
        rows.push({cells: [`${tier} memory at most`.replace("nvme memory", "NVMe space"), ...runs.map(run => {
            const budget = run.settings[budgets[tier]], peak = most(run.peaks[tier]);
            return bytes(peak) + (budget > 0 ? ` (${percent(peak / budget)} of ${bytes(budget)})` : "");
        })]});
    byId("bytes").append(table(head, rows));
    const drives = runs.filter(run => Array.isArray(run.settings.nvme) && run.settings.nvme.length > 1);
    for (const run of drives)
        byId("bytes").append(element("p", {className: "note", textContent: `${run.name} stripes its store evenly over ` +
            `${run.settings.nvme.join(", ")}. The log counts them together; split evenly, each had ` +
            `${bytes(run.bytes.nvme_read / run.settings.nvme.length)} read and ${bytes(run.bytes.nvme_write / run.settings.nvme.length)} written.`}));
}

function plain(value) {
    if (value === null || value === undefined)
        return "-";
    return Array.isArray(value) ? value.map(plain).join(", ") || "-" : typeof value === "number" ? digits(value, 12) : String(value);
}

function drawSettings() {
    const head = ["", ...runs.map(run => run.short)], row = (name, of) => {
        const cells = runs.map(of);
        return {cells: [name, ...cells], differs: cells.some(cell => cell !== cells[0])};
    };
    const facts = [
        row("folder", run => run.folder),
        row("architecture", run => plain(run.architecture)),
        row("first step", run => run.first_time || "-"),
        row("last step", run => run.last_time || "-"),
        row("saves", run => String(run.saved)),
    ];
    const names = [...new Set(runs.flatMap(run => Object.keys(run.settings)))];
    const text = (name, value) => name.endsWith("_memory") && known(value) ? bytes(value) : plain(value);
    const rows = names.map(name => row(`--${name.replaceAll("_", "-")}`, run => text(name, run.settings[name])));
    const differing = rows.filter(one => one.differs);
    byId("settings").append(table(head, [...facts, ...differing]));
    byId("settings").append(foldable("settings", {open: runs.length === 1},
        runs.length > 1 ? "Settings that are alike" : "Settings",
        table(head, rows.filter(one => !one.differs))));
}

// --- One step's timeline -------------------------------------------------------------------------------------------

const WORKS = ["forward", "backward", "head", "update", "weights", "gradients", "optimizer", "activations", "commit", "other"];
const colorOf = work => `var(--w${Math.max(0, WORKS.indexOf(work))})`;
const busyLanes = timeline => Object.entries(timeline.lanes).filter(([, spans]) => spans.length);
const microseconds = us => duration(us / 1e6);

function unitsText([first, last], units) {
    const name = unit => unit === 0 ? "embedding" : unit === units - 1 ? "head" : `block ${unit - 1}`;
    return first < 0 ? "" : first === last ? name(first) : `${name(first)} to ${name(last)}`;
}

function showSpan(event, lane, span, timeline) {
    const [start, length, work, first, last, ops, moved] = span;
    const lines = [`${lane}: ${work}`, unitsText([first, last], timeline.units), `${microseconds(length)}, from ${microseconds(start - timeline.zero)}`,
                   `${ops} operation${ops === 1 ? "" : "s"}${moved > 0 && lane !== "compute" ? `, ${bytes(moved)}` : ""}`];
    byId("tip").replaceChildren(...lines.filter(text => text).map(text => element("div", {textContent: text})));
    placeTip(event);
}

// Time zero is the step's first work on the device: what lies before was fetched under the step before.
function measureTimeline(timeline) {
    const starts = timeline.lanes.compute.filter(span => span[2] !== "update" && span[2] !== "other").map(span => span[0]);
    const all = busyLanes(timeline).flatMap(([, spans]) => spans);
    timeline.zero = starts.length ? Math.min(...starts) : 0;
    timeline.from = Math.min(0, ...all.map(span => span[0])) - timeline.zero;
    timeline.to = Math.max(...all.map(span => span[0] + span[1])) - timeline.zero;
}

function drawTimeline(holder, timeline, from, to) {
    const row = 22, lanes = busyLanes(timeline), width = Math.max(260, holder.clientWidth - 24), height = lanes.length * row + 42;
    const box = {left: 68, right: width - 8, top: 2, bottom: lanes.length * row + 2};
    const svg = document.createElementNS(NS, "svg"), toX = us => box.left + (us - from) / (to - from) * (box.right - box.left);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", "lanes of a step");
    const unit = to - from < 2e3 ? [1, "microseconds"] : to - from < 2e6 ? [1e3, "milliseconds"] : [1e6, "seconds"];
    for (const value of ticks(from / unit[0], to / unit[0], Math.max(4, (box.right - box.left) / 85))) {
        const at = toX(value * unit[0]), end = at > box.right - 20 ? "end" : "middle";
        drawn("line", {class: "grid", x1: at, x2: at, y1: box.top, y2: box.bottom}, svg);
        drawn("text", {x: end === "end" ? box.right : at, y: box.bottom + 16, "text-anchor": end}, svg).textContent = digits(value, 4);
    }
    drawn("text", {x: (box.left + box.right) / 2, y: box.bottom + 33, "text-anchor": "middle"}, svg).textContent = unit[1];
    lanes.forEach(([lane, spans], i) => {
        const y = box.top + i * row + 3;
        drawn("text", {x: box.left - 6, y: y + 13, "text-anchor": "end"}, svg).textContent = lane;
        for (const span of spans) {
            const x = toX(span[0] - timeline.zero);
            const bar = drawn("rect", {x: x.toFixed(2), y, height: row - 6, fill: colorOf(span[2]),
                                       width: Math.max(0.75, toX(span[0] + span[1] - timeline.zero) - x).toFixed(2)}, svg);
            bar.onpointermove = event => showSpan(event, lane, span, timeline);
            bar.onpointerleave = () => byId("tip").hidden = true;
        }
    });
    return svg;
}

function drawStep() {
    const run = runs[view.step], kept = run.timeline, parent = byId("timelines");
    const shown = kept && kept !== "left out" ? [["Measured", kept.measured], ["Predicted", kept.predicted]].filter(([, timeline]) => timeline) : [];
    shown.forEach(([, timeline]) => measureTimeline(timeline));
    const from = Math.min(...shown.map(([, one]) => one.from)), to = Math.max(...shown.map(([, one]) => one.to));
    byId("timeline-note").textContent = kept === "left out"
        ? "This run's timeline is too large beside so many runs: a report of this run alone shows it."
        : !kept ? "This run has kept no timeline. A run keeps one of its tenth step, or of the first after it that is like those around it."
        : `Step ${kept.step}. Each row is a lane, each bar work of one kind; lanes that did nothing are left out. Time zero is the ` +
          "first work on the device: before it the step before still ran, and what is early was fetched ahead." +
          (kept.predicted ? "" : " Nothing was predicted for this run, since no profile of the machine was kept when it began.");
    const works = WORKS.filter(work => shown.some(([, one]) => busyLanes(one).some(([, spans]) => spans.some(span => span[2] === work))));
    byId("works").replaceChildren(...works.map(work => keyOf(work, colorOf(work))));
    byId("stages").textContent = run.stages || "";
    parent.replaceChildren();
    for (const [title, timeline] of shown) {
        const holder = element("div", {className: "chart"}, element("h3", {textContent: title}));
        parent.append(holder);
        holder.append(drawTimeline(holder, timeline, from, to));
    }
}

// Lets the reader choose one of several runs for a section; member: where `view` keeps the choice.
function bindPicker(section, member, candidates, draw) {
    const select = section.querySelector("select");
    section.hidden = !candidates.length;
    if (!candidates.length)
        return;
    select.append(...candidates.map(run => element("option", {value: runs.indexOf(run), textContent: run.short})));
    if (!candidates.includes(runs[view[member]]))
        view[member] = runs.indexOf(candidates[0]);
    select.value = view[member];
    select.parentElement.hidden = candidates.length < 2;
    select.addEventListener("input", () => {
        view[member] = Number(select.value);
        redraw();
    });
    redraws.push(draw);
}

// --- Samples -------------------------------------------------------------------------------------------------------

function samplesOf(run) {
    const prompts = new Map();
    for (const [step, prompt, text] of run.samples) {
        if (!prompts.has(prompt))
            prompts.set(prompt, []);
        prompts.get(prompt).push({step, text});
    }
    return prompts;
}

// A slider over the steps, and the text of the chosen one; the last at first. key: where `view` keeps the step.
function addPrompt(parent, prompt, texts, key) {
    const slider = element("input", {type: "range", min: 0, max: texts.length - 1, step: 1});
    const chosen = texts.findIndex(({step}) => step === view.slides[key]);
    slider.value = chosen < 0 ? texts.length - 1 : chosen;
    const label = element("span"), shown = element("pre", {className: "sample"});
    const asked = element("pre", {className: "sample asked", textContent: prompt});
    slider.setAttribute("aria-label", "step");
    const show = () => {
        const {step, text} = texts[slider.value];
        label.textContent = `step ${AXES.step.text(step)}`;
        shown.textContent = text;
    };
    slider.addEventListener("input", () => {
        view.slides[key] = Number(slider.value) < texts.length - 1 ? texts[slider.value].step : undefined;
        keepView();
        show();
    });
    show();
    const steps = element("div", {className: "slide"}, slider, label);
    const all = foldable(`all ${key}`, {}, `All ${texts.length} texts`,
        table(["step", "text"], texts.map(({step, text}) => ({cells: [AXES.step.text(step), text]})), "texts"));
    parent.append(element("div", {className: "chart"}, steps, asked, shown, ...(texts.length > 1 ? [all] : [])));
    slider.hidden = texts.length < 2;
}

function drawSamples() {
    const run = runs[view.sampled], left = run.samples_seen - run.samples_unreadable - run.samples.length;
    byId("samples").querySelector("p").textContent = "Texts that the run wrote while it trained, each below its prompt, which is bold." +
        (left > 0 ? ` ${run.samples.length} of ${run.samples_seen} are shown, evenly over the steps.` : "") +
        (run.samples_unreadable > 0 ? ` ${run.samples_unreadable} cannot be read as text.` : "");
    byId("texts").replaceChildren();
    [...samplesOf(run)].forEach(([prompt, texts], i) => addPrompt(byId("texts"), prompt, texts, `${view.sampled} ${i}`));
}

// --- Experts --------------------------------------------------------------------------------------------------------

const MOST_SHARE = 2; // the share, in even shares, from which on a cell has its full colour

// Each layer is a row and each expert a cell, the darker the more tokens it had.
function drawLoad() {
    const {step, steps, layers} = runs[view.loaded].load, wide = Math.max(...layers.map(layer => layer.length));
    byId("loads").replaceChildren();
    const svg = drawn("svg", {class: "loads", viewBox: `0 0 ${wide} ${layers.length}`, preserveAspectRatio: "none",
                              style: `height: ${Math.min(24 * layers.length, 480)}px`, role: "img"}, byId("loads"));
    let most = {share: 0}, idle = 0;
    layers.forEach((layer, row) => {
        const even = layer.reduce((sum, tokens) => sum + tokens, 0) / layer.length;
        layer.forEach((tokens, expert) => {
            const share = even > 0 ? tokens / even : 0, at = {x: expert + 0.04, y: row + 0.04, width: 0.92, height: 0.92};
            const cell = drawn("rect", tokens > 0 ? {...at, "fill-opacity": Math.min(1, share / MOST_SHARE)} : {...at, class: "idle"}, svg);
            drawn("title", {}, cell).textContent = `layer ${row}, expert ${expert}: ${amount(tokens)} tokens, ${digits(share, 3)} times an even share`;
            idle += tokens === 0;
            most = share > most.share ? {share, row, expert} : most;
        });
    });
    byId("load").querySelector("p").textContent =
        `Tokens of each expert in the last ${steps} steps up to step ${step}: a row is a layer, a cell an expert, full from ${MOST_SHARE} even shares on. ` +
        (most.share > 0 ? `The busiest, expert ${most.expert} of layer ${most.row}, had ${digits(most.share, 3)} times an even share; ` : "") +
        `${idle} had no tokens.`;
}

// --- Predicted and measured ----------------------------------------------------------------------------------------

const PEAKS = {device: "device memory", host: "host memory", nvme: "NVMe space"};

function comparison(run) {
    const {prediction, measured} = run, rows = [];
    const add = (name, predicted, found, text) => {
        if (!(predicted > 0 || found > 0))
            return;
        const ratio = predicted > 0 && known(found) ? `${digits(found / predicted, 3)}` : "-";
        rows.push({cells: [name, known(predicted) ? text(predicted) : "not predicted", text(found), ratio]});
    };
    add("step", prediction.step_seconds, measured.step_seconds, duration);
    add("tokens a second", prediction.tokens_per_second, measured.tokens_per_second, rate);
    for (const [lane, seconds] of Object.entries(measured.lanes))
        add(`${lane} lane busy`, prediction.lanes?.[lane], seconds, duration);
    for (const [key, name] of Object.entries(PATHS))
        add(name, prediction.bytes?.[key], measured.bytes[key], bytes);
    for (const [tier, name] of Object.entries(PEAKS))
        add(name, prediction.peak?.[tier], measured.peak[tier], bytes);
    return rows;
}

function drawPrediction() {
    const parent = byId("compared");
    for (const run of runs) {
        const part = element("div", {}, ...(runs.length > 1 ? [element("h3", {textContent: run.short, title: run.name})] : []));
        parent.append(part);
        if (!run.prediction || !known(run.prediction.first_step)) {
            part.append(element("p", {className: "note", textContent: "No prediction was recorded: an older version began this run."}));
            continue;
        }
        const note = known(run.prediction.step_seconds) ? "" : " No time was predicted, since no profile of this machine was " +
            "kept when the run began: the command doctor --measure makes one.";
        part.append(element("p", {className: "note", textContent: run.measured.steps > 0
            ? `Medians of the newest ${run.measured.steps} steps after step ${run.prediction.first_step}, with which the newest start began. ` +
              `Memory is taken whole at the start, so it is as planned.${note}`
            : `No step has ended yet after step ${run.prediction.first_step}, with which the newest start began.${note}`}));
        part.append(table(["", "predicted", "measured", "ratio"], comparison(run), "compared"));
    }
}

// --- The machine ---------------------------------------------------------------------------------------------------

function placesText(machine) {
    return (machine.store ?? []).map(place => {
        const drives = (place.drives ?? []).map(drive => drive.model ? `${drive.name} (${drive.model})` : drive.name).join(", ");
        return `${drives || "drive not known"}${place.file_system ? `, ${place.file_system}` : ""}`;
    }).join("; ") || "-";
}

function coresText(machine) {
    const all = known(machine.all_cores) && machine.all_cores !== machine.cores ? ` of ${machine.all_cores}` : "";
    const physical = known(machine.physical_cores) && machine.physical_cores !== machine.all_cores ? `, ${machine.physical_cores} physical` : "";
    return `${plain(machine.cores)}${all}${physical}${machine.numa_nodes > 1 ? `, ${machine.numa_nodes} NUMA nodes` : ""}`;
}

function drawMachine() {
    const head = ["", ...runs.map(run => run.short)];
    const row = (name, of) => ({cells: [name, ...runs.map(run => run.machine ? of(run.machine) : "not recorded")]});
    const gpu = machine => machine.gpu ? `${plain(machine.gpu.name)}${machine.gpu.driver ? `, driver ${machine.gpu.driver}` : ""}` : "none used";
    byId("machine").append(table(head, [
        row("processor", machine => plain(machine.cpu)),
        row("cores", coresText),
        row("memory", machine => bytes(machine.memory_bytes)),
        row("GPU", gpu),
        row("computes with", machine => plain(machine.device)),
        row("drives of the store", placesText),
        row("kernel", machine => plain(machine.kernel)),
        {cells: ["ranks", ...runs.map(run => plain(run.ranks))]},
        {cells: ["spillway", ...runs.map(run => plain(run.version))]},
    ]));
}

// --- The page ------------------------------------------------------------------------------------------------------

function redraw() {
    keepView();
    redraws.forEach(attempt);
}

// A file of another shape than ours, such as one of a later version, costs its section and no more.
function attempt(draw) {
    try {
        draw();
    } catch (error) {
        console.error(error);
    }
}

function bind(id, member, value) {
    byId(id).addEventListener("input", () => {
        view[member] = value(byId(id));
        redraw();
    });
}

function drawControls() {
    byId("axis").value = view.axis;
    byId("smoothing").value = view.smoothing;
    byId("log").checked = view.log;
    bind("axis", "axis", input => input.value);
    bind("smoothing", "smoothing", input => Number(input.value));
    bind("log", "log", input => input.checked);
    byId("picked").append(...runs.map((run, i) => element("option", {value: i, textContent: run.short})));
    byId("picked").value = view.picked;
    bind("picked", "picked", input => Number(input.value));
    byId("picked").parentElement.hidden = byId("legend").hidden = runs.length < 2;
    if (runs.length < 2)
        return;
    byId("legend").className = "keys";
    for (const run of runs) {
        const box = element("input", {type: "checkbox", checked: true});
        box.style.accentColor = run.color;
        box.addEventListener("input", () => {
            run.shown = box.checked;
            redraw();
        });
        byId("legend").append(element("label", {title: run.name}, box, keyOf(run.short, run.color)));
    }
}

function main() {
    nameRuns();
    view.picked = Math.min(view.picked, runs.length - 1);
    document.title = `spillway: ${runs.map(run => run.name).join(", ")}`;
    const model = [...new Set(runs.map(run => String(run.settings.model).split("/").pop()))].join(", ");
    byId("about").textContent = `${model}; last step ${runs.map(run => run.last_time).sort().at(-1) || "not known"}` +
        (data.reload_s > 0 ? "; this page follows the run" : "");
    byId("answer").append(...(runs.length > MANY ? summary() : cards()));
    drawControls();
    drawCurves();
    drawLanes();
    drawDetails();
    bindPicker(byId("timeline"), "step", runs.filter(run => run.timeline || run.stages), drawStep);
    attempt(drawPrediction);
    bindPicker(byId("samples"), "sampled", runs.filter(run => run.samples.length || run.samples_unreadable), drawSamples);
    bindPicker(byId("load"), "loaded", runs.filter(run => run.load), drawLoad);
    drawBytes();
    attempt(drawMachine);
    drawSettings();
    redraw();
    let width = innerWidth;
    addEventListener("resize", () => {
        if (innerWidth !== width)
            redraws.forEach(attempt);
        width = innerWidth;
    });
    if (data.reload_s > 0)
        setTimeout(() => location.reload(), 1000 * data.reload_s);
}

main();
