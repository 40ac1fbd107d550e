// Stacked uPlot panes on one time axis: shared cursor, drag to zoom, double click to go back.
// Zooming is the server's work: a selection is only reported, new data comes back.
const GUTTER = 64;
const LABELS = 22; // room above the first pane for what marks and losses are called
const WHOLE = new Set(["tokens", "requests", "percent"]);
const WHOLE_STEPS = [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1e3, 2e3, 2500, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6];

function cumulate(pane) {
  // Stacked series are drawn as running sums from the last to the first, so each covers the next.
  const base = pane.x.map(() => 0);
  return pane.series.map((series) => {
    if (!series.stacked) return series.values;
    return series.values.map((v, i) => (v === null ? null : (base[i] += v)));
  });
}

function columns(pane) {
  const sums = cumulate(pane);
  const drawn = pane.series.map((_, i) => i);
  const stacked = drawn.filter((i) => pane.series[i].stacked).reverse();
  const order = [...stacked, ...drawn.filter((i) => !pane.series[i].stacked)];
  return { order, data: [pane.x, ...order.map((i) => sums[i])] };
}

function lineOf(series, themed) {
  const stroke = colour(series.colour, themed);
  const options = { label: series.label, stroke, width: series.width ?? 1.25, points: { show: false }, spanGaps: false };
  if (series.dash) options.dash = series.dash;
  if (series.stacked) Object.assign(options, { fill: stroke, width: 0 });
  if (series.stacked || series.stepped) options.paths = uPlot.paths.stepped({ align: -1 });
  if (series.edge) options.width = 0;
  return options;
}

function backdrop(plot, figure, themed) {
  const { ctx, bbox } = plot;
  const at = (x) => Math.min(bbox.left + bbox.width, Math.max(bbox.left, plot.valToPos(x, "x", true)));
  ctx.save();
  for (const [from, to] of figure.shades) {
    const [a, b] = [at(from), at(to)];
    ctx.fillStyle = themed.shade;
    ctx.fillRect(a, bbox.top, Math.max(b - a, 1), bbox.height);
    hatch(ctx, a, bbox.top, Math.max(b - a, 1), bbox.height, themed.grid);
  }
  if (figure.window) {
    ctx.strokeStyle = themed.faint;
    ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
    for (const x of figure.window) line(ctx, at(x), bbox.top, bbox.height);
  }
  ctx.restore();
}

function foreground(plot, figure, themed) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.setLineDash([]);
  ctx.lineWidth = devicePixelRatio;
  ctx.strokeStyle = themed.text;
  const [left, right] = [bbox.left, bbox.left + bbox.width];
  const labels = [];
  for (const [from, to, label] of figure.shades) {
    const [a, b] = [from, to].map((x) => plot.valToPos(x, "x", true));
    if (b > left && a < right) labels.push([Math.max(a, left), label]);
  }
  for (const [x, label] of figure.marks) {
    const at = plot.valToPos(x, "x", true);
    if (at < left || at > right) continue;
    line(ctx, at, bbox.top, bbox.height);
    labels.push([at, label]);
  }
  if (plot.first) write(plot, labels.sort((a, b) => a[0] - b[0]), themed);
  ctx.restore();
}

function line(ctx, x, top, height) {
  ctx.beginPath();
  ctx.moveTo(x, top);
  ctx.lineTo(x, top + height);
  ctx.stroke();
}

function hatch(ctx, left, top, width, height, stroke) {
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, top, width, height);
  ctx.clip();
  ctx.strokeStyle = stroke;
  for (let x = left - height; x < left + width; x += 8 * devicePixelRatio) {
    ctx.beginPath();
    ctx.moveTo(x, top + height);
    ctx.lineTo(x + height, top);
    ctx.stroke();
  }
  ctx.restore();
}

// Labels stand above the pane, within its width; those that would overlap are written as one.
function write(plot, labels, themed) {
  const { ctx, bbox } = plot;
  ctx.font = `${11 * devicePixelRatio}px sans-serif`;
  ctx.textBaseline = "bottom";
  ctx.textAlign = "left";
  ctx.fillStyle = themed.text;
  const place = ([at, text]) => {
    const width = ctx.measureText(text).width;
    return { at, text, width, x: Math.max(bbox.left, Math.min(at, bbox.left + bbox.width - width)) };
  };
  const placed = [];
  for (let label of labels.map(place)) {
    const before = placed.at(-1);
    if (before && label.x < before.x + before.width + 10 * devicePixelRatio) {
      label = place([before.at, `${before.text} · ${label.text}`]);
      placed.pop();
    }
    placed.push(label);
  }
  for (const { text, x } of placed) ctx.fillText(text, x, bbox.top - 4 * devicePixelRatio, bbox.width);
}

function legendOf(pane, themed) {
  const bar = node("div", "legend");
  bar.append(node("span", "title", pane.title));
  if (pane.note) bar.append(node("span", "note", pane.note));
  const values = pane.series.map((series) => {
    const item = node("span", "item");
    const swatch = node("i", series.stacked ? "area" : series.edge ? `edge ${series.edge}` : series.dash ? "dashed" : "line");
    swatch.style.setProperty("--ink", colour(series.colour, themed));
    const value = node("b", "", "");
    item.append(swatch, node("span", "", series.label), value);
    if (!series.hidden) bar.append(item);
    return value;
  });
  return { bar, values };
}

function optionsFor(pane, figure, themed, { width, first, last, sync, report, legend }) {
  const axis = { stroke: themed.faint, font: themed.font, grid: { stroke: themed.grid, width: 1 }, ticks: { show: false } };
  const { order } = columns(pane);
  const edges = order.map((i, at) => (pane.series[i].edge ? at + 1 : 0)).filter(Boolean);
  return {
    width, height: pane.height + (last ? 26 : 0) + (first ? LABELS - 8 : 0), ms: 1, padding: [first ? LABELS : 8, 8, last ? 0 : 6, 0],
    cursor: { sync: { key: sync }, drag: { x: true, y: false, setScale: false }, points: { size: 5 }, y: false },
    legend: { show: false },
    scales: {
      x: { range: () => figure.range },
      y: { range: (_, __, max) => [0, pane.top ?? (max > 0 ? max * 1.08 : 10)] },
    },
    axes: [
      { ...axis, size: last ? 26 : 0, show: last, space: 120, values: clock },
      { ...axis, size: GUTTER, space: 26, gap: 6, ...(WHOLE.has(pane.format) ? { incrs: WHOLE_STEPS } : {}), values: (_, ticks) => ticks.map((v) => show(v, pane.format).replace(".0 ms", " ms").replace(".00 s", " s")) },
    ],
    series: [{}, ...order.map((i) => lineOf(pane.series[i], themed))],
    bands: edges.length === 2 ? [{ series: [edges[1], edges[0]], fill: `color-mix(in srgb, ${colour(pane.series[order[edges[0] - 1]].colour, themed)} 28%, transparent)` }] : [],
    hooks: {
      drawClear: [(plot) => backdrop(plot, figure.live.figure, themed)],
      draw: [(plot) => foreground(plot, figure.live.figure, themed)],
      setSelect: [(plot) => report.select(plot)],
      setCursor: [(plot) => legend(plot.cursor.idx)],
    },
  };
}

// Seconds matter when a range is short, milliseconds when it is very short.
function clock(plot, ticks, _, __, step) {
  const digits = step < 1000 ? 3 : 0;
  const options = { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false };
  if (digits) options.fractionalSecondDigits = digits;
  // Without the day, an old time of day would be read as today's.
  const old = Date.now() - plot.scales.x.max > 12 * 3600e3;
  if (old) Object.assign(options, { day: "numeric", month: "short" });
  // A label centred on the right edge would be cut in half. The element has no width before its first layout.
  const width = plot.bbox.width / devicePixelRatio;
  const fits = (tick) => plot.valToPos(tick, "x") < width - (old ? 54 : 34);
  return ticks.map((tick) => (fits(tick) ? new Date(tick).toLocaleString("en-GB", options) : ""));
}

function strip(figure, themed) {
  const row = node("div", "strip");
  row.append(node("span", "name", figure.strip.title));
  const lane = node("div", "lane");
  const [from, to] = figure.range;
  for (const [start, end, ink, label] of figure.strip.segments) {
    const cell = node("i");
    const left = Math.max(0, (start - from) / (to - from));
    cell.style.left = `${left * 100}%`;
    cell.style.width = `${(Math.min(1, (end - from) / (to - from)) - left) * 100}%`;
    cell.style.background = colour(ink, themed);
    cell.title = label;
    lane.append(cell);
  }
  const keys = node("div", "keys");
  for (const [label, ink] of figure.strip.keys) {
    const key = node("span", "item");
    const swatch = node("i", "area");
    swatch.style.setProperty("--ink", colour(ink, themed));
    key.append(swatch, node("span", "", label));
    keys.append(key);
  }
  row.append(lane, keys);
  return row;
}

class Timeline {
  constructor(root, themed, send) {
    Object.assign(this, { root, themed, send, plots: [], figure: null, ready: false });
    this.report = { select: (plot) => this.select(plot) };
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(root);
  }

  shape(figure) {
    const panes = figure.panes.map((pane) => [pane.title, pane.height, pane.format, pane.top, pane.series.map((s) => [s.label, s.colour])]);
    return JSON.stringify([panes, this.themed.text]);
  }

  show(figure) {
    this.live = this.live ?? { figure };
    this.live.figure = figure;
    figure.live = this.live;
    const shape = this.shape(figure);
    if (shape === this.built) this.update(figure);
    else this.build(figure, shape);
    this.ready = true;
  }

  build(figure, shape) {
    this.plots.forEach(({ plot }) => plot.destroy());
    this.root.replaceChildren();
    this.stripHost = node("div");
    this.root.append(this.stripHost);
    this.plots = figure.panes.map((pane, i) => this.pane(pane, figure, i));
    this.built = shape;
    this.update(figure);
  }

  pane(pane, figure, index) {
    const { bar, values } = legendOf(pane, this.themed);
    const holder = node("div", "pane");
    this.root.append(bar, holder);
    const entry = { pane, values, note: bar.querySelector(".note") };
    const legend = (idx) => this.legend(entry, idx);
    const last = index === figure.panes.length - 1;
    const live = this.live;
    const facade = { get range() { return live.figure.range; }, live };
    const options = optionsFor(pane, facade, this.themed, { width: this.width(), first: index === 0, last, sync: "batchscope", report: this.report, legend });
    entry.plot = new uPlot(options, columns(pane).data, holder);
    entry.plot.first = index === 0;
    entry.plot.over.addEventListener("dblclick", () => this.send("back", Date.now()));
    entry.plot.over.addEventListener("click", () => this.pick(entry.plot));
    return entry;
  }

  update(figure) {
    this.stripHost.replaceChildren(...(figure.strip ? [strip(figure, this.themed)] : []));
    this.plots.forEach((entry, i) => {
      entry.pane = figure.panes[i];
      if (entry.note) entry.note.textContent = entry.pane.note ?? "";
      entry.plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      entry.plot.setData(columns(entry.pane).data);
      this.legend(entry, entry.plot.cursor.idx);
    });
    this.root.dataset.range = figure.range.join(" ");
  }

  legend({ pane, values }, idx) {
    const at = idx ?? pane.x.length - 1;
    pane.series.forEach((series, i) => { values[i].textContent = show(series.values[at], series.format ?? pane.format); });
  }

  select(plot) {
    // Synchronised panes all report the same selection: the first one counts.
    if (plot.select.width < 6 || !this.ready) return;
    const ends = [plot.select.left, plot.select.left + plot.select.width].map((p) => plot.posToVal(p, "x"));
    this.ready = false;
    this.dragged = performance.now();
    this.send("zoom", ends);
    setTimeout(() => { this.ready = true; }, 1000);
  }

  pick(plot) {
    if (performance.now() - (this.dragged ?? -1e9) < 300 || plot.cursor.left < 0) return;
    clearTimeout(this.picking);
    this.picking = setTimeout(() => this.send("pick", plot.posToVal(plot.cursor.left, "x")), 280);
    plot.over.addEventListener("dblclick", () => clearTimeout(this.picking), { once: true });
  }

  width() {
    return Math.max(320, this.root.clientWidth);
  }

  resize() {
    const width = this.width();
    this.plots.forEach(({ plot }) => { if (plot.width !== width) plot.setSize({ width, height: plot.height }); });
  }

  destroy() {
    this.observer.disconnect();
    this.plots.forEach(({ plot }) => plot.destroy());
  }
}

export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  const root = parentElement.querySelector(".timeline");
  const themed = theme(hostOf(parentElement));
  if (root.timeline && root.timeline.themed.text !== themed.text) {
    root.timeline.destroy();
    root.timeline = null;
    root.replaceChildren();
  }
  root.timeline = root.timeline ?? new Timeline(root, themed, setTriggerValue);
  root.timeline.send = setTriggerValue;
  root.timeline.show(data);
  return () => { root.timeline?.destroy(); root.timeline = null; };
}
