"use strict";
// The study's numbers, and what is computed from them for the chosen methods and test sets.
const D = JSON.parse(document.getElementById("data").textContent);
const cellIndex = new Map(D.cells.map(([shift, severity], n) => [shift + "|" + severity, n]));
const cellAt = (shift, severity) => cellIndex.get(shift + "|" + severity);
const metricOf = (key) => D.metrics.find((m) => m.key === key);
const plain = (shift) => D.shift_names[shift] || shift;
const mean = (xs) => { const known = xs.filter((x) => x != null); return known.length ? d3.mean(known) : null; };
const formatted = (value, metric) => value == null ? "–" : metric && metric.percent ? d3.format(".1%")(value) : Math.abs(value) < 10 ? value.toFixed(3) : value.toFixed(1);
const seedsAt = (key, m, cell) => cell === undefined || !D.values[key] ? [] : D.values[key][m].map((seed) => seed[cell]).filter((v) => v != null);
const meanAt = (key, m, cell) => mean(seedsAt(key, m, cell));

const state = {
  methods: new Set(D.methods.map((_, n) => n)),
  metric: D.values.ece ? "ece" : D.metrics[0].key,
  shift: "",
  severity: D.severities.length ? D.severities.at(-1) : 0,
};
const chosen = () => D.methods.map((m, n) => ({ ...m, n })).filter((m) => state.methods.has(m.n));

// the shifted test sets on which every method has a value for each seed that has any: methods are compared on these
function commonCells(key) {
  const shifted = d3.range(D.cells.length).filter((cell) => D.cells[cell][1]);
  const seeds = (D.values[key] || []).flat().filter((seed) => shifted.some((cell) => seed[cell] != null));
  return new Set(shifted.filter((cell) => seeds.every((seed) => seed[cell] != null)));
}
const COMMON = commonCells("nll");
const commonShifts = () => D.shifts.filter((shift) => COMMON.has(cellAt(shift, state.severity)));

// the test sets of the chosen shift and intensity
function chosenCells() {
  if (state.shift.startsWith("ood:")) return [cellAt(state.shift, 0)];
  if (!state.severity) return [cellAt("clean", 0)];
  const shifts = state.shift ? [state.shift] : commonShifts();
  return shifts.map((shift) => cellAt(shift, state.severity)).filter((c) => c !== undefined);
}
function chosenText() {
  if (state.shift.startsWith("ood:")) return plain(state.shift);
  if (!state.severity) return `clean ${D.units}`;
  const count = commonShifts().length, all = count < D.shifts.length ? `${count} of ${D.shifts.length} shifts, those that all methods have,` : "all shifts";
  return `${state.shift ? plain(state.shift) : all} at intensity ${state.severity}`;
}
// out-of-distribution data have no labels: charts that need labels show clean data instead
function labelledCells() {
  return state.shift.startsWith("ood:") ? [cellAt("clean", 0)] : chosenCells();
}
const labelledSetText = () => state.shift.startsWith("ood:") ? `clean ${D.units}` : chosenText();

const summed = (lists) => lists.length ? lists[0].map((_, n) => d3.sum(lists, (list) => list[n])) : [];
// counts of right and wrong predictions (or of all out-of-distribution images), summed over test sets
function histogram(name, m, cells) {
  const curves = cells.map((cell) => D.curves[m][cell]).filter((c) => c && c[name].length).map((c) => c[name]);
  return curves.length ? curves[0].map((_, group) => summed(curves.map((c) => c[group]))) : [];
}
function diagram(name, m, cells) {
  const curves = cells.map((cell) => D.curves[m][cell]).filter((c) => c && c[name]).map((c) => c[name]);
  if (!curves.length) return [];
  const [count, stated, observed] = [0, 1, 2].map((k) => summed(curves.map((c) => c[k])));
  return count.map((n, bin) => ({ bin, n, stated: stated[bin] / n, observed: observed[bin] / n })).filter((b) => b.n);
}
// shares by threshold, exact at the edges of the histogram bins
function byConfidence(m, cells) {
  const [right, wrong] = histogram("c", m, cells);
  if (!wrong) return [];
  const bins = right.length, total = d3.sum(right) + d3.sum(wrong);
  let r = 0, w = 0;
  const out = [];
  for (let bin = bins - 1; bin >= 0; bin--) {
    r += right[bin]; w += wrong[bin];
    out.push({ at: bin / bins, accuracy: r + w ? r / (r + w) : null, count: (r + w) / total });
  }
  return out.reverse();
}
function byEntropy(m, cells) {
  const [right, wrong] = histogram("e", m, cells);
  if (!wrong) return [];
  const bins = right.length, mistakes = d3.sum(wrong);
  let r = 0, w = 0;
  return right.map((_, bin) => {
    r += right[bin]; w += wrong[bin];
    return { at: D.top * (bin + 1) / bins, pac: r + w ? r / (r + w) : null, pui: mistakes ? 1 - w / mistakes : null };
  });
}
// single images: entropy as a share of log C, and whether the prediction was right
function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const words = new DataView(bytes.buffer);
  return d3.range(bytes.length / 2).map((n) => {
    const word = words.getUint16(2 * n, true);
    return { share: (word >> 1) / 32767, right: (word & 1) === 1 };
  });
}
