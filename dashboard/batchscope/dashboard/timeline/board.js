// The Now page: tiles, bars and sparklines, updated in place so that nothing flickers.
const SPARK = [120, 30];

function spark(series) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${SPARK[0]} ${SPARK[1]}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("class", "spark");
  const top = Math.max(1e-9, ...series.flatMap(({ values }) => values.map((v) => v ?? 0)));
  for (const { values, colour: ink } of series) svg.append(path(values, top, ink));
  return svg;
}

function path(values, top, ink) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", "path");
  const step = SPARK[0] / Math.max(1, values.length - 1);
  let pen = "M";
  const drawn = values.map((v, i) => {
    if (v === null) { pen = "M"; return ""; }
    const point = `${pen}${(i * step).toFixed(1)} ${(SPARK[1] - 1.5 - (v / top) * (SPARK[1] - 3)).toFixed(1)}`;
    pen = "L";
    return point;
  });
  made.setAttribute("d", drawn.join(""));
  made.style.stroke = ink === "text" ? "var(--st-text-color)" : ink;
  return made;
}

function bar(parts) {
  const made = node("div", "bar");
  for (const { ratio, colour: ink, label } of parts) {
    const part = node("i");
    part.style.width = `${Math.max(0, Math.min(1, ratio)) * 100}%`;
    if (ink) part.style.background = ink;
    part.title = label;
    made.append(part);
  }
  return made;
}

function keys(parts) {
  const made = node("div", "keys");
  for (const { label, colour: ink, text } of parts) {
    const key = node("span", "key");
    const swatch = node("i");
    if (ink) swatch.style.background = ink;
    key.append(swatch, node("span", "", label), node("b", "", text ?? ""));
    made.append(key);
  }
  return made;
}

function tile(spec) {
  const made = node("div", `tile ${spec.tone ?? ""}`);
  if (spec.help) made.title = spec.help;
  made.append(node("div", "label", spec.label));
  if (spec.about) made.append(node("div", "about", spec.about));
  const figures = node("div", "figures");
  for (const { value, unit, name, colour: ink } of spec.figures) {
    const figure = node("div", "figure");
    const caption = node("span", "name", name ?? "");
    if (ink) caption.style.setProperty("--ink", ink);
    if (ink) caption.classList.add("inked");
    const big = node("span", "value", value);
    big.append(node("small", "", unit ? ` ${unit}` : ""));
    figure.append(big);
    if (name) figure.append(caption);
    figures.append(figure);
  }
  made.append(figures);
  if (spec.bar) made.append(bar(spec.bar));
  if (spec.spark) made.append(spark(spec.spark));
  if (spec.note) made.append(node("div", "note", spec.note));
  return made;
}

function reasons(spec) {
  const made = node("div", "tile reasons");
  if (spec.help) made.title = spec.help;
  made.append(node("div", "label", spec.label));
  for (const { label, text, ratio, colour: ink } of spec.rows) {
    const row = node("div", "reason");
    row.append(node("span", "", label), bar([{ ratio, colour: ink, label }]), node("b", "", text));
    made.append(row);
  }
  if (!spec.rows.length) made.append(node("div", "note", spec.empty));
  return made;
}

function bound(spec) {
  const made = node("div", `tile bound ${spec.tone ?? ""}`);
  made.append(node("div", "headline", spec.headline), node("div", "note", spec.evidence));
  if (spec.parts.length) made.append(bar(spec.parts), keys(spec.parts));
  return made;
}

const KINDS = { tile, reasons, bound };

function status(spec) {
  const made = node("div", `status ${spec.tone}`);
  made.append(node("i", "dot"), node("b", "", spec.state), node("span", "", spec.detail));
  return made;
}

function group(spec) {
  const made = node("section", `wide-${spec.width}`);
  const tiles = node("div", "tiles");
  tiles.append(...spec.tiles.map((each) => KINDS[each.kind ?? "tile"](each)));
  made.append(node("h4", "", spec.title), tiles);
  return made;
}

export default function (component) {
  const { data, parentElement } = component;
  const root = parentElement.querySelector(".board");
  const grid = node("div", "grid");
  grid.append(...data.groups.map(group));
  root.replaceChildren(status(data.status), grid);
}
