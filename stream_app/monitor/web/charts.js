// Charts as inline SVG, drawn at the width that there is, so that text keeps its size.

import { compact, el, svg } from "./dom.js";

const TEXT = 12;
const NICE = [1, 2, 2.5, 5, 10];

// Round steps that cut a range into about `wanted` parts.
export function ticks(low, high, wanted) {
  const raw = (high - low) / Math.max(1, wanted);
  if (!(raw > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * NICE.find((factor) => factor * power >= raw * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) {
    found.push(i * step || 0);
  }
  return found;
}

export function digits(values) {
  const step = values.length > 1 ? values[1] - values[0] : 1;
  return Math.min(6, Math.max(0, -Math.floor(Math.log10(step) + 1e-9) + (/25/.test(String(step)) ? 1 : 0)));
}

// A figure that draws itself again when its width changes.
export function figure(label, height, draw) {
  const image = svg("svg", { role: "img", "aria-label": label, height });
  const node = el("div", { class: "chart" }, image);
  let content = null;
  function render() {
    const width = node.clientWidth;
    if (content === null || width < 50) return;
    image.setAttribute("viewBox", `0 0 ${width} ${height}`);
    image.replaceChildren(...draw(content, width, height));
  }
  new ResizeObserver(render).observe(node);
  return {
    node,
    update(newest, description) {
      content = newest;
      if (description) image.setAttribute("aria-label", description);
      render();
    },
  };
}

const ruler = document.createElement("canvas").getContext("2d");
ruler.font = `600 ${TEXT}px ${getComputedStyle(document.body).fontFamily}`;

// As much of a text as fits.
function shorten(text, room) {
  if (ruler.measureText(text).width <= room) return text;
  let end = text.length;
  while (end > 1 && ruler.measureText(`${text.slice(0, end)}…`).width > room) end -= 1;
  return `${text.slice(0, end)}…`;
}

// Moves labels apart that would overlap, in order, and keeps them inside.
function spread(labels, top, bottom) {
  labels.sort((a, b) => a.y - b.y);
  for (let i = 0; i < labels.length; i += 1) {
    labels[i].y = Math.max(labels[i].y, i ? labels[i - 1].y + TEXT + 2 : top);
  }
  let limit = bottom;
  for (let i = labels.length - 1; i >= 0; i -= 1) {
    labels[i].y = Math.min(labels[i].y, limit);
    limit = labels[i].y - TEXT - 2;
  }
  return labels;
}

// content: series [{points [[x, y]], band [[x, low, high]], label, style}], marks [{x, label}],
// x [low, high], y [low, high], xLabel, yLabel.
export function lines(content, width, height) {
  const narrow = width < 480;
  const pad = { left: 46, right: narrow ? 84 : 132, top: content.marks ? 38 : 24, bottom: 40 };
  const right = width - pad.right;
  const bottom = height - pad.bottom;
  const at = {
    x: scale(content.x, pad.left, right),
    y: scale(content.y, bottom, pad.top),
  };
  const clip = `clip-${content.id}`;
  const inside = [
    ...content.series.flatMap((one) => drawBand(one, at)),
    ...content.series.flatMap((one) => drawLine(one, at)),
  ];
  return [
    svg("defs", {}, svg("clipPath", { id: clip }, svg("rect", {
      x: pad.left, y: pad.top - 4, width: right - pad.left + 4, height: bottom - pad.top + 8,
    }))),
    ...marks(content.marks ?? [], at, pad.top, bottom),
    ...yAxis(content, at, pad.left, right),
    ...xAxis(content, at, bottom, height, narrow ? 3 : 6),
    svg("g", { "clip-path": `url(#${clip})` }, ...inside),
    ...endLabels(content.series, at, right + 8, pad.top, bottom, pad.right - 10),
  ];
}

function scale([low, high], from, to) {
  const span = high - low || 1;
  return (value) => Number((from + ((value - low) / span) * (to - from)).toFixed(1));
}

function drawBand(one, at) {
  if (!one.band || one.band.length < 2) return [];
  const upper = one.band.map(([x, , high]) => `${at.x(x)},${at.y(high)}`);
  const lower = one.band.map(([x, low]) => `${at.x(x)},${at.y(low)}`).reverse();
  return [svg("polygon", { class: `band ${one.style}`, points: [...upper, ...lower].join(" ") })];
}

function drawLine(one, at) {
  const path = one.points.map(([x, y]) => `${at.x(x)},${at.y(y)}`);
  if (!path.length) return [];
  const [x, y] = path.at(-1).split(",");
  return [
    svg("polyline", { class: `line ${one.style}`, points: path.join(" ") }),
    svg("circle", { class: `dot ${one.style}`, cx: x, cy: y, r: 3 }),
  ];
}

function yAxis(content, at, left, right) {
  const values = ticks(...content.y, 5);
  const places = digits(values);
  const text = content.y[1] >= 1000 ? compact : (value) => value.toFixed(places);
  return [
    ...values.flatMap((value) => [
      svg("line", { class: "grid", x1: left, x2: right, y1: at.y(value), y2: at.y(value) }),
      svg("text", { x: left - 6, y: at.y(value) + 4, "text-anchor": "end" }, text(value)),
    ]),
    svg("text", { class: "axis", x: 0, y: 12 }, content.yLabel),
  ];
}

function xAxis(content, at, bottom, height, wanted) {
  const [low, high] = content.x;
  return [
    svg("line", { class: "base", x1: at.x(low), x2: at.x(high), y1: bottom, y2: bottom }),
    ...ticks(low, high, wanted).map((value) =>
      svg("text", { x: at.x(value), y: bottom + 16, "text-anchor": "middle" }, compact(value)),
    ),
    svg("text", { class: "axis", x: at.x(high), y: height - 4, "text-anchor": "end" }, content.xLabel),
  ];
}

// Vertical lines with numbers at the top: of the phases.
function marks(all, at, top, bottom) {
  if (!all.length) return [];
  let last = -Infinity;
  const drawn = all.flatMap(({ x, label }) => {
    const place = at.x(x);
    const line = svg("line", { class: "mark", x1: place, x2: place, y1: top - 4, y2: bottom });
    if (place - last < 22) return [line];
    last = place;
    return [line, svg("text", { class: "mark", x: place, y: top - 8, "text-anchor": "middle" }, label)];
  });
  return [svg("text", { class: "mark", x: 0, y: top - 8 }, "phase"), ...drawn];
}

function endLabels(series, at, x, top, bottom, space) {
  const labels = series
    .filter((one) => one.points.length && one.label)
    .map((one) => ({ y: at.y(one.points.at(-1)[1]) + 4, one }));
  const room = Math.floor((bottom - top) / (TEXT + 2));
  return spread(labels.slice(0, room), top, bottom).map(({ y, one }) =>
    svg("text", { class: `label ${one.style}`, x, y }, shorten(one.label, space), svg("title", {}, one.label)),
  );
}

// One arm's interval with its mean, on a common range.
export function interval(arm, [low, high], width, style) {
  const height = 22;
  const x = scale([low, high], 6, width - 6);
  const middle = height / 2;
  const ends = [x(arm.lower), x(arm.upper)];
  return svg(
    "svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true", class: style },
    ...ticks(low, high, width < 260 ? 3 : 6).map((value) =>
      svg("line", { class: "grid", x1: x(value), x2: x(value), y1: 0, y2: height })),
    svg("line", { class: "range", x1: ends[0], x2: ends[1], y1: middle, y2: middle }),
    ...ends.map((end) => svg("line", { class: "range", x1: end, x2: end, y1: middle - 5, y2: middle + 5 })),
    arm.mean === null ? null : svg("circle", { class: "dot", cx: x(arm.mean), cy: middle, r: 4.5 }),
  );
}

export function intervalAxis([low, high], width) {
  const x = scale([low, high], 6, width - 6);
  const values = ticks(low, high, width < 260 ? 3 : 6);
  const places = digits(values);
  return svg(
    "svg", { viewBox: `0 0 ${width} 18`, height: 18, "aria-hidden": "true" },
    ...values.map((value) =>
      svg("text", { x: Math.min(width - 14, Math.max(14, x(value))), y: 13, "text-anchor": "middle" }, value.toFixed(places))),
  );
}
