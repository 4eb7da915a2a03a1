"use strict";
// The AvU explorer, the temperature slider, the details of a heatmap cell, training curves, β and the gallery.
const byId = (id) => document.getElementById(id);
function make(tag, text, attributes = {}) {
  const element = document.createElement(tag);
  if (text != null) element.textContent = text;  // as text, never as HTML: names come from files
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}
function options(select, pairs, value) {
  select.replaceChildren(...pairs.map(([key, text]) => make("option", text, { value: key })));
  if (value !== undefined) select.value = value;
}
const cellText = ([shift, severity]) => (shift === "clean" ? `clean ${D.units}` : severity ? `${plain(shift)}, intensity ${severity}` : plain(shift));
const methodPairs = (rows) => [...new Set(rows.map((r) => r.method))].map((m) => [m, named(m)]);

const avu = { current: null, samples: [] };
function avuFind() {
  const m = +byId("avu-method").value, cell = +byId("avu-set").value;
  avu.current = D.shown.find((s) => s.method === m && s.cell === cell) || null;
  avu.samples = avu.current ? unpack(avu.current.samples) : [];
}
function avuStart() {
  if (!D.shown.length) return;
  byId("avu").hidden = false;
  options(byId("avu-method"), methodPairs(D.shown));
  options(byId("avu-set"), [...new Set(D.shown.map((s) => s.cell))].map((c) => [c, cellText(D.cells[c])]));
  byId("avu-threshold").value = 120;
  const again = () => { avuFind(); avuShow(); draw("avu"); };
  byId("avu-method").addEventListener("change", again);
  byId("avu-set").addEventListener("change", again);
  byId("avu-threshold").addEventListener("input", () => { avuShow(); draw("avu"); });
  avuFind();
  avuShow();
}
const avuThreshold = () => +byId("avu-threshold").value / 400;
function avuCounts(samples, threshold) {
  const n = { ac: 0, au: 0, ic: 0, iu: 0 };
  for (const s of samples) n[(s.right ? "a" : "i") + (s.share <= threshold ? "c" : "u")]++;
  return n;
}
function avuShow() {
  const threshold = avuThreshold(), n = avuCounts(avu.samples, threshold), total = avu.samples.length;
  const share = (a, b) => (b ? d3.format(".1%")(a / b) : "–");
  byId("avu-threshold").setAttribute("aria-valuetext", `entropy up to ${(threshold * D.top).toFixed(3)} nats`);
  byId("avu-value").textContent = `entropy ≤ ${(threshold * D.top).toFixed(3)} nats`;
  for (const key of ["ac", "au", "ic", "iu"]) byId("n-" + key).replaceChildren(String(n[key]), make("small", share(n[key], total)));
  byId("v-avu").textContent = total ? ((n.ac + n.iu) / total).toFixed(3) : "–";
  byId("v-pac").textContent = share(n.ac, n.ac + n.ic);
  byId("v-pui").textContent = share(n.iu, n.ic + n.iu);
  const wrong = avu.current ? avu.current.mistakes.filter((mistake) => mistake.map || mistake.entropy <= threshold * D.top) : [];
  const all = avu.current && avu.current.rows > total ? ` among ${total.toLocaleString("en")} of ${avu.current.rows.toLocaleString("en")} ${D.units}` : "";
  const maps = wrong.filter((mistake) => mistake.map).length;
  byId("mistakes-title").textContent = maps ? `The ${maps} examples with the most certain mistakes` + (wrong.some((mistake) => mistake.picture != null) ? ": image; mistakes in red; entropy from black (0) to white (the largest possible)" : "") : n.ic || wrong.length ? `Wrong and certain: ${n.ic}${all}${wrong.length ? `; the ${wrong.length} with the lowest entropy` : ""}` : `No ${D.unit} is wrong and certain at this threshold`;
  byId("mistakes").replaceChildren(...wrong.map((mistake) => {
    const item = make("li", null, mistake.map ? { class: "map" } : mistake.text ? { class: "text" } : {});
    if (mistake.picture != null) item.append(make("img", null, { src: "data:image/png;base64," + D.pictures[mistake.picture], alt: mistake.map ? `${mistake.is}: ${mistake.said}; mistakes and entropy of each pixel` : `True class ${mistake.is}, predicted ${mistake.said}` }));
    else item.append(make("q", mistake.text), make("br"));
    if (mistake.map) item.append(`${mistake.said}, mean entropy ${mistake.entropy.toFixed(2)}`);
    else item.append(`${mistake.is}, predicted ${mistake.said} (${d3.format(".0%")(mistake.confidence)})`);
    return item;
  }));
}
function avuChart(width) {
  const rows = avu.samples.map((s) => ({ x: s.share * D.top, kind: s.right ? "right" : "wrong" })), threshold = avuThreshold() * D.top;
  return plot(width, "Right and wrong predictions by entropy", {
    height: 250, x: { label: "entropy (nats)", domain: [0, D.top] }, y: { label: D.units, grid: true, type: "sqrt", ticks: 5, tickFormat: "d" },
    color: { domain: ["right", "wrong"], range: ["var(--right)", "var(--wrong)"], legend: true },
    marks: [
      Plot.rectY(rows, Plot.binX({ y: "count" }, { x: "x", fill: "kind", fy: null, thresholds: d3.range(0, D.top, D.top / 40), insetLeft: 0.5 })),
      Plot.ruleX([threshold], { stroke: "var(--ink)", strokeWidth: 2 }),
      Plot.text([threshold], { x: (d) => d, text: () => "threshold", frameAnchor: "top", textAnchor: threshold > D.top * 0.8 ? "end" : "start", dx: threshold > D.top * 0.8 ? -5 : 5, stroke: "var(--card)", fill: "var(--ink)", strokeWidth: 4 }),
    ],
  });
}

const tempered = () => D.tempered.find((t) => t.method === +byId("t-method").value && t.set === byId("t-set").value);
const bins = (t, n) => t.count[n].map((count, bin) => ({ n: count, stated: t.stated[n][bin], observed: t.observed[n][bin] })).filter((b) => b.n);
const eceOf = (list) => d3.sum(list, (b) => b.n * Math.abs(b.stated - b.observed)) / d3.sum(list, (b) => b.n);
function temperatureStart() {
  if (!D.tempered.length) return;
  byId("temperature").hidden = false;
  options(byId("t-method"), methodPairs(D.tempered));
  options(byId("t-set"), [...new Set(D.tempered.map((t) => t.set))].map((s) => [s, s]));
  const steps = D.tempered[0].temperature, one = d3.minIndex(steps, (t) => Math.abs(Math.log(t)));
  const slider = byId("t-slider");
  slider.max = steps.length - 1;
  slider.value = one;
  const again = () => { temperatureShow(); draw("tempered"); draw("temperatures"); };
  for (const id of ["t-method", "t-set"]) byId(id).addEventListener("change", again);
  slider.addEventListener("input", again);
  temperatureShow();
}
function temperatureShow() {
  const t = tempered(), n = +byId("t-slider").value;
  const value = t ? t.temperature[n].toFixed(2) : "";
  byId("t-value").textContent = `= ${value}`;
  byId("t-slider").setAttribute("aria-valuetext", "temperature " + value);
  byId("v-ece").textContent = t ? eceOf(bins(t, n)).toFixed(4) : "–";
  byId("v-nll").textContent = t && t.nll[n] != null ? t.nll[n].toFixed(4) : "–";
}
function temperedChart(width) {
  const t = tempered(), n = +byId("t-slider").value;
  if (!t) return null;
  const one = d3.minIndex(t.temperature, (x) => Math.abs(Math.log(x)));
  const groups = [{ m: t.method, bins: bins(t, one), ghost: true }, { m: t.method, bins: bins(t, n) }];
  return reliability(width, `Reliability at temperature ${t.temperature[n]}`, groups, "confidence", "accuracy");
}
function temperatureCurves(width) {
  const t = tempered(), n = +byId("t-slider").value;
  if (!t) return null;
  const high = d3.max(t.nll), colour = `var(--m${t.method})`;
  const rows = t.temperature.map((T, k) => ({ T, ece: eceOf(bins(t, k)), nll: t.nll[k] == null ? null : t.nll[k] / high }));
  return plot(width, "ECE and NLL by temperature", {
    x: { type: "log", base: 2, label: "temperature", tickFormat: (t) => String(t), ticks: [0.25, 0.5, 1, 2, 4, 8] }, y: { label: "ECE; NLL / largest NLL", grid: true, zero: true },
    marks: [
      Plot.line(rows, { x: "T", y: "ece", stroke: colour, strokeWidth: 2 }), Plot.line(rows, { x: "T", y: "nll", stroke: colour, strokeWidth: 2, strokeDasharray: "5,4" }),
      Plot.ruleX([1], { stroke: "var(--line)" }), Plot.dot([rows[n]], { x: "T", y: "ece", fill: colour, r: 6 }), Plot.dot([rows[n]], { x: "T", y: "nll", fill: colour, r: 6 }),
    ],
  });
}

function openDetails(m, cell) {
  const metrics = D.metrics.filter((metric) => meanAt(metric.key, m, cell) != null), table = make("table"), body = make("tbody");
  for (const metric of metrics) {
    const row = make("tr"), all = seedsAt(metric.key, m, cell);
    row.append(make("th", metric.title, { scope: "row" }), make("td", formatted(mean(all), metric), { class: "n" }));
    row.append(make("td", all.length > 1 ? `seeds: ${formatted(d3.min(all), metric)} … ${formatted(d3.max(all), metric)}` : metric.meaning));
    body.append(row);
  }
  table.append(body);
  const charts = make("div", null, { class: "flow" }), width = Math.min(300, document.documentElement.clientWidth * 0.8);
  const bins = diagram("r", m, [cell]);
  if (bins.length) charts.append(reliability(width, "Reliability diagram", [{ m, bins }], "confidence", "accuracy"));
  const picture = D.gallery.find((g) => g.shift === D.cells[cell][0] && g.severity === D.cells[cell][1]);
  if (picture && picture.text) charts.append(make("q", picture.text));
  else if (picture) charts.append(make("img", null, { src: "data:image/png;base64," + picture.png, alt: "Example image", style: "width:140px;image-rendering:pixelated" }));
  byId("details-title").textContent = `${named(m)}: ${cellText(D.cells[cell])}`;
  byId("details-body").replaceChildren(charts, table);
  byId("details").showModal();
}

const QUANTITIES = { nll: "NLL", validation_nll: "validation NLL", accuracy: "accuracy", validation_accuracy: "validation accuracy", avuc: "AvUC loss", avu: "AvU", kl: "KL", total: "total loss", uncertainty_right: "entropy of right predictions", uncertainty_wrong: "entropy of wrong predictions" };
function trainingStart() {
  const keys = Object.keys(QUANTITIES).filter((key) => D.training.some((t) => t[key]));
  if (!keys.length) return;
  byId("training").hidden = false;
  options(byId("quantity"), keys.map((key) => [key, QUANTITIES[key]]));
  byId("quantity").addEventListener("change", () => draw("training"));
}
function trainingChart(width) {
  const key = byId("quantity").value;
  const rows = chosen().flatMap(({ n }) => (D.training[n][key] || []).map((v, k) => ({ m: n, epoch: D.training[n].epoch[k] + 1, v })));
  return lines(width, `${QUANTITIES[key]} by epoch`, rows, "epoch", "v", { xLabel: "epoch", yLabel: QUANTITIES[key], xTicks: d3.ticks(1, d3.max(rows, (r) => r.epoch) || 1, 8).filter(Number.isInteger) });
}

const betas = () => D.methods.map((m, n) => ({ ...m, n })).filter((m) => m.beta != null);
function ablationChart(width) {
  const metric = metricOf(state.metric), levels = [0, ...D.severities], common = commonCells(state.metric);
  const cellsAt = (level) => (level ? D.shifts.map((s) => cellAt(s, level)).filter((cell) => common.has(cell)) : [cellAt("clean", 0)]);
  const rows = betas().flatMap(({ n, beta }) => levels.map((level) => ({ beta, level, v: mean(cellsAt(level).map((cell) => meanAt(state.metric, n, cell))) }))).filter((r) => r.v != null);
  byId("ablation").querySelector("[data-title]").textContent = `${metric.title} by β`;
  return plot(width, `${metric.title} by the weight of the AvUC loss`, {
    x: { label: "β" }, y: { label: metric.title, grid: true, zero: true }, color: { type: "linear", domain: [0, 6], interpolate: d3.interpolateCividis, legend: false },
    marks: [
      Plot.line(d3.sort(rows, (r) => r.beta), { x: "beta", y: "v", z: "level", stroke: "level", strokeWidth: 2 }), Plot.dot(rows, { x: "beta", y: "v", fill: "level", r: 3.5 }),
      Plot.text(rows, Plot.selectMaxX({ x: "beta", y: "v", z: "level", text: (r) => (r.level ? String(r.level) : "clean"), dx: 8, textAnchor: "start" })),
    ],
    marginRight: 50,
  });
}

function galleryStart() {
  if (!D.gallery.length) return;
  byId("gallery").hidden = false;
  const table = byId("gallery-table"), body = make("tbody"), head = make("tr");
  const find = (shift, severity) => D.gallery.find((g) => g.shift === shift && g.severity === severity);
  const picture = (image, text) => { const cell = make("td"); if (image && image.text) cell.append(make("small", image.text)); else if (image) cell.append(make("img", null, { src: "data:image/png;base64," + image.png, alt: text })); return cell; };
  head.append(make("td"), make("th", "clean", { scope: "col" }), ...D.severities.map((level) => make("th", String(level), { scope: "col" })));
  for (const shift of [...D.shifts, ...D.outside]) {
    const row = make("tr"), outside = shift.startsWith("ood:");
    row.append(make("th", plain(shift), { scope: "row" }), picture(outside ? find(shift, 0) : find("clean", 0), outside ? plain(shift) : "clean"));
    if (!outside) row.append(...D.severities.map((level) => picture(find(shift, level), `${plain(shift)} ${level}`)));
    body.append(row);
  }
  const top = make("thead");
  top.append(head);
  table.append(top, body);
}
