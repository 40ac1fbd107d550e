// Membership: one row per request, one cell per iteration it is a member of.
// Prefill and decode differ in colour and in shape: a tall block, a thin bar.
const GUTTER = 64;
const ROW = 15;
const HEAD = 18;

const KEYS = [
  ["prefill", "prefill chunk"], ["recompute", "recompute"], ["decode", "decode"], ["arrives", "arrives"],
  ["waits", "waits"], ["leaves", "leaves"], ["aborts", "aborted or failed"], ["preempted", "preempted"],
];

function keyOf(shape, label, colours) {
  const key = node("span", "key");
  const sign = node("i", shape, shape === "aborts" ? "×" : undefined);
  const ink = { recompute: colours.prefill, preempted: colours.preemption }[shape] ?? colours[shape];
  if (ink) sign.style.setProperty("--ink", ink);
  key.append(sign, node("span", "", label));
  return key;
}

class Swimlane {
  constructor(root, themed, send) {
    Object.assign(this, { root, themed, send });
    this.canvas = node("canvas");
    this.tip = node("div", "tip");
    this.tip.hidden = true;
    this.keys = node("div", "keys");
    root.replaceChildren(this.keys, this.canvas, this.tip);
    this.observer = new ResizeObserver(() => this.figure && this.draw());
    this.observer.observe(root);
    this.canvas.addEventListener("mousemove", (event) => this.hover(event));
    this.canvas.addEventListener("mouseleave", () => { this.tip.hidden = true; });
    this.canvas.addEventListener("click", (event) => this.pick(event));
  }

  show(figure) {
    this.figure = figure;
    this.spans = figure.iterations.map((ring) => new Map(ring.map(([id, from, to]) => [id, [from, to]])));
    this.keys.replaceChildren(...KEYS.map(([shape, label]) => keyOf(shape, label, figure.colours)));
    this.order = figure.iterations.flatMap((ring, r) => ring.map(([id, from, to]) => ({ ring: r, id, from, to })));
    this.draw();
  }

  x(at) {
    const [from, to] = this.figure.range;
    return GUTTER + ((at - from) / (to - from)) * (this.width - GUTTER - 8);
  }

  draw() {
    const { figure, canvas } = this;
    this.width = Math.max(320, this.root.clientWidth);
    const height = HEAD + figure.rows.length * ROW + 4;
    Object.assign(canvas, { width: this.width * devicePixelRatio, height: height * devicePixelRatio });
    Object.assign(canvas.style, { width: `${this.width}px`, height: `${height}px` });
    const ctx = canvas.getContext("2d");
    ctx.scale(devicePixelRatio, devicePixelRatio);
    ctx.font = this.themed.font;
    this.columns(ctx, height);
    ctx.save();
    figure.rows.forEach((row, i) => this.row(ctx, row, HEAD + i * ROW));
    ctx.restore();
    this.root.dataset.rows = figure.rows.length;
  }

  columns(ctx, height) {
    const { themed, figure } = this;
    const wide = (this.width - GUTTER) / Math.max(1, this.order.length);
    ctx.fillStyle = themed.faint;
    ctx.textBaseline = "middle";
    let free = GUTTER;
    this.apart = wide > 10; // narrower cells are drawn joined: separators would be noise
    for (const { ring, id, from, to } of this.order) {
      const [a, b] = [this.x(from), this.x(to)];
      if (figure.selected && figure.selected[0] === ring && figure.selected[1] === id) {
        ctx.fillStyle = themed.shade;
        ctx.fillRect(a, 0, Math.max(2, b - a), height);
        ctx.fillStyle = themed.faint;
      }
      if (this.apart) { ctx.strokeStyle = themed.grid; line(ctx, b, HEAD, height - HEAD); }
      const label = String(id);
      if (a >= free && (wide > 40 || id % this.every(wide) === 0)) {
        ctx.fillText(label, a + 1, HEAD / 2);
        free = a + ctx.measureText(label).width + 12;
      }
    }
  }

  every(wide) {
    return [1, 2, 5, 10, 20, 50, 100, 200, 500].find((n) => n * wide > 60) ?? 1000;
  }

  row(ctx, row, top) {
    const { themed } = this;
    ctx.fillStyle = themed.faint;
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    ctx.fillText(row.label, GUTTER - 8, top + ROW / 2);
    ctx.textAlign = "left";
    ctx.strokeStyle = themed.grid;
    line2(ctx, GUTTER, top + ROW - 0.5, this.width - 8);
    ctx.save();
    ctx.beginPath();
    ctx.rect(GUTTER, top, this.width - GUTTER - 8, ROW);
    ctx.clip();
    for (const [from, to] of row.absent) this.absent(ctx, from, to, top);
    for (const run of row.runs) this.run(ctx, row, run, top);
    for (const at of row.preemptions) triangle(ctx, this.x(at), top + 1, this.figure.colours.preemption);
    if (row.arrived !== null) ring(ctx, this.x(row.arrived), top + ROW / 2, themed.text);
    if (row.finished !== null) this.end(ctx, row, top);
    ctx.restore();
  }

  absent(ctx, from, to, top) {
    ctx.save();
    ctx.strokeStyle = this.themed.faint;
    ctx.setLineDash([1.5, 3]);
    line2(ctx, this.x(from), top + ROW / 2, this.x(to));
    ctx.restore();
  }

  run(ctx, row, run, top) {
    const spans = this.spans[row.ring];
    let start = null, end = null;
    for (let i = 0; i < run.count; i++) {
      const span = spans.get(run.first + i * run.stride);
      if (!span) continue;
      const [a, b] = [this.x(span[0]), this.x(span[1])];
      if (this.apart) this.cell(ctx, run, a, b - 1, top);
      else if (start !== null && a - end < 1.5) end = b;
      else { if (start !== null) this.cell(ctx, run, start, end, top); [start, end] = [a, b]; }
    }
    if (start !== null) this.cell(ctx, run, start, end, top);
  }

  cell(ctx, run, from, to, top) {
    const prefill = run.phase === "prefill";
    const width = Math.max(1, to - from);
    ctx.fillStyle = this.figure.colours[run.phase];
    if (!prefill) return ctx.fillRect(from, top + ROW / 2 - 2, width, 4);
    ctx.fillRect(from, top + 1, width, ROW - 3);
    if (run.recompute) hatch(ctx, from, top + 1, width, ROW - 3, this.themed.background);
    const text = String(run.tokens);
    if (width > ctx.measureText(text).width + 6) {
      ctx.fillStyle = "#1a1a1a";
      ctx.fillText(text, from + 3, top + ROW / 2);
    }
    return undefined;
  }

  end(ctx, row, top) {
    const x = this.x(row.finished);
    ctx.strokeStyle = ctx.fillStyle = this.themed.text;
    if (row.served) return ctx.fillRect(x - 1, top + 2, 3, ROW - 5);
    const y = top + ROW / 2;
    ctx.lineWidth = 1.5;
    ctx.beginPath();
    ctx.moveTo(x - 3, y - 3); ctx.lineTo(x + 3, y + 3);
    ctx.moveTo(x + 3, y - 3); ctx.lineTo(x - 3, y + 3);
    ctx.stroke();
    ctx.lineWidth = 1;
    return undefined;
  }

  locate(event) {
    const row = this.figure.rows[Math.floor((event.offsetY - HEAD) / ROW)];
    const iteration = this.order.find(({ ring, from, to }) =>
      (!row || ring === row.ring) && event.offsetX >= this.x(from) && event.offsetX <= this.x(to));
    const run = row && iteration && row.runs.find((r) => {
      const steps = (iteration.id - r.first) / r.stride;
      return Number.isInteger(steps) && steps >= 0 && steps < r.count;
    });
    return { row, iteration, run };
  }

  hover(event) {
    const { row, iteration, run } = this.locate(event);
    this.tip.hidden = !row && !iteration;
    if (this.tip.hidden) return;
    const lines = [];
    if (row) lines.push(row.about);
    if (iteration) lines.push(`iteration ${iteration.id}, ${show(iteration.to - iteration.from, "ms")}`);
    if (run) lines.push(this.share(run, (iteration.id - run.first) / run.stride));
    else if (row && iteration) lines.push("not a member");
    this.tip.replaceChildren(...lines.map((text, i) => node("div", i ? "" : "who", text)));
    const left = event.offsetX + 14 + this.tip.offsetWidth > this.width ? event.offsetX - this.tip.offsetWidth - 10 : event.offsetX + 14;
    Object.assign(this.tip.style, { left: `${left}px`, top: `${this.canvas.offsetTop + event.offsetY + 12}px` });
  }

  share(run, step) {
    const grown = run.phase === "prefill" ? run.tokens : run.emitted;
    const context = run.context === null || grown === null ? "" : `, on ${show(run.context + step * grown, "tokens")} in context`;
    return `${run.recompute ? "recompute" : run.phase} ${show(run.tokens, "tokens")} token${run.tokens === 1 ? "" : "s"}${context}`;
  }

  pick(event) {
    const { iteration } = this.locate(event);
    if (iteration) this.send("pick", [this.figure.rings[iteration.ring], iteration.id]);
  }

  destroy() {
    this.observer.disconnect();
  }
}

function line(ctx, x, top, height) {
  ctx.beginPath();
  ctx.moveTo(x, top);
  ctx.lineTo(x, top + height);
  ctx.stroke();
}

function line2(ctx, from, y, to) {
  ctx.beginPath();
  ctx.moveTo(from, y);
  ctx.lineTo(to, y);
  ctx.stroke();
}

function triangle(ctx, x, top, fill) {
  ctx.fillStyle = fill;
  ctx.beginPath();
  ctx.moveTo(x - 5, top);
  ctx.lineTo(x + 5, top);
  ctx.lineTo(x, top + 9);
  ctx.fill();
}

function ring(ctx, x, y, stroke) {
  ctx.strokeStyle = stroke;
  ctx.beginPath();
  ctx.arc(x, y, 3, 0, 7);
  ctx.stroke();
}

function hatch(ctx, left, top, width, height, stroke) {
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, top, width, height);
  ctx.clip();
  ctx.strokeStyle = stroke;
  for (let x = left - height; x < left + width; x += 5) {
    ctx.beginPath();
    ctx.moveTo(x, top + height);
    ctx.lineTo(x + height, top);
    ctx.stroke();
  }
  ctx.restore();
}

export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  const root = parentElement.querySelector(".swimlane");
  const themed = theme(hostOf(parentElement));
  root.swimlane = root.swimlane ?? new Swimlane(root, themed, setTriggerValue);
  Object.assign(root.swimlane, { themed, send: setTriggerValue });
  root.swimlane.show(data);
  return () => { root.swimlane?.destroy(); root.swimlane = null; };
}
