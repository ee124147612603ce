// Elements and figures. Text is always set as text: nothing that a job says becomes markup.

const SVG = "http://www.w3.org/2000/svg";

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

export function table(caption, columns, rows, attributes = {}) {
  const head = element("tr", {}, columns.map(([title, number]) => element("th", { scope: "col", class: number ? "number" : null }, title)));
  return element("div", { class: "scroll" }, element("table", { "aria-label": caption, ...attributes }, element("thead", {}, head), element("tbody", {}, rows)));
}

export function row(cells, attributes = {}) {
  return element("tr", attributes, cells.map((cell) => (cell instanceof Node && cell.nodeName === "TD" ? cell : element("td", {}, cell ?? "–"))));
}

const times = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const formats = []; // by digits: making one takes longer than using it a hundred times

export function figure(value, digits = 0) {
  formats[digits] ??= new Intl.NumberFormat("en", { maximumFractionDigits: digits });
  return formats[digits].format(value);
}

export function number(value, digits = 0, attributes = {}) {
  const text = value === null || value === undefined ? "–" : figure(value, digits);
  return element("td", { class: "number", "data-value": value, ...attributes }, text);
}

// A figure within words, with its value beside its text.
export function told(value, text = figure(value)) {
  return element("data", { value, "data-value": value }, text);
}

// Words and figures one after the other, with a text between each two.
export function listed(items, between = ", ") {
  return items.flatMap((each, index) => (index ? [between, each] : [each])).flat();
}

// Put other elements into a place; what had the focus there has it again, by its id.
export function fill(place, ...children) {
  const focused = place.contains(document.activeElement) ? document.activeElement.id : "";
  place.replaceChildren(...children);
  if (focused) document.getElementById(focused)?.focus();
}

// Parts of a whole, each {share in [0, 1], kind, title}; the figures stand in the label.
export function bar(parts, label) {
  const drawn = document.createElementNS(SVG, "svg");
  drawn.setAttribute("viewBox", "0 0 1 1");
  drawn.setAttribute("preserveAspectRatio", "none");
  let at = 0;
  for (const part of parts) {
    const share = Math.min(Math.max(part.share, 0), 1 - at);
    const piece = document.createElementNS(SVG, "rect");
    for (const [key, value] of Object.entries({ x: at, y: 0, width: share, height: 1, class: part.kind, "data-value": part.share })) piece.setAttribute(key, value);
    drawn.append(piece);
    at += share;
  }
  return element("div", { class: "bar", role: "img", "aria-label": label, title: label }, drawn);
}

export function clock(milliseconds) {
  const date = new Date(milliseconds);
  return element("time", { datetime: date.toISOString() }, times.format(date));
}

export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}
