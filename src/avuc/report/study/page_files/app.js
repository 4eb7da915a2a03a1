"use strict";
// The controls. Charts are drawn when their data change or when they come into view.
const BOXES = ["ece", "uce", "nll", "brier", "accuracy", "avu_auc"].filter((key) => D.values[key]);
const overMethods = (f) => chosen().flatMap(({ n }) => f(n).map((row) => ({ ...row, m: n })));
const CHARTS = {
  main: (width, box) => {
    const metric = metricOf(state.metric), shift = state.shift && !state.shift.startsWith("ood:") ? plain(state.shift) : "all shifts";
    box.querySelector("[data-title]").textContent = `${metric.title}, ${shift}`;
    box.querySelector("figcaption").textContent = `${metric.meaning ? metric.meaning[0].toUpperCase() + metric.meaning.slice(1) + ". " : ""}Boxes are in the order of the methods above. A box shows the quartiles over shifts and seeds.`;
    return boxes(width, state.metric);
  },
  accuracyConfidence: (w) => lines(w, "Accuracy by minimum confidence", overMethods((n) => byConfidence(n, labelledCells())), "at", "accuracy", { xLabel: "minimum confidence", yLabel: "accuracy", yPercent: true }),
  countConfidence: (w) => lines(w, `Share of ${D.units} by minimum confidence`, overMethods((n) => byConfidence(n, labelledCells())), "at", "count", { xLabel: "minimum confidence", yLabel: `share of ${D.units}`, yPercent: true, domain: [0, 1] }),
  pAccurateCertain: (w) => lines(w, "p(right | certain) by threshold", overMethods((n) => byEntropy(n, labelledCells())), "at", "pac", { xLabel: "entropy threshold (nats)", yLabel: "p(right | certain)", yPercent: true }),
  pUncertainWrong: (w) => lines(w, "p(uncertain | wrong) by threshold", overMethods((n) => byEntropy(n, labelledCells())), "at", "pui", { xLabel: "entropy threshold (nats)", yLabel: "p(uncertain | wrong)", yPercent: true, domain: [0, 1] }),
  reliability: (w) => reliability(w, "Reliability diagram", chosen().map(({ n }) => ({ m: n, bins: diagram("r", n, labelledCells()) })), "confidence", "accuracy"),
  uncertainty: (w) => reliability(w, "Uncertainty diagram", chosen().map(({ n }) => ({ m: n, bins: diagram("u", n, labelledCells()) })), "uncertainty (entropy / log C)", "error rate"),
  avu: avuChart,
  tempered: temperedChart,
  temperatures: temperatureCurves,
  training: trainingChart,
  ablation: ablationChart,
};
const GRIDS = { maps: drawMaps, densities: drawDensities };

// charts in view are drawn at once; the others when they come into view, when the browser is idle, or before printing
const stale = new Set(), seen = new Set();
const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const name = target.dataset.chart;
    if (isIntersecting) { seen.add(name); if (stale.has(name)) paint(name); } else seen.delete(name);
  }
}, { rootMargin: "300px" });
const boxOf = (name) => document.querySelector(`[data-chart="${name}"]`);
function paint(name) {
  stale.delete(name);
  const box = boxOf(name);
  if (!box || box.closest("[hidden]")) return;
  if (GRIDS[name]) return GRIDS[name](box);
  const holder = box.querySelector("[data-plot]"), width = Math.max(240, holder.clientWidth || 400);
  const chart = chosen().length || !CHARTS[name].length ? CHARTS[name](width, box) : null;
  // colour keys of legends are next to their names, so screen readers skip them
  if (chart) for (const key of chart.querySelectorAll("svg:not([aria-label])")) key.setAttribute("aria-hidden", "true");
  holder.replaceChildren(chart || make("p", "Choose a method above.", { class: "hint" }));
}
let waiting = false;
function idle() {
  if (!stale.size) window.allDrawn = performance.now();
  if (waiting || !stale.size) return;
  waiting = true;
  (window.requestIdleCallback || setTimeout)(() => { waiting = false; const [next] = stale; if (next) paint(next); idle(); });
}
function draw(...wanted) {
  for (const name of wanted) { stale.add(name); if (seen.has(name)) paint(name); }
  idle();
}
const chartNames = () => [...Object.keys(CHARTS), ...Object.keys(GRIDS)];
const drawAll = () => draw(...chartNames());

function card(m, extra) {
  const figure = make("figure"), title = make("h3"), holder = make("div", null, { "data-plot": "" });
  title.append(swatch(m), " ", named(m), extra ? make("span", extra, { class: "hint" }) : "");
  figure.append(title, holder);
  return { figure, holder };
}
function drawMaps(box) {
  const list = chosen(), domain = mapScale(state.metric, list), width = Math.max(280, Math.min(380, gridWidth(box)));
  if (!D.severities.length) { box.replaceChildren(make("p", "This study has no shifts.", { class: "hint" })); return; }
  box.replaceChildren(...list.map(({ n }) => {
    const { figure, holder } = card(n), { svg, rows } = map(width - 30, state.metric, n, domain);
    holder.append(svg);
    keys([...svg.querySelectorAll('[aria-label="cell"] rect')], rows, n);
    return figure;
  }));
}
const gridWidth = (box) => { const all = box.clientWidth, columns = Math.max(1, Math.floor((all + 14) / 364)); return (all - 14 * (columns - 1)) / columns; };
// Tab stops once at each heatmap; arrow keys move between cells, Enter and a click open one
function keys(rects, rows, m) {
  const across = D.severities.length;
  rects.forEach((rect, n) => {
    rect.setAttribute("tabindex", n ? -1 : 0);
    rect.setAttribute("role", "button");
    const open = () => openDetails(m, cellAt(rows[n].shift, rows[n].level));
    rect.addEventListener("click", open);
    rect.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across }[event.key];
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(); }
      if (!step || !rects[n + step]) return;
      event.preventDefault();
      rect.setAttribute("tabindex", -1);
      rects[n + step].setAttribute("tabindex", 0);
      rects[n + step].focus();
    });
  });
}
function drawDensities(box) {
  const width = Math.max(280, Math.min(560, gridWidth(box))), cells = densityCells();
  box.replaceChildren(...chosen().map(({ n }) => {
    const distance = mean(cells.map((cell) => meanAt("wasserstein", n, cell)));
    const { figure, holder } = card(n, distance == null ? "" : ` W = ${distance.toFixed(3)}`);
    holder.append(density(width - 30, n));
    return figure;
  }));
}

function swatch(m) {
  const svg = d3.create("svg").attr("class", "swatch").attr("viewBox", "-8 -8 16 16").attr("aria-hidden", "true");
  const kind = "symbol" + D.methods[m].symbol[0].toUpperCase() + D.methods[m].symbol.slice(1);
  svg.append("path").attr("d", d3.symbol(d3[kind], 90)()).attr("fill", D.methods[m].study ? "none" : `var(--m${m})`).attr("stroke", `var(--m${m})`).attr("stroke-width", 2);
  return svg.node();
}
function legends() {
  for (const box of document.querySelectorAll("[data-legend]")) {
    box.replaceChildren(...chosen().map(({ n }) => { const item = make("span"); item.append(swatch(n), named(n)); return item; }));
  }
  for (const box of document.querySelectorAll("[data-set]")) box.textContent = labelledSetText();
  for (const box of document.querySelectorAll("[data-other]")) box.textContent = densitySetText();
}
function changed() {
  byId("severity").disabled = state.shift.startsWith("ood:");
  legends();
  drawAll();
}

function start() {
  for (const key of BOXES) {
    const figure = make("figure", null, { "data-chart": "box-" + key });
    figure.append(make("h3", metricOf(key).title), make("div", null, { "data-plot": "" }), make("figcaption", metricOf(key).meaning));
    byId("boxes").append(figure);
    CHARTS["box-" + key] = (width) => boxes(width, key);
  }
  byId("intensity").hidden = !D.severities.length;
  D.methods.forEach((method, n) => {
    const label = make("label"), tick = make("input", null, { type: "checkbox", value: n });
    tick.checked = true;
    tick.addEventListener("change", () => { state.methods[tick.checked ? "add" : "delete"](n); changed(); });
    label.append(tick, swatch(n), method.name);
    byId("methods").append(label);
  });
  const every = (on) => () => { for (const tick of byId("methods").querySelectorAll("input")) { tick.checked = on; state.methods[on ? "add" : "delete"](+tick.value); } changed(); };
  byId("all").addEventListener("click", every(true));
  byId("none").addEventListener("click", every(false));
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  options(byId("metric"), D.metrics.map((m) => [m.key, m.title]), state.metric);
  options(byId("shift"), [["", "all shifts"], ...[...D.shifts, ...D.outside].map((s) => [s, plain(s)])], state.shift);
  options(byId("severity"), [0, ...D.severities].map((level) => [level, level ? String(level) : "clean"]), state.severity);
  byId("metric").addEventListener("change", (event) => { state.metric = event.target.value; changed(); });
  byId("shift").addEventListener("change", (event) => { state.shift = event.target.value; changed(); });
  byId("severity").addEventListener("change", (event) => { state.severity = +event.target.value; changed(); });
  byId("ablation").hidden = new Set(betas().map((m) => m.beta)).size < 2;
  avuStart();
  temperatureStart();
  trainingStart();
  galleryStart();
  for (const name of chartNames()) { const box = boxOf(name); if (box) observer.observe(box); }
  changed();
  let width = document.documentElement.clientWidth, timer;
  window.addEventListener("resize", () => {
    clearTimeout(timer);
    timer = setTimeout(() => { if (document.documentElement.clientWidth !== width) { width = document.documentElement.clientWidth; drawAll(); } }, 150);
  });
  window.addEventListener("beforeprint", () => {
    for (const fold of document.querySelectorAll("details.table")) fold.open = true;
    for (const name of [...stale]) paint(name);
  });
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}
start();
