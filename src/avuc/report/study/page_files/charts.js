"use strict";
// Every chart is a function that returns an SVG made by Observable Plot.
const names = () => D.methods.map((m) => m.name);
// categorical: of two numbers Plot would make a continuous scale, which cannot mix CSS variables and draws black
const colours = () => ({ type: "categorical", domain: d3.range(D.methods.length), range: D.methods.map((_, n) => `var(--m${n})`) });
const symbols = () => ({ domain: d3.range(D.methods.length), range: D.methods.map((m) => m.symbol) });
const dash = (m) => (D.methods[m].study ? "5,3" : null);
const named = (m) => D.methods[m].name;

function plot(width, title, options) {
  const small = width < 480;
  return Plot.plot({
    width, height: Math.round(Math.min(360, Math.max(230, width * 0.6))), marginLeft: small ? 46 : 52, marginBottom: 40,
    ariaLabel: title, style: { background: "none", color: "inherit", fontSize: small ? "11px" : "12px", overflow: "visible" },
    color: colours(), ...options,
  });
}
// a line for each method, with its symbol at every few points and a tooltip
function lines(width, title, rows, x, y, { xLabel, yLabel, yPercent, domain, xTicks } = {}) {
  const known = rows.filter((row) => row[y] != null);
  const every = Math.max(1, Math.round((d3.max(d3.rollups(known, (v) => v.length, (r) => r.m), (g) => g[1]) || 1) / 8));
  const marks = [Plot.ruleY(domain && domain[0] === 0 ? [0] : [], { stroke: "var(--line)" })];
  for (const [m, mine] of d3.group(known, (row) => row.m)) {
    marks.push(Plot.line(mine, { x, y, stroke: "m", strokeWidth: 2, strokeDasharray: dash(m) }));
    marks.push(Plot.dot(mine.filter((_, n) => (n + m) % every === 0), { x, y, stroke: "m", fill: "m", symbol: "m", r: 2.8 }));
  }
  marks.push(Plot.tip(known, Plot.pointer({ x, y, title: (r) => `${named(r.m)}\n${xLabel}: ${formatted(r[x])}\n${yLabel}: ${formatted(r[y], { percent: yPercent })}` })));
  return plot(width, title, {
    x: { label: xLabel, ticks: xTicks, tickFormat: xTicks ? "d" : undefined }, y: { label: yLabel, grid: true, domain, tickFormat: yPercent ? ".0%" : undefined }, symbol: symbols(), marks,
  });
}

function boxRows(key) {
  const rows = [];
  const shifts = state.shift && !state.shift.startsWith("ood:") ? [state.shift] : D.shifts;
  for (const { n } of chosen()) {
    for (const level of [0, ...D.severities]) {
      for (const shift of level ? shifts : ["clean"]) for (const v of seedsAt(key, n, cellAt(shift, level))) rows.push({ m: n, level, shift, v });
    }
  }
  return rows;
}
function boxes(width, key) {
  const metric = metricOf(key), rows = boxRows(key), small = width < 480;
  // too many boxes for a narrow screen: draw lines through the medians instead
  if (small && chosen().length > 4) return lines(width, `Median ${metric.title} by intensity of the shift`, boxSummary(rows), "level", "median", { xLabel: "intensity of the shift", yLabel: `median ${metric.title}`, yPercent: metric.percent, xTicks: [0, ...D.severities] });
  const summary = boxSummary(rows), lowest = d3.min(rows, (r) => r.v) >= 0 && !["accuracy", "avu_auc"].includes(key);
  return plot(width, `${metric.title} by intensity of the shift`, {
    x: { axis: null, domain: chosen().map((m) => m.n), padding: 0.15 },
    fx: { label: "intensity of the shift", tickFormat: (level) => (level ? String(level) : "clean"), padding: small ? 0.08 : 0.14 },
    y: { label: metric.title + (metric.better ? `, ${metric.better} is better` : ""), grid: true, zero: lowest, tickFormat: metric.percent ? ".0%" : undefined },
    marks: [
      // the marks of Plot.boxY, with quartiles that are computed once instead of once per facet and mark
      Plot.ruleX(summary, { x: "m", fx: "level", y1: "from", y2: "to", stroke: "m" }),
      Plot.barY(summary, { x: "m", fx: "level", y1: "low", y2: "high", fill: "m", fillOpacity: 0.45, ariaLabel: "box" }),
      Plot.tickY(summary, { x: "m", fx: "level", y: "median", stroke: "m", strokeWidth: 2 }),
      Plot.dot(summary.flatMap((box) => box.outliers.map((v) => ({ ...box, v }))), { x: "m", fx: "level", y: "v", stroke: "m", r: small ? 1 : 1.6 }),
      Plot.tip(summary, Plot.pointer({ x: "m", fx: "level", y: "median", title: (r) => `${named(r.m)}, ${r.level ? "intensity " + r.level : "clean"}\nmedian ${formatted(r.median, metric)}\nquartiles ${formatted(r.low, metric)} … ${formatted(r.high, metric)}\n${r.count} values` })),
    ],
  });
}
// median, quartiles, whiskers to the last value within 1.5 interquartile ranges, and outliers
function boxSummary(rows) {
  const summary = (group) => {
    const v = Float64Array.from(group, (r) => r.v).sort();
    const [low, median, high] = [0.25, 0.5, 0.75].map((q) => d3.quantileSorted(v, q)), reach = 1.5 * (high - low);
    const inside = v.filter((x) => x >= low - reach && x <= high + reach);
    return { low, median, high, from: inside[0], to: inside.at(-1), outliers: [...v.filter((x) => x < low - reach || x > high + reach)], count: v.length };
  };
  return d3.flatRollup(rows, summary, (r) => r.m, (r) => r.level).map(([m, level, stats]) => ({ m, level, ...stats }));
}

// one heatmap for each method; all share one colour scale, on which dark is worst
function mapScale(key, list) {
  const all = list.flatMap(({ n }) => D.shifts.flatMap((s) => D.severities.map((l) => meanAt(key, n, cellAt(s, l))))).filter((v) => v != null);
  const [low, high] = all.length ? d3.extent(all) : [0, 1];
  return metricOf(key).better === "higher" ? [high, low] : [low, high];
}
// names of shifts beside a heatmap: as much room as they need, within limits
const MOST_LETTERS = 24;
const shortened = (shift) => { const name = plain(shift); return name.length > MOST_LETTERS ? name.slice(0, MOST_LETTERS - 1) + "…" : name; };
const nameRoom = () => Math.max(108, Math.min(158, 14 + 6.2 * d3.max(D.shifts, (shift) => shortened(shift).length)));
function map(width, key, m, domain) {
  const metric = metricOf(key);
  const rows = D.shifts.flatMap((shift) => D.severities.map((level) => ({ shift, level, v: meanAt(key, m, cellAt(shift, level)) })));
  const tone = d3.scaleLinear(domain[0] === domain[1] ? [domain[0] - 1, domain[1]] : domain, [1, 0]).clamp(true);
  const svg = Plot.plot({
    width, height: 34 + 19 * D.shifts.length, marginLeft: nameRoom(), marginTop: 4, marginBottom: 30, ariaLabel: `${metric.title} of ${named(m)} by kind of shift and intensity`,
    style: { background: "none", color: "inherit", fontSize: "11px" },
    x: { label: "intensity", domain: D.severities, type: "band" }, y: { label: null, domain: D.shifts, tickFormat: shortened },
    marks: [
      Plot.cell(rows, { x: "level", y: "shift", fill: (r) => (r.v == null ? "var(--line)" : d3.interpolateCividis(tone(r.v))), inset: 0.5, ariaLabel: (r) => `${plain(r.shift)}, intensity ${r.level}: ${formatted(r.v, metric)}` }),
      Plot.text(rows, { x: "level", y: "shift", text: (r) => formatted(r.v, metric), fill: (r) => (r.v == null ? "var(--ink)" : tone(r.v) > 0.52 ? "#000" : "#fff"), pointerEvents: "none", fontSize: 10 }),
    ],
  });
  return { svg, rows };
}

function density(width, m) {
  const bins = 50, step = D.top / bins;
  const sets = [["clean", histogram("e", m, [cellAt("clean", 0)])], ["other", histogram("e", m, densityCells())]];
  const rows = sets.flatMap(([group, parts]) => {
    if (!parts.length) return [];
    const counts = summed(parts), total = d3.sum(counts) || 1;
    return counts.map((count, n) => ({ group, x: step * (n + 0.5), y: count / total }));
  });
  return Plot.plot({
    width, height: 170, marginLeft: 44, marginBottom: 34, ariaLabel: `Entropy of ${named(m)} on clean and on other ${D.units}`,
    style: { background: "none", color: "inherit", fontSize: "11px" },
    x: { label: "entropy (nats)", domain: [0, D.top] }, y: { label: null, grid: true, tickFormat: ".0%", ticks: [0.01, 0.05, 0.2, 0.5, 1], type: "sqrt" },
    color: { domain: ["clean", "other"], range: ["var(--first)", "var(--outside)"] },
    marks: [
      Plot.areaY(rows, { x: "x", y2: "y", y1: 0, z: "group", fill: "group", fillOpacity: 0.25, curve: "step" }),
      Plot.lineY(rows, { x: "x", y: "y", z: "group", stroke: "group", strokeWidth: 2, curve: "step" }),
      // beside the highest point of each curve; left of it near the right edge
      ...d3.groups(rows, (r) => r.group).map(([group, list]) => ({ group, ...d3.greatest(list, (r) => r.y) })).map((peak) => {
        const left = peak.x > D.top * 0.85;
        return Plot.text([peak], { x: (r) => Math.max(r.x, D.top * 0.07), y: "y", text: "group", fill: "group", textAnchor: left ? "end" : "start", dx: left ? -8 : 8, dy: 4, stroke: "var(--card)", strokeWidth: 4 });
      }),
    ],
  });
}
// the chosen test sets; by default out-of-distribution data if there are any
function densityCells() {
  if (state.shift.startsWith("ood:") || !D.outside.length || state.shift) return chosenCells();
  return [cellAt(D.outside[0], 0)];
}
const densitySetText = () => state.shift.startsWith("ood:") || !D.outside.length || state.shift ? chosenText() : plain(D.outside[0]);

function reliability(width, title, groups, xLabel, yLabel) {
  const rows = groups.flatMap(({ m, bins, ghost }) => bins.map((b) => ({ ...b, m, ghost })));
  const most = d3.max(rows, (r) => r.n) || 1, marks = [Plot.line([[0, 0], [1, 1]], { stroke: "var(--soft)", strokeDasharray: "4,3" })];
  for (const { m, bins, ghost } of groups) {
    const colour = ghost ? "var(--second)" : `var(--m${m})`;
    marks.push(Plot.line(bins, { x: "stated", y: "observed", stroke: colour, strokeWidth: ghost ? 1.2 : 2, strokeDasharray: dash(m) }));
    marks.push(Plot.dot(bins, { x: "stated", y: "observed", fill: colour, r: (b) => 2 + 5 * Math.sqrt(b.n / most), symbol: D.methods[m].symbol }));
  }
  marks.push(Plot.tip(rows, Plot.pointer({ x: "stated", y: "observed", title: (r) => `${named(r.m)}\n${xLabel}: ${formatted(r.stated, { percent: true })}\n${yLabel}: ${formatted(r.observed, { percent: true })}\n${r.n.toLocaleString("en")} ${D.units}` })));
  return plot(width, title, { x: { label: xLabel, domain: [0, 1], tickFormat: ".0%" }, y: { label: yLabel, domain: [0, 1], grid: true, tickFormat: ".0%" }, symbol: { type: "identity" }, r: { type: "identity" }, marks });
}
