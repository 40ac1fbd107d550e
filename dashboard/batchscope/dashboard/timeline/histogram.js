// A distribution on a logarithmic axis, with the quantiles that people quote as lines.
const GUTTER = 64;
const RIGHT = 8;
const HEIGHT = 120;
const FOOT = 20;

class Histogram {
  constructor(root, themed) {
    Object.assign(this, { root, themed });
    this.canvas = node("canvas");
    this.tip = node("div", "tip");
    this.tip.hidden = true;
    root.replaceChildren(this.canvas, this.tip);
    this.observer = new ResizeObserver(() => this.figure && this.draw());
    this.observer.observe(root);
    this.canvas.addEventListener("mousemove", (event) => this.hover(event));
    this.canvas.addEventListener("mouseleave", () => { this.tip.hidden = true; });
  }

  show(figure) {
    this.figure = figure;
    this.draw();
  }

  x(ms) {
    const [from, to] = this.figure.range.map(Math.log);
    return GUTTER + ((Math.log(ms) - from) / (to - from)) * (this.width - GUTTER - RIGHT);
  }

  draw() {
    const { canvas, themed, figure } = this;
    this.width = Math.max(320, this.root.clientWidth);
    Object.assign(canvas, { width: this.width * devicePixelRatio, height: HEIGHT * devicePixelRatio });
    Object.assign(canvas.style, { width: `${this.width}px`, height: `${HEIGHT}px` });
    const ctx = canvas.getContext("2d");
    ctx.scale(devicePixelRatio, devicePixelRatio);
    ctx.font = themed.font;
    this.top = Math.max(1, ...figure.bars.map(([, , n]) => n));
    this.axes(ctx);
    ctx.fillStyle = figure.colour;
    for (const [from, to, n] of figure.bars) {
      const height = Math.max(1, (n / this.top) * (HEIGHT - FOOT - 22));
      ctx.fillRect(this.x(from), HEIGHT - FOOT - height, Math.max(1, this.x(to) - this.x(from) - 1), height);
    }
    figure.lines.forEach(([at, label, ink]) => this.quantile(ctx, at, label, colour(ink, themed)));
    this.root.dataset.bars = figure.bars.length;
  }

  axes(ctx) {
    const { themed, figure } = this;
    ctx.strokeStyle = themed.grid;
    ctx.fillStyle = themed.faint;
    ctx.textBaseline = "bottom";
    ctx.textAlign = "center";
    for (const ms of figure.ticks) {
      const x = this.x(ms);
      ctx.beginPath();
      ctx.moveTo(x, 16);
      ctx.lineTo(x, HEIGHT - FOOT);
      ctx.stroke();
      if (x > GUTTER + 12 && x < this.width - 24) ctx.fillText(show(ms, "ms").replace(".0 ms", " ms").replace(".00 s", " s"), x, HEIGHT - 4);
    }
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    ctx.fillText(this.top.toLocaleString("en-US"), GUTTER - 8, 24);
    ctx.fillText("0", GUTTER - 8, HEIGHT - FOOT);
  }

  quantile(ctx, at, label, ink) {
    const x = this.x(at);
    ctx.strokeStyle = ink;
    ctx.setLineDash([4, 3]);
    ctx.beginPath();
    ctx.moveTo(x, 14);
    ctx.lineTo(x, HEIGHT - FOOT);
    ctx.stroke();
    ctx.setLineDash([]);
    ctx.fillStyle = this.themed.text;
    ctx.textBaseline = "top";
    ctx.textAlign = x > this.width - 90 ? "right" : "center";
    ctx.fillText(label, x, 1);
  }

  hover(event) {
    const bar = this.figure.bars.find(([from, to]) => event.offsetX >= this.x(from) && event.offsetX < this.x(to));
    this.tip.hidden = !bar;
    if (!bar) return;
    this.tip.textContent = `${show(bar[0], "ms")} to ${show(bar[1], "ms")}: ${bar[2].toLocaleString("en-US")} gaps`;
    const left = Math.min(event.offsetX + 12, this.width - this.tip.offsetWidth - 8);
    Object.assign(this.tip.style, { left: `${left}px`, top: "22px" });
  }

  destroy() {
    this.observer.disconnect();
  }
}

export default function (component) {
  const { data, parentElement } = component;
  const root = parentElement.querySelector(".histogram");
  const themed = theme(hostOf(parentElement));
  root.histogram = root.histogram ?? new Histogram(root, themed);
  root.histogram.themed = themed;
  root.histogram.show(data);
  return () => { root.histogram?.destroy(); root.histogram = null; };
}
