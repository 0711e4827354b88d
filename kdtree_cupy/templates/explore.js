"use strict";
// The explorer's page: builds trees best-first from recorded rows, replays them, draws. No library, no request.
const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const $ = (id) => document.getElementById(id);
const C = DATA.colours;

// ---- data ----
const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer;
for (const t of DATA.traces) {
  const small = t.labels.length < 65536 ? Uint16Array : Uint32Array;
  t.ids = new small(bytes(t.ids));                 // [positions, D, K], indices into labels
  t.tokens = new small(bytes(t.tokens));
  t.logprobs = new Float32Array(bytes(t.logprobs));
  t.static = new Float32Array(bytes(t.static));    // [sequences, D, K], log of the fitted table
  t.sequence = new Int32Array(t.tokens.length);
  for (let s = 0; s + 1 < t.offsets.length; s++) t.sequence.fill(s, t.offsets[s], t.offsets[s + 1]);
}

// ---- the policies: rows of scores, then best-first search ----
function temper(row, inverse) {                    // p ** inverse, normalised; the rest of the vocabulary as likely as the last rank
  let sum = 0, total = 0;
  const last = Number.isFinite(row[row.length - 1]) ? row[row.length - 1] : 0;
  for (const x of row) sum += Math.exp(x);
  for (const x of row) total += Math.exp(x * inverse);
  total += Math.max(1 - sum, 0) * Math.exp(last * (inverse - 1));
  const shift = Math.log(total);
  return row.map((x) => (x === -Infinity ? x : Math.fround(Math.min(x * inverse - shift, 0))));
}

function rowsAt(t, at, s) {
  const rows = [], sequence = t.sequence[at];
  for (let d = 0; d < Math.min(s.depth, t.depth); d++) {
    const from = (at * t.depth + d) * t.width;
    let row = Array.from(t.logprobs.subarray(from, from + t.width));
    if (s.temperature !== 1) row = temper(row, 1 / s.temperature);
    row = row.map((x, r) => (r < s.ranks ? x : -Infinity));
    let order = row.map((_, r) => r);
    if (s.policy === "chain") row = row.map((x, r) => (r ? -Infinity : x));
    if (s.policy === "calibrated") row = temper(row, 1 / t.temperatures[sequence][d]);
    if (s.policy === "static") {
      const fixed = (sequence * t.depth + d) * t.width;
      row = row.map((x, r) => (x === -Infinity ? x : t.static[fixed + r]));
      order = order.sort((a, b) => row[b] - row[a] || a - b);
      row = order.map((r) => row[r]);
    }
    rows.push({ row, order });
  }
  return rows;
}

function grow(rows, budget) {
  const parent = [-1], depth = [0], slot = [-1], score = [0], heap = [];
  const path = (c) => {
    const out = [c.slot];
    for (let n = c.parent; n > 0; n = parent[n]) out.push(slot[n]);
    return out.reverse();
  };
  const before = (a, b) => {
    if (a.score !== b.score) return a.score > b.score;
    const x = path(a), y = path(b);
    for (let i = 0; i < Math.min(x.length, y.length); i++) if (x[i] !== y[i]) return x[i] < y[i];
    return x.length < y.length;
  };
  const push = (node, k) => {
    const level = rows[depth[node]];
    if (!level || k >= level.row.length || level.row[k] === -Infinity) return;
    let i = heap.push({ parent: node, slot: k, score: score[node] + level.row[k] }) - 1;
    for (let up; i && before(heap[i], heap[(up = (i - 1) >> 1)]); i = up) [heap[i], heap[up]] = [heap[up], heap[i]];
  };
  const pop = () => {
    const top = heap[0], end = heap.pop();
    if (heap.length) heap[0] = end;
    for (let i = 0; ; ) {
      let best = i;
      for (const j of [2 * i + 1, 2 * i + 2]) if (j < heap.length && before(heap[j], heap[best])) best = j;
      if (best === i) return top;
      [heap[i], heap[best]] = [heap[best], heap[i]];
      i = best;
    }
  };
  push(0, 0);
  while (heap.length && parent.length <= budget) {
    const c = pop();
    parent.push(c.parent); depth.push(depth[c.parent] + 1); slot.push(c.slot); score.push(c.score);
    push(c.parent, c.slot + 1);
    push(parent.length - 1, 0);
  }
  const rank = slot.map((k, i) => (i ? rows[depth[i] - 1].order[k] : -1));
  return { parent, depth, rank, score };
}

function treeAt(t, at, s, budget) {
  const tree = grow(rowsAt(t, at, s), budget);
  tree.token = tree.rank.map((r, i) => (i ? t.ids[(at * t.depth + tree.depth[i] - 1) * t.width + r] : t.tokens[at]));
  const end = t.offsets[t.sequence[at] + 1];
  tree.path = [0];
  for (let node = 0, d = 1; at + d < end; d++) {
    node = tree.parent.findIndex((p, i) => p === node && i && tree.token[i] === t.tokens[at + d]);
    if (node < 0) break;
    tree.path.push(node);
  }
  return tree;
}

// ---- the replay: rounds jump from accept to accept ----
const replays = new Map();
function replay(s) {
  const key = [s.trace, s.policy, s.ranks, s.depth, s.temperature].join();
  if (replays.has(key)) return replays.get(key);
  const t = DATA.traces[s.trace], most = DATA.budgets[DATA.budgets.length - 1], known = [];
  for (let at = 0; at < t.tokens.length; at++) {
    const tree = treeAt(t, at, s, most);
    known.push({ path: tree.path, nodes: tree.parent.length - 1 });
  }
  const found = DATA.budgets.map((budget) => {
    const roots = [], nodes = [];
    let tokens = 0;
    for (let q = 0; q + 1 < t.offsets.length; q++) {
      tokens += Math.max(t.offsets[q + 1] - t.offsets[q] - 1, 0);
      for (let at = t.offsets[q]; at < t.offsets[q + 1] - 1; ) {
        roots.push(at);
        nodes.push(Math.min(known[at].nodes, budget));
        at += known[at].path.filter((node) => node > 0 && node <= budget).length + 1;
      }
    }
    return { roots, nodes, tau: tokens / roots.length };
  });
  replays.set(key, found);
  return found;
}

function between(x, xs, ys) {
  if (x <= xs[0]) return ys[0];
  for (let i = 1; i < xs.length; i++)
    if (x <= xs[i]) return ys[i - 1] + ((ys[i] - ys[i - 1]) * (x - xs[i - 1])) / (xs[i] - xs[i - 1]);
  return ys[ys.length - 1];
}
function roundCost(cost, nodes, context, chain) {      // in steps of one token
  const along = (table) => {
    const row = cost.nodes.map((_, j) => between(context, cost.contexts, table.map((r) => r[j])));
    const n = row.length, last = cost.nodes[n - 1];
    const slope = n > 1 ? Math.max(0, (row[n - 1] - row[n - 2]) / (last - cost.nodes[n - 2])) : 0;
    return between(nodes, cost.nodes, row) + slope * Math.max(nodes - last, 0);
  };
  if (cost.round_ar) return chain && cost.chain_round_ar !== null ? cost.chain_round_ar : along(cost.round_ar);
  return (cost.fixed_ms + along(cost.verify_ms)) / between(context, cost.contexts, cost.ar_ms);
}
function speedups(s) {
  const cost = DATA.costs[s.cost];
  return replay(s).map((r) => {
    const price = new Map();
    let sum = 0;
    for (const n of r.nodes) {
      if (!price.has(n)) price.set(n, roundCost(cost, n, s.context, s.policy === "chain"));
      sum += price.get(n);
    }
    return r.tau / (sum / r.nodes.length);
  });
}

// ---- drawing ----
function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  return made;
}
function canvas(id, width, height) {
  const svg = $(id);
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${Math.round(width)} ${Math.round(height)}`);
  svg.style.maxWidth = `${Math.round(width * 1.25)}px`;
  return (name, attributes, text) => svg.appendChild(element(name, attributes, text));
}
const shorter = (text, most) => ([...text].length > most ? [...text].slice(0, most - 1).join("") + "\u2026" : text);

function drawTree(t, tree) {
  const n = tree.parent.length, children = tree.parent.map(() => []), place = new Array(n).fill(0);
  for (let i = 1; i < n; i++) children[tree.parent[i]].push(i);
  for (const list of children) list.sort((a, b) => tree.rank[a] - tree.rank[b]);
  let leaves = 0;
  const order = [], stack = [0];
  while (stack.length) {
    const node = stack.pop();
    order.push(node);
    if (!children[node].length) place[node] = leaves++;
    stack.push(...children[node].slice().reverse());
  }
  for (const node of order.reverse())
    if (children[node].length) place[node] = children[node].reduce((a, c) => a + place[c], 0) / children[node].length;
  const deepest = Math.max(...tree.depth), column = 92;
  const row = Math.min(21, Math.max(4.5, 560 / Math.max(leaves, 1)));
  const width = 16 + deepest * column + 120, height = 18 + leaves * row + 24;
  const put = canvas("tree", width, Math.max(height, 120)), hot = new Set(tree.path);
  const x = (i) => 16 + tree.depth[i] * column, y = (i) => 18 + (place[i] + 0.5) * row;
  for (let i = 1; i < n; i++) {
    const p = tree.parent[i], taken = hot.has(i) && hot.has(p), middle = (x(p) + x(i)) / 2;
    put("path", {
      d: `M${x(p)} ${y(p)}C${middle} ${y(p)} ${middle} ${y(i)} ${x(i)} ${y(i)}`, fill: "none",
      stroke: taken ? C.orange : C.edge, "stroke-width": taken ? 3.2 : 0.6 + 2.2 * Math.exp(tree.score[i] - tree.score[p]),
    });
  }
  for (let i = 0; i < n; i++) {
    const accepted = hot.has(i), label = t.labels[tree.token[i]];
    const dot = put("circle", {
      cx: x(i), cy: y(i), r: accepted ? 5 : Math.min(3.6, 0.4 * row + 0.8), fill: accepted ? C.orange : i ? C.blue : C.ink,
      class: accepted ? "node accepted" : "node",
    });
    const step = i ? tree.score[i] - tree.score[tree.parent[i]] : 0;
    dot.appendChild(element("title", {}, i
      ? `${label}\ndepth ${tree.depth[i]}, rank ${tree.rank[i]}, node ${i}\nstep ${step.toFixed(3)}, path ${tree.score[i].toFixed(3)}: probability ${Math.exp(tree.score[i]).toPrecision(3)}`
      : `root ${label}`));
    if (row < 10 && !accepted) continue;
    const above = children[i].length > 0 && (row >= 15 || !i);  // else beside the node, over its lines
    put("text", {
      x: above ? (i ? x(i) : x(i) - 8) : x(i) + 8, y: above ? y(i) - 7 : y(i) + 4, "text-anchor": above && i ? "middle" : "start",
      class: accepted ? "label accepted" : children[i].length && !above ? "label beside" : "label",
    }, shorter(label, 14));
  }
  for (let d = 0; d <= deepest; d++)
    put("text", { x: 16 + d * column, y: Math.max(height, 120) - 6, "text-anchor": "middle", class: "axis" }, d ? `depth ${d}` : "root");
}

function drawMask(tree) {
  const n = tree.parent.length, size = 230, scale = size / n, put = canvas("mask", size + 2, size + 2);
  const hot = new Set(tree.path), paths = { true: "", false: "" };
  for (let i = 0; i < n; i++) for (let j = i; j >= 0; j = tree.parent[j]) paths[hot.has(i)] += `M${j} ${i}h1v1h-1z`;
  const holder = put("g", { transform: `translate(1 1) scale(${scale})` });
  holder.appendChild(element("rect", { width: n, height: n, fill: C.tint }));
  holder.appendChild(element("path", { d: paths.false, fill: C.blue }));
  holder.appendChild(element("path", { d: paths.true, fill: C.orange }));
  $("mask-title").textContent = `Ancestor mask, ${n} \u00d7 ${n}`;
}

function drawCurve(id, values, at, colour, whole) {
  const width = 400, height = 210, left = 38, right = 12, top = 14, bottom = 36;
  const all = whole ? values.concat(whole) : values, put = canvas(id, width, height);
  const low = Math.floor(Math.min(1, ...all) * 5) / 5, high = Math.ceil(Math.max(...all) * 5 + 0.5) / 5;
  const logs = DATA.budgets.map((b) => Math.log2(Math.max(b, 1)));
  const x = (i) => left + ((logs[i] - logs[0]) / (logs[logs.length - 1] - logs[0] || 1)) * (width - left - right);
  const y = (v) => height - bottom - ((v - low) / (high - low)) * (height - top - bottom);
  const step = [0.1, 0.2, 0.5, 1, 2, 5].find((s) => (high - low) / s <= 5) || 10;
  for (let tick = Math.ceil(low / step - 1e-9); tick * step <= high + 1e-9; tick++) {
    put("path", { d: `M${left} ${y(tick * step)}H${width - right}`, stroke: C.line });
    put("text", { x: left - 6, y: y(tick * step) + 4, "text-anchor": "end", class: "axis" }, (tick * step).toFixed(step < 1 ? 1 : 0));
  }
  DATA.budgets.forEach((b, i) => {
    if ((b & (b - 1)) === 0) put("text", { x: x(i), y: height - bottom + 15, "text-anchor": "middle", class: "axis" }, b);
  });
  put("text", { x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle", class: "axis" }, DATA.budget_label);
  const line = (ys) => ys.map((v, i) => `${x(i)},${y(v)}`).join(" ");
  if (whole) put("polyline", { points: line(whole), fill: "none", stroke: C.soft, "stroke-dasharray": "5 4" });
  put("polyline", { points: line(values), fill: "none", stroke: colour, "stroke-width": 2.2 });
  values.forEach((v, i) => put("circle", { cx: x(i), cy: y(v), r: 2.4, fill: colour }));
  const early = at < 3, corner = { x: x(at) + (early ? 9 : -9), y: Math.max(y(values[at]) + (early ? 18 : -9), 13) };
  put("path", { d: `M${x(at)} ${y(values[at])}V${height - bottom}`, stroke: C.orange, "stroke-dasharray": "3 3" });
  put("circle", { cx: x(at), cy: y(values[at]), r: 6, fill: C.orange });
  put("text", {
    ...corner, "text-anchor": early ? "start" : "end", class: "value", id: `${id}-value`,
  }, values[at].toFixed(2));
}

function drawPassage(t, at, accepted) {
  const box = $("passage"), from = Math.max(t.offsets[t.sequence[at]], at - 60), end = t.offsets[t.sequence[at] + 1];
  box.replaceChildren();
  const add = (a, b, name) => {
    if (a >= b) return;
    const part = box.appendChild(document.createElement("span"));
    part.className = name;
    part.textContent = t.texts.slice(a, b).join("");
  };
  add(from, at, "past"); add(at, at + 1, "root"); add(at + 1, at + 1 + accepted, "taken");
  add(at + 1 + accepted, Math.min(end, at + 2 + accepted), "bonus"); add(at + 2 + accepted, Math.min(end, at + accepted + 14), "past");
  box.scrollTop = box.querySelector(".root").offsetTop - box.clientHeight / 2;
}

// ---- state and controls ----
const state = { trace: 0, policy: "ddtree", budget: 16, position: DATA.start, ranks: 0, depth: 0, temperature: 1, cost: 0, context: 0 };
const NUMBERS = ["trace", "budget", "position", "ranks", "depth", "temperature", "cost", "context"];
function options(id, entries, value) {
  const select = $(id);
  select.replaceChildren(...entries.map(([label, key]) => Object.assign(document.createElement("option"), { textContent: label, value: key })));
  select.value = value;
}
const within = (x, low, high) => Math.min(Math.max(Number.isFinite(x) ? x : high, low), high);
function settle() {                                   // keep every choice within what the others allow
  state.trace = within(Math.round(state.trace), 0, DATA.traces.length - 1);
  const t = DATA.traces[state.trace];
  if (!DATA.policies.includes(state.policy)) state.policy = "ddtree";
  if (!DATA.budgets.includes(state.budget)) state.budget = DATA.budgets.reduce((a, b) => (b <= state.budget ? b : a));
  state.position = within(Math.round(state.position), 0, t.tokens.length - 1);
  state.ranks = state.ranks >= 1 ? within(Math.round(state.ranks), 1, t.width) : t.width;
  state.depth = state.depth >= 1 ? within(Math.round(state.depth), 1, t.depth) : t.depth;
  state.temperature = Math.round(within(state.temperature, 0.5, 2) * 10) / 10;
  state.cost = within(Math.round(state.cost), 0, DATA.costs.length - 1);
  const contexts = DATA.costs[state.cost].contexts;
  if (!contexts.includes(state.context)) state.context = DATA.costs[state.cost].default_context;
}
function showControls() {
  const t = DATA.traces[state.trace];
  $("trace").value = state.trace; $("policy").value = state.policy; $("cost").value = state.cost;
  $("budget").value = DATA.budgets.indexOf(state.budget);
  for (const [id, most] of [["position", t.tokens.length - 1], ["ranks", t.width], ["depth", t.depth]]) {
    $(id).max = most;
    $(id).value = state[id];
  }
  $("temperature").value = state.temperature;
  const contexts = DATA.costs[state.cost].contexts;
  options("context", contexts.map((c) => [contexts.length > 1 ? `${c} tokens` : "as published", c]), state.context);
  $("context").disabled = contexts.length < 2;
  for (const id of ["budget", "position", "ranks", "depth"]) $(`${id}-out`).textContent = state[id];
  $("temperature-out").textContent = state.temperature.toFixed(1);
}
function draw() {
  settle();
  showControls();
  const t = DATA.traces[state.trace], tree = treeAt(t, state.position, state, state.budget);
  const accepted = tree.path.length - 1, sequence = t.sequence[state.position];
  const expected = 1 + tree.score.slice(1).reduce((a, x) => a + Math.exp(x), 0);
  $("accepted").textContent = `${accepted} draft${accepted === 1 ? "" : "s"} accepted`;
  $("verdict").textContent = ` of ${tree.parent.length - 1}. The tree expected ${expected.toFixed(2)} tokens; this round commits `
    + `${Math.min(accepted + 1, t.offsets[sequence + 1] - 1 - state.position)}.`;
  $("place").textContent = `sequence ${sequence}, token ${state.position - t.offsets[sequence]}`;
  drawPassage(t, state.position, accepted);
  drawTree(t, tree);
  drawMask(tree);
  const found = replay(state), at = DATA.budgets.indexOf(state.budget), colour = DATA.policy_colours[state.policy];
  const plain = state.ranks === t.width && state.depth === t.depth && state.temperature === 1;
  const whole = plain && t.whole && t.whole[state.policy] ? t.whole[state.policy] : null;
  drawCurve("tau", found.map((r) => r.tau), at, colour, whole);
  $("tau-note").textContent = `${found[at].roots.length} rounds over the ${t.tokens.length} tokens on this page`
    + (whole ? `; dashed: all ${t.all_tokens.toLocaleString("en")} tokens of the trace` : "");
  drawCurve("speedup", speedups(state), at, colour, null);
  $("cost-note").textContent = DATA.costs[state.cost].label;
  const hash = "#" + Object.entries(state).map(([k, v]) => `${k}=${v}`).join("&");
  history.replaceState(null, "", hash);
}
function read(hash) {
  for (const [key, value] of new URLSearchParams(hash.slice(1)))
    if (NUMBERS.includes(key)) state[key] = Number(value);
    else if (key === "policy") state.policy = value;
}
function step(direction) {
  const t = DATA.traces[state.trace], here = state.position;
  let next = replay(state)[DATA.budgets.indexOf(state.budget)].roots.filter((r) => r < here).pop();
  if (direction > 0) {
    next = here + treeAt(t, here, state, state.budget).path.length;
    while (t.offsets.includes(next + 1)) next++;       // no round starts at the last token of a sequence
  }
  if (next < t.tokens.length) { state.position = next; draw(); }
}
let asked = false;
function later() {
  if (!asked) requestAnimationFrame(() => { asked = false; draw(); });
  asked = true;
}
options("trace", DATA.traces.map((t, i) => [t.name, i]), 0);
options("policy", DATA.policies.map((p) => [DATA.policy_labels[p], p]), state.policy);
options("cost", DATA.costs.map((c, i) => [c.name, i]), 0);
$("budget").max = DATA.budgets.length - 1;
for (const id of NUMBERS)
  $(id).addEventListener("input", (event) => {
    const value = Number(event.target.value);
    state[id] = id === "budget" ? DATA.budgets[value] : value;
    if (id === "trace") state.position = 0;
    if (id === "ranks" && value === DATA.traces[state.trace].width) state.ranks = 0;
    later();
  });
$("policy").addEventListener("input", (event) => { state.policy = event.target.value; later(); });
$("next").addEventListener("click", () => step(1));
$("previous").addEventListener("click", () => step(-1));
window.addEventListener("hashchange", () => { read(location.hash); draw(); });
read(location.hash);
draw();
window.kdtree = { state, treeAt: (s, at, b) => treeAt(DATA.traces[s.trace], at, s, b), replay, speedups };
