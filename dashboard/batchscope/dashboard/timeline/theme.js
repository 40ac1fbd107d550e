// Colours of the page's theme, read where they are drawn, so that dark and light both fit.
function theme(element) {
  const style = getComputedStyle(element);
  const read = (name, otherwise) => style.getPropertyValue(name).trim() || otherwise;
  const text = read("--st-text-color", "#31333f");
  return {
    text,
    faint: `color-mix(in srgb, ${text} 62%, transparent)`,
    pale: `color-mix(in srgb, ${text} 34%, transparent)`,
    grid: `color-mix(in srgb, ${text} 10%, transparent)`,
    shade: `color-mix(in srgb, ${text} 9%, transparent)`,
    background: read("--st-background-color", "#ffffff"),
    font: `11px ${read("--st-font", "sans-serif")}`,
  };
}

// These stand for shades of the theme's text colour in a figure; everything else is a colour already.
const INKS = new Set(["text", "faint", "pale"]);
const colour = (name, themed) => (INKS.has(name) ? themed[name] : name);

// Host of a component inside its shadow root or wrapper.
const hostOf = (parent) => parent.host ?? parent;

function node(tag, classes, text) {
  const made = document.createElement(tag);
  if (classes) made.className = classes;
  if (text !== undefined) made.textContent = text;
  return made;
}

const FORMATS = {
  tokens: (v) => Math.round(v).toLocaleString("en-US"),
  requests: (v) => (v >= 100 || Number.isInteger(v) ? Math.round(v).toLocaleString("en-US") : v.toFixed(1)),
  ms: (v) => (v >= 1000 ? `${(v / 1000).toFixed(2)} s` : `${v >= 100 ? v.toFixed(0) : v.toFixed(1)} ms`),
  percent: (v) => `${v >= 10 || v === 0 ? v.toFixed(0) : v.toFixed(1)} %`,
};
const show = (value, format) => (value === null || value === undefined ? "–" : FORMATS[format](value));
