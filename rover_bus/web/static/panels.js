// A panel: a heading, a line of words, what is drawn, and the same as a table behind it. Charts are drawn by uPlot, which is read when the first is.

import { element, table } from "./dom.js";

const HEIGHT = 190;
const HIDDEN_MS = 200;
const drawn = new Set();
let library = null;

// What follows is another task.
export function pause() {
  return new Promise((resolve) => setTimeout(resolve));
}

// What follows is another frame's: what was put into the page is laid out before. A page that is not seen has no frames.
export function frame() {
  return new Promise((resolve) => {
    requestAnimationFrame(() => setTimeout(resolve));
    setTimeout(resolve, HIDDEN_MS);
  });
}

export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function load() {
  library ??= new Promise((resolve, reject) => {
    document.head.append(element("link", { rel: "stylesheet", href: "/static/uplot.min.css" }));
    const script = element("script", { src: "/static/uplot.iife.min.js" });
    script.addEventListener("load", () => pause().then(() => resolve(window.uPlot)));
    script.addEventListener("error", () => reject(new Error("the charts' library did not come")));
    document.head.append(script);
  });
  return library;
}

export class Panel {
  constructor(id, title) {
    this.note = element("p", { class: "faint" });
    this.body = element("div", { class: "drawn" });
    this.behind = element("details", {}, element("summary", {}, "as a table"));
    this.behind.addEventListener("toggle", () => this.fill());
    this.element = element("section", { id, "aria-label": title }, element("h2", {}, title), this.note, this.body, this.behind);
    this.rows = () => [];
    this.columns = [];
  }

  // Say how the table is made: of rows that are made when it is opened.
  behindIt(columns, rows) {
    this.columns = columns;
    this.rows = rows;
    this.fill();
  }

  fill() {
    if (!this.behind.open) return;
    const made = table(this.element.getAttribute("aria-label"), this.columns, this.rows());
    this.behind.replaceChildren(this.behind.firstElementChild, made);
  }

  empty(...words) {
    this.note.replaceChildren(...words.flat());
    this.body.hidden = true;
    this.behindIt(this.columns, () => []);
  }

  words(...words) {
    this.note.replaceChildren(...words.flat());
    this.body.hidden = false;
  }

  end() {}
}

// Charts of one panel, each by a name. A drawing: {x, series: [{label, color, values, dash, width, points, stepped, gaps}], bands, time, unit}.
export class Charts extends Panel {
  constructor(id, title, wide = true) {
    super(id, title);
    this.charts = new Map();
    this.body.classList.toggle("several", !wide);
    this.seen = new ResizeObserver(() => this.resize());
    this.seen.observe(this.body);
    drawn.add(this);
  }

  async plot(name, drawing, label) {
    const uPlot = await load();
    const shape = JSON.stringify([drawing.series.map((each) => [each.label, each.color]), drawing.bands]);
    const known = this.charts.get(name);
    const data = [drawing.x, ...drawing.series.map((each) => each.values)];
    if (known && known.shape === shape) {
      known.drawing = drawing;
      known.place.setAttribute("aria-label", label);
      known.chart.setData(data);
      return;
    }
    const place = known?.place ?? element("div", { class: "chart", role: "img", "data-chart": name });
    place.setAttribute("aria-label", label);
    known?.chart.destroy();
    if (!known) this.body.append(place);
    this.charts.set(name, { place, shape, drawing, chart: new uPlot(options(uPlot, drawing, place.clientWidth || 320), data, place) });
  }

  only(names) {
    for (const [name, { chart, place }] of this.charts) {
      if (names.includes(name)) continue;
      chart.destroy();
      place.remove();
      this.charts.delete(name);
    }
  }

  resize() {
    for (const { chart, place } of this.charts.values()) {
      const width = place.clientWidth;
      if (width && width !== chart.width) chart.setSize({ width, height: HEIGHT });
    }
  }

  async repaint() {
    const uPlot = await load();
    for (const known of this.charts.values()) {
      const data = known.chart.data;
      known.chart.destroy();
      known.chart = new uPlot(options(uPlot, known.drawing, known.place.clientWidth), data, known.place);
    }
  }

  end() {
    this.seen.disconnect();
    this.only([]);
    drawn.delete(this);
  }
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((each) => each.repaint()));

function options(uPlot, drawing, width) {
  const axis = { stroke: color("faint"), grid: { stroke: color("line"), width: 1 }, ticks: { stroke: color("line"), width: 1 }, font: "12px system-ui" };
  return {
    width,
    height: HEIGHT,
    scales: { x: { time: drawing.time !== false }, y: { range: drawing.range ?? fromZero } },
    axes: [titled(axis, drawing.across), { ...titled(axis, drawing.up), size: 62, values: (_, ticks) => ticks.map(short) }],
    cursor: { drag: { x: false, y: false } },
    legend: { live: false },
    series: [{}, ...drawing.series.map((each) => line(uPlot, each))],
    bands: (drawing.bands ?? []).map((series) => ({ series, fill: color("interval") })),
  };
}

function titled(axis, label) {
  return label ? { ...axis, label, labelSize: 18, labelFont: axis.font } : axis;
}

function line(uPlot, each) {
  return {
    label: each.label,
    stroke: color(each.color),
    width: each.width ?? 1.6,
    dash: each.dash,
    spanGaps: !each.gaps,
    paths: each.points ? () => null : each.stepped ? uPlot.paths.stepped({ align: 1 }) : uPlot.paths.linear(),
    points: each.points ? { show: true, size: each.points, fill: color(each.color) } : { show: each.values.length < 2 },
  };
}

function fromZero(_chart, _low, high) {
  return [0, high > 0 ? high * 1.08 : 1];
}

export function short(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return `${(value / 1e9).toPrecision(3)}G`;
  if (size >= 1e6) return `${(value / 1e6).toPrecision(3)}M`;
  if (size >= 1e4) return `${Math.round(value / 1e3)}k`;
  return String(Number(value.toPrecision(4)));
}
