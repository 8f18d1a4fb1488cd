"use strict";
(() => {
const view = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const dark = matchMedia("(prefers-color-scheme: dark)");
const OUTSIDE = ["data pipeline", "program, heap and the rest", "alignment and gaps"];

// ---- words and numbers -------------------------------------------------------------------------------------------------
function bytes(n) {
  if (n === null || n === undefined || !isFinite(n)) return "–";
  for (const [name, unit] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
    if (Math.abs(n) >= unit) return (n / unit).toFixed(1) + " " + name;
  return n + " bytes";
}
function time(ns) {
  if (!(ns > 0)) return "0 s";
  const s = ns / 1e9;
  if (s < 1e-3) return (s * 1e6).toFixed(1) + " µs";
  if (s < 1) return (s * 1e3).toFixed(s < 0.01 ? 2 : 1) + " ms";
  if (s < 120) return s.toFixed(s < 10 ? 2 : 0) + " s";
  return s < 7200 ? (s / 60).toFixed(1) + " min" : (s / 3600).toFixed(1) + " h";
}
const grouped = (n) => Math.round(n).toLocaleString("en-US");
const layerName = (name) => name === "" ? "(no layer)" : name;

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}
/// A table of rows; columns are [title, isNumber]; a cell is text, or [colour, text].
function fill(table, caption, columns, rows) {
  table.replaceChildren();
  if (caption) table.append(element("caption", caption));
  const head = table.createTHead().insertRow();
  for (const [title, number] of columns) {
    const cell = element("th", title, number ? "n" : "");
    cell.scope = "col";
    head.append(cell);
  }
  const body = table.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    row.forEach((value, i) => {
      const cell = element("td", undefined, columns[i][1] ? "n" : "");
      if (Array.isArray(value)) {
        const swatch = element("span", undefined, "swatch");
        swatch.style.background = value[0];
        cell.append(swatch, document.createTextNode(value[1]));
      } else cell.textContent = value;
      line.append(cell);
    });
  }
}

// ---- colours -----------------------------------------------------------------------------------------------------------
const LIGHT = ["#3b6fb6", "#7aa6dc", "#b9c9e6", "#8d6fc9", "#e08a2c", "#c8453b", "#8a5a2b", "#3f9b58", "#9bcf8f", "#c9b458"];
const DARK = ["#5b93e0", "#86b4ee", "#a7bddf", "#a98be6", "#f0a04b", "#f0776c", "#c08a55", "#5cc07a", "#a8dca0", "#dccb78"];
const OUTSIDE_LIGHT = ["#5f8f95", "#98a1ab", "#dfe3e8"];
const OUTSIDE_DARK = ["#5d9aa2", "#6b747e", "#333b44"];
const kindColour = (kind) => (dark.matches ? DARK : LIGHT)[kind % LIGHT.length];
const outsideColour = (i) => (dark.matches ? OUTSIDE_DARK : OUTSIDE_LIGHT)[i];
const layerColour = (i) => "hsl(" + (i * 137.5 + 205) % 360 + " " + (dark.matches ? "55% 62%" : "55% 50%") + ")";
const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// ---- a plan, prepared --------------------------------------------------------------------------------------------------
/// Typed columns, the edges of steps on each axis, and the stack by kind.
function prepare(plan) {
  const t = plan.tensors, count = plan.steps.layer.length;
  const made = {
    plan, count, tensors: t.kind.length,
    kind: Uint8Array.from(t.kind), layer: Uint32Array.from(t.layer), what: Uint32Array.from(t.what),
    offset: Float64Array.from(t.offset), bytes: Float64Array.from(t.bytes), footprint: Float64Array.from(t.footprint),
    first: Uint32Array.from(t.first), last: Uint32Array.from(t.last), edges: {},
  };
  const steps = new Float64Array(count + 1), predicted = new Float64Array(count + 1);
  for (let s = 0; s <= count; s++) steps[s] = s;
  const moves = new Uint8Array(count);
  for (const s of plan.transfers.step) moves[s] = 1;
  let now = 0;
  for (let s = 0; s < count; s++) {
    // A transfer begins where the steps are, and takes none of their time.
    if (!moves[s]) now = Math.max(now, plan.steps.start_ns[s]);
    predicted[s] = now;
    if (!moves[s]) now = Math.max(now, plan.steps.end_ns[s]);
  }
  predicted[count] = now;
  made.edges.steps = steps;
  made.edges.time = now > 0 ? predicted : steps;
  if (plan.measured_ns && plan.measured_ns.length === count) {
    const measured = new Float64Array(count + 1);
    for (let s = 0; s < count; s++) measured[s + 1] = measured[s] + (plan.measured_ns[s] || 0);
    if (measured[count] > 0) made.edges.measured = measured;
  }
  made.space = view.spaces[plan.space];
  made.constant = [made.space.pipeline_bytes, made.space.total_bytes - made.space.arena_bytes - made.space.pipeline_bytes, plan.gap_bytes];
  made.base = made.constant.reduce((a, b) => a + b, 0);
  made.held = held(made, () => 0, 1);
  made.total = new Float64Array(count);
  made.most = 0;
  made.peak = plan.peak_step;
  for (let s = 0; s < count; s++) {
    made.total[s] = made.held[s] + made.base;
    if (made.total[s] > made.most) made.most = made.total[s];
  }
  return made;
}
/// What the tensors of each band hold at each step: bands × steps.
function held(made, band, bands) {
  const width = made.count + 1, sums = new Float64Array(bands * width);
  for (let i = 0; i < made.tensors; i++) {
    const b = band(i);
    if (b < 0) continue;
    sums[b * width + made.first[i]] += made.footprint[i];
    sums[b * width + made.last[i] + 1] -= made.footprint[i];
  }
  const flat = new Float64Array(bands * made.count);
  for (let b = 0; b < bands; b++) {
    let sum = 0;
    for (let s = 0; s < made.count; s++) flat[b * made.count + s] = sum += sums[b * width + s];
  }
  return flat;
}

const MOST_LAYERS = 12;
/// The bands of the stack, from the bottom: {name, colour, at(step)}, and the band of each tensor.
function bands(made, by) {
  const outside = OUTSIDE.map((name, i) => ({ name, colour: () => outsideColour(i), constant: made.constant[i], key: "o" + i }));
  let own, of;
  if (by === "kind") {
    own = view.kinds.map((name, kind) => ({ name, colour: () => kindColour(kind), key: "k" + kind }));
    of = (i) => made.kind[i];
  } else {
    const weight = new Float64Array(made.plan.layers.length);
    for (let i = 0; i < made.tensors; i++) weight[made.layer[i]] += made.footprint[i] * (made.last[i] - made.first[i] + 1);
    const order = Array.from(weight.keys()).sort((a, b) => weight[b] - weight[a]).slice(0, MOST_LAYERS);
    const number = new Int32Array(weight.length).fill(order.length);
    order.forEach((layer, i) => { number[layer] = i; });
    own = order.map((layer, i) => ({ name: layerName(made.plan.layers[layer]), colour: () => layerColour(i), key: "l" + layer, layer }));
    own.push({ name: "other layers", colour: () => outsideColour(0), key: "rest" });
    of = (i) => number[made.layer[i]];
  }
  const sums = held(made, of, own.length);
  own.forEach((band, b) => { band.sums = sums.subarray(b * made.count, (b + 1) * made.count); band.number = b; });
  const shown = own.filter((band) => band.sums.some((n) => n > 0));
  const fixed = outside.filter((band) => band.constant > 0);
  const gaps = fixed.filter((band) => band.name === OUTSIDE[2]);
  return { list: [...fixed.filter((band) => band.name !== OUTSIDE[2]), ...shown, ...gaps], of };
}
const bandBytes = (band, s) => band.constant !== undefined ? band.constant : band.sums[s];

// ---- state of the page -------------------------------------------------------------------------------------------------
const prepared = view.plans.map(() => null);
const largest = view.plans.reduce((best, plan, i) => plan.peak_bytes > view.plans[best].peak_bytes ? i : best, 0);
const now = { plan: largest, by: "kind", axis: "steps", from: 0, to: 1, cursor: null, layer: null, band: null, columns: [] };
const current = () => prepared[now.plan] || (prepared[now.plan] = prepare(view.plans[now.plan]));
const edges = () => current().edges[now.axis] || current().edges.steps;
let stack = { list: [], of: () => -1 };

// ---- canvas ------------------------------------------------------------------------------------------------------------
function open(canvas) {
  const ratio = Math.min(window.devicePixelRatio || 1, 3), width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const c = canvas.getContext("2d");
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  c.clearRect(0, 0, width, height);
  c.font = "12px system-ui, 'DejaVu Sans', sans-serif";
  return { c, width, height };
}
/// Text that can be read on any colour.
function label(c, text, x, y) {
  c.save();
  c.strokeStyle = ink("--ground");
  c.lineWidth = 4;
  c.lineJoin = "round";
  c.strokeText(text, x, y);
  c.restore();
  c.fillText(text, x, y);
}
/// A dashed line across, on any colour.
function rule(c, from, to, y) {
  const colour = c.strokeStyle;
  c.beginPath();
  c.moveTo(from, y);
  c.lineTo(to, y);
  c.strokeStyle = ink("--ground");
  c.lineWidth = 4;
  c.stroke();
  c.strokeStyle = colour;
  c.lineWidth = 2;
  c.setLineDash([7, 4]);
  c.stroke();
  c.setLineDash([]);
}
const LEFT = 74, RIGHT = 12, TOP = 22, BOTTOM = 26;
/// Round numbers up to a value: of bytes, of binary units.
function ticks(most, count, binary) {
  if (!(most > 0)) return [0];
  const base = binary ? 2 ** (10 * Math.floor(Math.log2(most) / 10)) : 1;
  const raw = most / base / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((f) => f * power).find((s) => s >= raw) * base;
  const found = [];
  for (let n = 0; n <= most * 1.0001; n += step) found.push(n);
  return found;
}
function frame(g, most, words, binary) {
  const y = (n) => g.height - BOTTOM - n / most * (g.height - TOP - BOTTOM);
  g.c.fillStyle = ink("--quiet");
  g.c.strokeStyle = ink("--rule");
  g.c.lineWidth = 1;
  g.c.textAlign = "right";
  g.c.textBaseline = "middle";
  for (const n of ticks(most, 5, binary)) {
    g.c.beginPath();
    g.c.moveTo(LEFT, Math.round(y(n)) + .5);
    g.c.lineTo(g.width - RIGHT, Math.round(y(n)) + .5);
    g.c.stroke();
    g.c.fillText(words(n), LEFT - 6, y(n));
  }
  return y;
}
function across(g, from, to, words) {
  g.c.fillStyle = ink("--quiet");
  g.c.textBaseline = "top";
  const parts = Math.max(2, Math.min(8, Math.floor((g.width - LEFT - RIGHT) / 110)));
  for (let i = 0; i <= parts; i++) {
    g.c.textAlign = i === 0 ? "left" : i === parts ? "right" : "center";
    g.c.fillText(words(from + (to - from) * i / parts), LEFT + (g.width - LEFT - RIGHT) * i / parts, g.height - BOTTOM + 7);
  }
}
const axisLabel = (n) => now.axis === "steps" ? "step " + grouped(Math.min(current().count, Math.floor(n) + 1)) : time(n);
const visible = () => {
  const e = edges(), whole = e[e.length - 1] || 1;
  return [now.from * whole, now.to * whole];
};
/// For each pixel column the step that holds most there, so that no peak is lost between pixels.
function columns(width) {
  const e = edges(), made = current(), [from, to] = visible();
  const found = new Int32Array(Math.max(1, width));
  let s = 0;
  for (let x = 0; x < width; x++) {
    const left = from + (to - from) * x / width, right = from + (to - from) * (x + 1) / width;
    while (s < made.count - 1 && e[s + 1] <= left) s++;
    let best = s;
    for (let other = s; other < made.count && e[other] < right; other++)
      if (made.total[other] > made.total[best]) best = other;
    found[x] = best;
  }
  return found;
}
const place = (x, width) => {
  const [from, to] = visible();
  return LEFT + (x - from) / (to - from) * width;
};

// ---- the timeline ------------------------------------------------------------------------------------------------------
function drawTimeline() {
  const canvas = $("timeline"), g = open(canvas), made = current();
  const width = Math.max(1, Math.floor(g.width - LEFT - RIGHT)), line = made.space.line_bytes;
  // A line far above the peak is named at the edge, so that the bands can be read.
  const far = line !== null && line > made.most * 1.6;
  const most = Math.max(made.most, line !== null && !far ? line : 0) * 1.04 || 1;
  const y = frame(g, most, bytes, true), chosen = columns(width);
  now.columns = chosen;
  now.drawn = { y, most, width, height: g.height };
  for (let x = 0; x < width;) {
    let end = x + 1;
    while (end < width && chosen[end] === chosen[x]) end++;
    let sum = 0;
    for (const band of stack.list) {
      const n = bandBytes(band, chosen[x]);
      if (n > 0) {
        g.c.globalAlpha = now.band !== null && now.band !== band.key ? .35 : 1;
        g.c.fillStyle = band.colour();
        const top = y(sum + n);
        g.c.fillRect(LEFT + x, top, end - x, y(sum) - top + .3);
        sum += n;
      }
    }
    x = end;
  }
  g.c.globalAlpha = 1;
  if (now.layer !== null) outline(g, made, chosen, width, y);
  if (line !== null) {
    const at = far ? TOP - 12 : y(line);
    g.c.strokeStyle = g.c.fillStyle = ink("--danger");
    g.c.textAlign = "right";
    g.c.textBaseline = "bottom";
    if (!far) rule(g.c, LEFT, LEFT + width, at);
    label(g.c, "line " + bytes(line) + (far ? " ↑" : ""), LEFT + width - 4, Math.max(14, at - 3));
  }
  // The peak.
  const e = edges(), x = place((e[made.peak] + e[made.peak + 1]) / 2, width);
  if (x >= LEFT && x <= LEFT + width) {
    g.c.fillStyle = g.c.strokeStyle = ink("--ink");
    g.c.beginPath();
    g.c.moveTo(x, y(made.most));
    g.c.lineTo(x - 5, y(made.most) - 8);
    g.c.lineTo(x + 5, y(made.most) - 8);
    g.c.fill();
    g.c.textAlign = x > LEFT + width * .7 ? "right" : "left";
    // Below the peak where the line and its name are just above it; above the line's name where the line is just below the peak.
    const above = line === null || far ? Infinity : y(made.most) - y(line), below = above >= 0 && above < 18;
    const bottom = above < 0 ? Math.min(y(made.most) - 1, y(line) - 17) : y(made.most) - 1;
    g.c.textBaseline = below ? "top" : "bottom";
    label(g.c, "peak " + bytes(made.most), x + (g.c.textAlign === "right" ? -8 : 8), below ? y(made.most) + 4 : Math.max(14, bottom));
  }
  if (now.cursor !== null) {
    const at = place((e[now.cursor] + e[now.cursor + 1]) / 2, width);
    g.c.strokeStyle = ink("--ink");
    g.c.lineWidth = 1;
    g.c.beginPath();
    g.c.moveTo(Math.round(at) + .5, TOP);
    g.c.lineTo(Math.round(at) + .5, g.height - BOTTOM);
    g.c.stroke();
  }
  const [from, to] = visible();
  across(g, from, to, axisLabel);
  canvas.dataset.maxBytes = String(made.most);
  canvas.dataset.peakStep = String(made.peak);
  canvas.setAttribute("aria-label", "Memory held over the " + grouped(made.count) + " steps of " + made.plan.title + ": at most "
    + bytes(made.most) + ", at step " + grouped(made.peak + 1) + (line === null ? "" : "; the line is " + bytes(line)) + ". The table below has the largest tensors.");
}
/// What the selected layer holds, over the stack.
function outline(g, made, chosen, width, y) {
  const sums = held(made, (i) => made.layer[i] === now.layer ? 0 : -1, 1);
  g.c.fillStyle = ink("--ink");
  g.c.globalAlpha = .75;
  for (let x = 0; x < width; x++) {
    const n = sums[chosen[x]];
    if (n > 0) g.c.fillRect(LEFT + x, y(n), 1, y(0) - y(n));
  }
  g.c.globalAlpha = 1;
}

// ---- the arena map -----------------------------------------------------------------------------------------------------
function drawMap() {
  const canvas = $("map"), g = open(canvas), made = current();
  const width = Math.max(1, Math.floor(g.width - LEFT - RIGHT)), most = Math.max(made.plan.peak_bytes, 1) * 1.02;
  const y = frame(g, most, bytes, true), e = edges(), [from, to] = visible();
  now.map = { y, most, width };
  const background = ink("--ground");
  for (let i = 0; i < made.tensors; i++) {
    const left = e[made.first[i]], right = e[made.last[i] + 1];
    if (right < from || left > to) continue;
    const a = Math.max(LEFT, place(left, width)), b = Math.min(LEFT + width, place(right, width));
    const top = y(made.offset[i] + made.bytes[i]), height = Math.max(.7, y(made.offset[i]) - top), wide = Math.max(.7, b - a);
    g.c.globalAlpha = now.layer !== null && made.layer[i] !== now.layer ? .25 : 1;
    const band = stack.of(i);
    g.c.fillStyle = now.by === "kind" ? kindColour(made.kind[i]) : band < 0 ? outsideColour(0) : colourOf(band);
    g.c.fillRect(a, top, wide, height);
    if (wide > 3 && height > 3) {
      g.c.strokeStyle = background;
      g.c.lineWidth = .6;
      g.c.strokeRect(a + .3, top + .3, wide - .6, height - .6);
    }
  }
  g.c.globalAlpha = 1;
  across(g, from, to, axisLabel);
  canvas.setAttribute("aria-label", "Arena of " + bytes(made.plan.peak_bytes) + " with " + grouped(made.tensors)
    + " tensors by time and offset; " + bytes(made.plan.gap_bytes) + " of it is lost to alignment and gaps.");
  drawLanes();
}
const colourOf = (number) => {
  const band = stack.list.find((band) => band.number === number && band.constant === undefined);
  return band ? band.colour() : outsideColour(0);
};
const LANES = ["from host", "to host", "file"];
function drawLanes() {
  const made = current(), moved = made.plan.transfers;
  $("lanes-block").hidden = moved.step.length === 0;
  if (moved.step.length === 0) return;
  const canvas = $("lanes"), g = open(canvas), width = Math.max(1, Math.floor(g.width - LEFT - RIGHT));
  const used = [0, 1, 2].filter((lane) => moved.queue.includes(lane)), height = Math.min(26, (g.height - 8) / used.length);
  g.c.textBaseline = "middle";
  g.c.textAlign = "right";
  used.forEach((lane, row) => {
    g.c.fillStyle = ink("--quiet");
    g.c.fillText(LANES[lane], LEFT - 6, row * height + height / 2 + 4);
    g.c.strokeStyle = ink("--rule");
    g.c.strokeRect(LEFT + .5, row * height + 4.5, width, height - 5);
  });
  const e = edges();
  let total = 0;
  moved.step.forEach((s, i) => {
    total += moved.bytes[i];
    const byTime = now.axis === "time";
    const a = place(byTime ? made.plan.steps.start_ns[s] : e[s], width), b = place(byTime ? made.plan.steps.end_ns[s] : e[s + 1], width);
    if (b < LEFT || a > LEFT + width) return;
    g.c.fillStyle = kindColour(moved.store[i] ? 5 : 7);
    const left = Math.max(LEFT, a);
    g.c.fillRect(left, used.indexOf(moved.queue[i]) * height + 6, Math.max(1, Math.min(LEFT + width, b) - left), height - 8);
  });
  canvas.setAttribute("aria-label", grouped(moved.step.length) + " transfers of " + bytes(total) + " in a step, by queue. Loads are green, stores red.");
}

// ---- what is at a point ------------------------------------------------------------------------------------------------
/// The largest tensors at a step, of those that a test lets through.
function liveAt(made, s, test, most) {
  const found = [];
  for (let i = 0; i < made.tensors; i++) if (made.first[i] <= s && s <= made.last[i] && test(i)) found.push(i);
  found.sort((a, b) => made.bytes[b] - made.bytes[a]);
  return { count: found.length, list: found.slice(0, most) };
}
const lifetime = (made, i) => "steps " + grouped(made.first[i] + 1) + " to " + grouped(made.last[i] + 1);
const sayTensor = (made, i) => made.plan.words[made.what[i]];
function stepWords(made, s) {
  const { steps } = made.plan;
  return "Step " + grouped(s + 1) + " of " + grouped(made.count) + ": " + made.plan.words[steps.what[s]] + " of " + layerName(made.plan.layers[steps.layer[s]])
    + (steps.again[s] ? " (computed again)" : "") + ", " + time(steps.end_ns[s] - steps.start_ns[s]);
}
function bandAt(s, height) {
  let sum = 0;
  for (const band of stack.list) {
    sum += bandBytes(band, s);
    if (height <= sum) return band;
  }
  return null;
}
function showTip(tip, parts, x, y) {
  tip.replaceChildren(...parts);
  tip.hidden = false;
  const stage = tip.parentElement, wide = stage.clientWidth;
  tip.style.left = Math.max(0, Math.min(x + 14, wide - tip.offsetWidth - 4)) + "px";
  tip.style.top = Math.max(0, y + 16) + "px";
}
function inside(event, canvas) {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}
function hoverTimeline(event) {
  const made = current(), [x, y] = inside(event, $("timeline")), d = now.drawn;
  const column = Math.floor(x - LEFT);
  if (!d || column < 0 || column >= d.width) return leave();
  const s = now.columns[column];
  const height = (d.height - BOTTOM - y) / (d.height - TOP - BOTTOM) * d.most, band = bandAt(s, height);
  const parts = [element("b", stepWords(made, s)), element("div", bytes(made.total[s]) + " held", "quiet")];
  if (band) {
    parts.push(element("b", band.name + ": " + bytes(bandBytes(band, s))));
    if (band.constant === undefined) {
      const found = liveAt(made, s, (i) => stack.of(i) === band.number, 5);
      for (const i of found.list)
        parts.push(element("div", bytes(made.bytes[i]) + "  " + sayTensor(made, i) + " of " + layerName(made.plan.layers[made.layer[i]]) + ", " + lifetime(made, i)));
      if (found.count > found.list.length) parts.push(element("div", "and " + grouped(found.count - found.list.length) + " more", "quiet"));
    }
  }
  showTip($("tip"), parts, x, y);
  return { s, band };
}
function tensorAt(x, y) {
  const made = current(), d = now.map;
  if (!d || x < LEFT || x > LEFT + d.width) return -1;
  const [from, to] = visible(), at = from + (x - LEFT) / d.width * (to - from), e = edges();
  const height = $("map").clientHeight, offset = (height - BOTTOM - y) / (height - TOP - BOTTOM) * d.most;
  for (let i = 0; i < made.tensors; i++)
    if (e[made.first[i]] <= at && at < e[made.last[i] + 1] && made.offset[i] <= offset && offset < made.offset[i] + made.bytes[i]) return i;
  return -1;
}
function hoverMap(event) {
  const made = current(), [x, y] = inside(event, $("map")), i = tensorAt(x, y);
  if (i < 0) return leave();
  showTip($("map-tip"), [
    element("b", sayTensor(made, i)),
    element("div", layerName(made.plan.layers[made.layer[i]]) + ", " + view.kinds[made.kind[i]]),
    element("div", bytes(made.bytes[i]) + " at offset " + grouped(made.offset[i]) + ", " + lifetime(made, i), "quiet"),
  ], x, y);
}
function leave() {
  $("tip").hidden = true;
  $("map-tip").hidden = true;
}

// ---- tables and selection ----------------------------------------------------------------------------------------------
const MOST_ROWS = 25;
function drawHeld() {
  const made = current(), s = now.cursor === null ? made.peak : now.cursor;
  const layer = now.layer === null ? null : layerName(made.plan.layers[now.layer]);
  const where = s === made.peak ? "at the peak, step " + grouped(s + 1) : "at step " + grouped(s + 1);
  let found, heading;
  if (layer !== null) {
    const all = [];
    for (let i = 0; i < made.tensors; i++) if (made.layer[i] === now.layer) all.push(i);
    all.sort((a, b) => made.bytes[b] - made.bytes[a] || made.first[a] - made.first[b]);
    found = { count: all.length, list: all.slice(0, 200) };
    heading = "What " + layer + " holds in the step";
  } else {
    const band = stack.list.find((band) => band.key === now.band);
    const test = band && band.constant === undefined ? (i) => stack.of(i) === band.number : () => true;
    found = liveAt(made, s, test, MOST_ROWS);
    heading = "Largest " + where + (band ? ": " + band.name : "");
  }
  $("held-heading").textContent = heading;
  const shown = found.count > found.list.length ? "The " + found.list.length + " largest of " + grouped(found.count) + " tensors" : grouped(found.count) + " tensors";
  fill($("held"), shown, [["size", true], ["kind"], ["tensor"], ["layer"], ["from step", true], ["to step", true]], found.list.map((i) => [
    bytes(made.bytes[i]), [kindColour(made.kind[i]), view.kinds[made.kind[i]]], sayTensor(made, i), layerName(made.plan.layers[made.layer[i]]),
    grouped(made.first[i] + 1), grouped(made.last[i] + 1),
  ]));
}
function drawLegend() {
  const made = current();
  const buttons = stack.list.slice().reverse().map((band) => {
    const button = element("button");
    button.type = "button";
    const swatch = element("span", undefined, "swatch");
    swatch.style.background = band.colour();
    button.append(swatch, document.createTextNode(band.name + " " + bytes(bandBytes(band, made.peak))));
    button.setAttribute("aria-pressed", String(now.band === band.key));
    button.title = "At the peak. Shows the largest tensors of " + band.name;
    if (band.constant !== undefined) button.disabled = true;
    button.addEventListener("click", () => selectBand(band));
    return button;
  });
  $("legend").replaceChildren(...buttons);
}
function selectBand(band) {
  if (band.layer !== undefined) return selectLayer(now.layer === band.layer ? null : band.layer);
  now.band = now.band === band.key ? null : band.key;
  draw();
}
function selectLayer(layer) {
  now.layer = layer;
  now.band = layer === null || now.by === "kind" ? null : "l" + layer;
  $("layer").value = layer === null ? "" : layerName(current().plan.layers[layer]);
  draw();
}
function say() {
  const made = current(), s = now.cursor;
  $("said").textContent = s === null ? "" : stepWords(made, s) + "; " + bytes(made.total[s]) + " held";
}

// ---- header and load sheet ---------------------------------------------------------------------------------------------
function tile(name, figure, more, className) {
  const box = element("div");
  const value = element("dd");
  value.append(element("div", figure, "figure " + (className || "")), element("div", more, "more"));
  box.append(element("dt", name), value);
  return box;
}
function drawHeader() {
  const first = view.plans[0], made0 = prepared[largest];
  $("title").textContent = view.title;
  $("subtitle").textContent = "Planned for " + view.target;
  // Of many spaces the load sheet has a table.
  const tiles = (many() ? view.spaces.slice(0, 1) : view.spaces).flatMap((space) => {
    const over = space.line_bytes !== null && space.total_bytes > space.line_bytes;
    const peak = tile("Planned peak, " + space.name, bytes(space.total_bytes), grouped(space.total_bytes) + " bytes", over ? "bad" : "");
    if (space.line_bytes === null) return [peak, tile("Line, " + space.name, "none", "no limit was drawn")];
    const left = space.line_bytes - space.total_bytes;
    return [peak, tile("Line, " + space.name, bytes(space.line_bytes), over ? "too low by " + bytes(-left) : bytes(left) + " left", over ? "bad" : "good")];
  });
  if (first) {
    const slower = view.unlimited_ns > 0 ? first.nanoseconds / view.unlimited_ns - 1 : 0;
    tiles.push(tile("Predicted step", time(first.nanoseconds), (slower > .0005 ? (slower * 100).toFixed(1) + " % longer than without a line" : "as without a line")
      + (first.micro_batches > 1 ? ", " + first.micro_batches + " micro-batches" : "")));
  }
  if (made0 && made0.count) {
    const { steps } = made0.plan;
    tiles.push(tile("Peak at", "step " + grouped(made0.peak + 1), made0.plan.words[steps.what[made0.peak]] + " of " + layerName(made0.plan.layers[steps.layer[made0.peak]])
      + ", of " + grouped(made0.count) + " steps"));
  }
  $("tiles").replaceChildren(...tiles);
  $("notes").replaceChildren(...view.notes.map((note) => element("li", note)));
}
const many = () => view.spaces.length > 2;
const ARENA_KIND = { "parameters": 0, "optimizer state": 1, "averages": 2, "statistics": 2, "batch": 3, "kept": 4, "in use": 8, "accumulators": 7, "workspace": 9 };
function drawSheets() {
  const blocks = view.spaces.map((space) => {
    const block = element("div"), most = Math.max(space.total_bytes, space.line_bytes || 0) || 1;
    const far = space.line_bytes !== null && space.line_bytes > space.total_bytes * 4;
    const scale = far ? space.total_bytes * 1.25 : most;
    const parts = [];
    const arena = space.arena.length ? space.arena : space.arena_bytes > 0 ? [{ name: "arena", bytes: space.arena_bytes, note: "offloaded states and values" }] : [];
    arena.forEach((entry) => parts.push([entry, entry.name === "alignment and gaps" ? outsideColour(2) : kindColour(ARENA_KIND[entry.name] === undefined ? 6 : ARENA_KIND[entry.name]), "arena"]));
    space.outside.forEach((entry, i) => parts.push([entry, "hsl(" + (185 + i * 9) + " " + (dark.matches ? "16% " + (38 + i % 2 * 14) + "%" : "18% " + (58 + i % 2 * 14) + "%") + ")", "outside"]));
    const heading = element("h3", (space.name.includes(":") ? space.name : space.name[0].toUpperCase() + space.name.slice(1)) + ": " + bytes(space.total_bytes)
      + (space.line_bytes === null ? "" : space.total_bytes > space.line_bytes ? ", above the line of " + bytes(space.line_bytes) : " of " + bytes(space.line_bytes)));
    const bar = element("div", undefined, "bar");
    bar.setAttribute("role", "img");
    bar.setAttribute("aria-label", "Load sheet of " + space.name + " as a bar; the table below has its entries.");
    for (const [entry, colour] of parts) {
      const part = element("span");
      part.style.width = entry.bytes / scale * 100 + "%";
      part.style.background = colour;
      part.title = entry.name + ": " + bytes(entry.bytes) + (entry.note ? ", " + entry.note : "");
      bar.append(part);
    }
    block.append(heading, bar);
    if (space.line_bytes !== null) {
      const mark = element("div", undefined, "bar-line"), name = element("span", far ? "line at " + bytes(space.line_bytes) + " →" : "↑ line " + bytes(space.line_bytes));
      const at = far ? 100 : Math.min(100, space.line_bytes / scale * 100);
      name.style.right = Math.min(100 - at, 88) + "%";
      name.style.color = "var(--danger)";
      mark.append(name);
      block.append(mark);
      if (!far && at < 99.9) {
        const rule = element("div", undefined, "bar-mark");
        rule.style.left = at + "%";
        bar.append(rule);
      }
    }
    const more = element("details"), scroll = element("div", undefined, "scroll"), table = element("table");
    more.open = view.spaces.length === 1;
    scroll.append(table);
    more.append(element("summary", "Entries of " + space.name), scroll);
    fill(table, "", [["entry"], ["size", true], ["bytes", true], ["where"], ["note"]],
      [...parts.map(([entry, colour, where]) => [[colour, entry.name], bytes(entry.bytes), grouped(entry.bytes), where, entry.note]),
        ["total", bytes(space.total_bytes), grouped(space.total_bytes), "", "planned peak"]]);
    block.append(more);
    return block;
  });
  if (many()) {
    const block = element("div"), scroll = element("div", undefined, "scroll"), table = element("table");
    fill(table, "", [["where"], ["planned peak", true], ["line", true], ["left", true], ["arena", true]],
      view.spaces.map((space) => [space.name, bytes(space.total_bytes), bytes(space.line_bytes), space.line_bytes === null ? "–" : bytes(space.line_bytes - space.total_bytes), bytes(space.arena_bytes)]));
    table.id = "spaces";
    scroll.append(table);
    block.append(element("p", "Each has its own plan and arena; choose it under Batch, below.", "hint"), scroll);
    blocks.unshift(block);
  }
  if (view.file.length) {
    const block = element("div"), table = element("table");
    fill(table, "", [["entry"], ["size", true], ["note"]], view.file.map((entry) => [entry.name, bytes(entry.bytes), entry.note]));
    block.append(element("h3", "Spill file, on disk"), table);
    blocks.push(block);
  }
  $("sheets").replaceChildren(...blocks);
}

// ---- curve and alternatives --------------------------------------------------------------------------------------------
function drawCurve() {
  const points = view.curve, others = view.alternatives, space = view.spaces[0];
  $("curve-section").hidden = points.length === 0 && others.length === 0;
  $("curve-figure").hidden = points.length === 0;
  if (points.length) {
    const canvas = $("curve"), g = open(canvas), today = view.plans[0];
    const slowest = Math.max(...points.map((p) => p.nanoseconds), today ? today.nanoseconds : 0) * 1.08 || 1;
    const y = frame(g, slowest, time, false), width = g.width - LEFT - RIGHT;
    const lines = points.map((p) => p.line_bytes).concat(space.line_bytes === null ? [] : [Math.min(space.line_bytes, points[0].line_bytes * 1.3)]);
    const least = Math.min(...lines) * .97, most = Math.max(...lines) * 1.03, x = (n) => LEFT + (Math.min(n, most) - least) / (most - least) * width;
    g.c.strokeStyle = ink("--accent");
    g.c.fillStyle = ink("--accent");
    g.c.lineWidth = 2;
    g.c.beginPath();
    points.forEach((p, i) => {
      // Down to the next point the plan stays the same.
      if (i) g.c.lineTo(x(p.line_bytes), y(points[i - 1].nanoseconds));
      g.c.lineTo(x(p.line_bytes), y(p.nanoseconds));
    });
    g.c.stroke();
    for (const p of points) { g.c.beginPath(); g.c.arc(x(p.line_bytes), y(p.nanoseconds), 3.5, 0, 7); g.c.fill(); }
    if (today) {
      const line = space.line_bytes === null ? space.total_bytes : space.line_bytes, at = x(line);
      g.c.fillStyle = ink("--danger");
      g.c.beginPath();
      g.c.arc(at, y(today.nanoseconds), 6, 0, 7);
      g.c.fill();
      // Below the curve, which falls to the right, unless the axis is there.
      const low = y(today.nanoseconds) > g.height - BOTTOM - 24;
      g.c.textBaseline = low ? "bottom" : "top";
      g.c.textAlign = at > LEFT + width / 2 ? "right" : "left";
      label(g.c, "today: " + (space.line_bytes === null ? "no line" : bytes(line)) + ", " + time(today.nanoseconds), at + (g.c.textAlign === "right" ? -9 : 9), y(today.nanoseconds) + (low ? -6 : 8));
    }
    across(g, least, most, bytes);
    canvas.setAttribute("aria-label", "Line against predicted time of a step; the table below has the points.");
    fill($("curve-table"), "Lines that were tried, from none down to the smallest that works.", [["line", true], ["planned peak", true], ["step", true]], points.map((p) => [bytes(p.line_bytes), bytes(p.planned_bytes), time(p.nanoseconds)]));
  }
  if (others.length)
    fill($("alternatives"), "With other flags", [["instead"], ["flags"], ["planned peak", true], ["step", true], ["under the line"]],
      others.map((a) => [a.change, a.flags, bytes(a.planned_bytes), time(a.nanoseconds), a.fits ? "yes" : "no"]));
}

// ---- what was measured -------------------------------------------------------------------------------------------------
/// A line chart of {x, y} series, with horizontal rules.
function chart(canvas, series, rules, words, binary, title) {
  const g = open(canvas), all = series.flatMap((s) => s.points.map((p) => p[1])).concat(rules.filter((r) => !r.far).map((r) => r.y));
  const most = Math.max(...all, 0) * 1.06 || 1, y = frame(g, most, words, binary), width = g.width - LEFT - RIGHT;
  const last = Math.max(view.measured.steps || 1, ...series.map((s) => s.points.length ? s.points[s.points.length - 1][0] : 0));
  const x = (n) => LEFT + (last > 1 ? (n - 1) / (last - 1) : .5) * width;
  for (const one of series) {
    g.c.strokeStyle = g.c.fillStyle = one.colour;
    g.c.lineWidth = 1.6;
    g.c.beginPath();
    one.points.forEach((p, i) => i ? g.c.lineTo(x(p[0]), y(p[1])) : g.c.moveTo(x(p[0]), y(p[1])));
    g.c.stroke();
    if (one.dots || one.points.length === 1)
      for (const p of one.points) { g.c.beginPath(); g.c.arc(x(p[0]), y(p[1]), 3, 0, 7); g.c.fill(); }
  }
  rules.forEach((r, i) => {
    const at = r.far ? 0 : y(r.y);
    g.c.strokeStyle = g.c.fillStyle = r.colour;
    if (!r.far) rule(g.c, LEFT, LEFT + width, at);
    g.c.textAlign = i % 2 ? "right" : "left";
    // The first name below its line, unless a curve is there and not above; the second above.
    const covered = (from, to) => series.some((s) => s.points.some((p) => y(p[1]) > from && y(p[1]) < to));
    const above = i % 2 || covered(at, at + 20) && !covered(at - 20, at);
    g.c.textBaseline = above ? "bottom" : "top";
    label(g.c, r.name + (r.far ? " ↑" : ""), i % 2 ? LEFT + width - 4 : LEFT + 4, above ? Math.max(14, at - 3) : at + 4);
  });
  across(g, 1, last, (n) => "step " + grouped(n));
  const ends = series[0] && series[0].points.length ? series[0].points[series[0].points.length - 1] : null;
  canvas.setAttribute("aria-label", title + (ends ? ": " + words(ends[1]) + " after step " + grouped(ends[0]) : "") + ". The table below has the figures.");
}
const number = (n) => n === null ? "–" : n >= 100 ? n.toFixed(1) : n.toPrecision(4).replace(/\.?0+$/, "");
function drawRun() {
  const run = view.measured;
  $("run-section").hidden = !run;
  if (!run) return;
  const done = run.by_step.length ? run.by_step[run.by_step.length - 1].step : 0;
  const top = run.by_step.reduce((most, p) => Math.max(most, p.resident_bytes || 0), 0);
  $("run-state").textContent = grouped(done) + " of " + grouped(run.steps) + " steps" + (run.live ? live.state : "")
    + (top ? "; largest resident set after a step " + bytes(top) + ", planned " + bytes(run.planned_bytes) : "");
  const of = (pick) => run.by_step.filter((p) => pick(p) !== null).map((p) => [p.step, pick(p)]);
  const accent = ink("--accent"), danger = ink("--danger"), good = ink("--good"), quiet = ink("--quiet");
  chart($("loss"), [
    { points: of((p) => p.loss), colour: accent },
    { points: run.validations.filter((v) => v.loss !== null).map((v) => [v.step, v.loss]), colour: good, dots: true },
  ], [], number, false, "Loss of training steps, and of validations as dots");
  const rules = [{ y: run.planned_bytes, name: "planned " + bytes(run.planned_bytes), colour: quiet }];
  if (run.line_bytes !== null) rules.push({ y: run.line_bytes, name: "line " + bytes(run.line_bytes), colour: danger, far: run.line_bytes > 2 * Math.max(top, run.planned_bytes) });
  chart($("resident"), [{ points: of((p) => p.resident_bytes), colour: accent }], rules, bytes, true, "Resident set");
  const predicted = view.plans[0] ? [{ y: view.plans[0].nanoseconds / 1e9, name: "predicted " + time(view.plans[0].nanoseconds), colour: quiet }] : [];
  chart($("seconds"), [{ points: of((p) => p.seconds), colour: accent }], predicted, (s) => time(s * 1e9), false, "Time of a step");
  const every = Math.max(1, Math.ceil(run.by_step.length / 60));
  fill($("run-table"), "", [["step", true], ["loss", true], ["time", true], ["resident set", true]],
    run.by_step.filter((_, i) => i % every === 0 || i === run.by_step.length - 1).map((p) => [grouped(p.step), number(p.loss), time(p.seconds * 1e9), bytes(p.resident_bytes)]));
}
function drawKernels() {
  const made = current(), { plan } = made, measured = plan.measured_ns || [];
  $("kernels-section").hidden = measured.length === 0;
  if (!measured.length) return;
  const order = Array.from(measured.keys()).filter((s) => measured[s] !== null).sort((a, b) => measured[b] - measured[a]).slice(0, 30);
  const all = measured.reduce((sum, n) => sum + (n || 0), 0) || 1;
  fill($("kernels"), "The shortest time of each in the run; of the last micro-batch.", [["measured", true], ["share", true], ["predicted", true], ["does"], ["layer"], ["step", true]], order.map((s) => [
    time(measured[s]), (measured[s] / all * 100).toFixed(1) + " %", time(plan.steps.end_ns[s] - plan.steps.start_ns[s]), plan.words[plan.steps.what[s]],
    layerName(plan.layers[plan.steps.layer[s]]), grouped(s + 1)]));
}

// ---- all together ------------------------------------------------------------------------------------------------------
function draw() {
  drawTimeline();
  drawMap();
  drawLegend();
  drawHeld();
  say();
}
function choosePlan() {
  const made = current();
  stack = bands(made, now.by);
  const axis = $("axis"), measured = axis.querySelector("[value=measured]");
  if (made.edges.measured && !measured) {
    const option = element("option", "measured time");
    option.value = "measured";
    axis.append(option);
  } else if (!made.edges.measured && measured) {
    measured.remove();
    if (now.axis === "measured") now.axis = axis.value = "steps";
  }
  $("layers").replaceChildren(...made.plan.layers.map((name) => {
    const option = element("option");
    option.value = layerName(name);
    return option;
  }));
  drawKernels();
  draw();
}
function zoom(factor, at) {
  const width = Math.min(1, Math.max((now.to - now.from) * factor, Math.min(1, 4 / Math.max(4, current().count))));
  const share = at === undefined ? .5 : at, middle = now.from + (now.to - now.from) * share;
  now.from = Math.max(0, Math.min(1 - width, middle - width * share));
  now.to = now.from + width;
  schedule();
}
function pan(by) {
  const width = now.to - now.from;
  now.from = Math.max(0, Math.min(1 - width, now.from + by));
  now.to = now.from + width;
  schedule();
}
function moveTo(step) {
  const made = current(), e = edges(), whole = e[made.count] || 1;
  now.cursor = Math.max(0, Math.min(made.count - 1, step));
  const at = e[now.cursor] / whole;
  if (at < now.from || at > now.to) pan(at - (now.from + now.to) / 2);
  schedule();
}
let waiting = false;
function schedule() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; draw(); });
}
function listen() {
  $("plan").append(...view.plans.map((plan, i) => {
    const option = element("option", plan.title);
    option.value = String(i);
    return option;
  }));
  $("plan").value = String(now.plan);
  $("plan").addEventListener("change", (event) => {
    Object.assign(now, { plan: Number(event.target.value), cursor: null, layer: null, band: null, from: 0, to: 1 });
    $("layer").value = "";
    choosePlan();
  });
  $("by").addEventListener("change", (event) => { now.by = event.target.value; now.band = null; stack = bands(current(), now.by); draw(); });
  $("axis").addEventListener("change", (event) => { now.axis = event.target.value; now.from = 0; now.to = 1; draw(); });
  $("layer").addEventListener("input", (event) => {
    const found = current().plan.layers.findIndex((name) => layerName(name) === event.target.value);
    if (found >= 0 || event.target.value === "") { now.layer = found < 0 ? null : found; now.band = null; draw(); }
  });
  $("zoom-in").addEventListener("click", () => zoom(.5));
  $("zoom-out").addEventListener("click", () => zoom(2));
  $("reset").addEventListener("click", () => { now.from = 0; now.to = 1; now.cursor = null; selectLayer(null); });
  $("to-peak").addEventListener("click", () => moveTo(current().peak));
  for (const id of ["timeline", "map"]) {
    const canvas = $(id);
    let from = null, moved = false;
    canvas.addEventListener("pointermove", (event) => {
      if (from !== null && event.buttons) {
        const by = (from - event.clientX) / Math.max(1, canvas.clientWidth - LEFT - RIGHT) * (now.to - now.from);
        if (Math.abs(from - event.clientX) > 3) { moved = true; from = event.clientX; leave(); pan(by); }
        return;
      }
      id === "timeline" ? hoverTimeline(event) : hoverMap(event);
    });
    canvas.addEventListener("pointerdown", (event) => { from = event.clientX; moved = false; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointerup", (event) => {
      from = null;
      if (moved) return;
      if (id === "timeline") {
        const hit = hoverTimeline(event);
        if (!hit) return;
        now.cursor = hit.s;
        if (hit.band && hit.band.constant === undefined && hit.band.layer !== undefined) return selectLayer(hit.band.layer);
        now.layer = null;
        $("layer").value = "";
        now.band = hit.band && hit.band.constant === undefined ? hit.band.key : null;
        draw();
      } else {
        const [x, y] = inside(event, canvas), i = tensorAt(x, y);
        selectLayer(i < 0 ? null : current().layer[i]);
      }
    });
    canvas.addEventListener("pointerleave", leave);
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const [x] = inside(event, canvas), share = Math.max(0, Math.min(1, (x - LEFT) / Math.max(1, canvas.clientWidth - LEFT - RIGHT)));
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / 1000 * (now.to - now.from));
      else zoom(event.deltaY > 0 ? 1.25 : .8, share);
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const made = current(), at = now.cursor === null ? made.peak : now.cursor, many = Math.max(1, Math.round(made.count / 20));
      const keys = {
        ArrowRight: () => moveTo(at + 1), ArrowLeft: () => moveTo(at - 1), PageDown: () => moveTo(at + many), PageUp: () => moveTo(at - many),
        Home: () => moveTo(made.peak), "+": () => zoom(.5), "=": () => zoom(.5), "-": () => zoom(2), Escape: () => { now.cursor = null; selectLayer(null); },
      };
      if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
    });
  }
  const again = () => { drawSheets(); drawCurve(); drawRun(); draw(); };
  let width = window.innerWidth;
  window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; again(); } });
  dark.addEventListener("change", again);
}

// ---- a run that goes on ------------------------------------------------------------------------------------------------
const live = {
  state: ", connecting",
  start() {
    const source = new EventSource("events" + location.search);
    const show = (state) => { live.state = state; drawRun(); };
    source.addEventListener("open", () => show(", live"));
    source.addEventListener("error", () => show(source.readyState === 2 ? ", the run has ended" : ", connecting again"));
    source.addEventListener("all", (event) => { Object.assign(view.measured, JSON.parse(event.data)); drawRun(); });
    source.addEventListener("more", (event) => {
      const { by_step, validations } = JSON.parse(event.data);
      view.measured.by_step.push(...by_step);
      view.measured.validations.push(...validations);
      drawRun();
    });
    source.addEventListener("end", () => { source.close(); show(", the run has ended"); });
  },
};

prepared[largest] = view.plans.length ? prepare(view.plans[largest]) : null;
if (view.plans.length) {
  listen();
  drawHeader();
  drawSheets();
  choosePlan();
  drawCurve();
  drawRun();
  if (view.measured && view.measured.live) live.start();
}
document.documentElement.dataset.ready = "yes";
})();
