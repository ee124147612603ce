// A lane a member: where its time went, step by step; restarts, checkpoints, and what happened to the whole job.

import { clock, element, number, row, told } from "./dom.js";
import { Panel, color, pause } from "./panels.js";

const HIGH = 14;
const LABEL = 84;
const AT_ONCE = 20; // lanes that are drawn before the browser may do something else
const KINDS = ["compute", "pull", "wait"];

export class Lanes extends Panel {
  constructor() {
    super("lanes", "Members over time");
    this.canvas = element("canvas", { role: "img" });
    const key = (name, words) => element("span", { class: `key ${name}` }, `${words} `);
    this.body.append(
      this.canvas,
      element("p", { class: "faint" }, key("compute", "computes"), key("pull", "reads, pulls, pushes"), key("wait", "waits"), key("checkpoint", "checkpoint"), key("restart", "restarts"), key("scale", "a plan is carried out"), key("fault", "a fault")),
    );
    this.seen = new ResizeObserver(() => this.shown && this.body.clientWidth !== this.width && this.draw());
    this.seen.observe(this.body);
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.repaint = () => this.shown && this.draw();
    this.scheme.addEventListener("change", this.repaint);
  }

  async update(shown) {
    this.element.dataset.sequence = shown.sequence;
    this.element.dataset.lanes = shown.lanes.length;
    if (!shown.lanes.length) {
      this.shown = null;
      this.said = "";
      return this.empty("no member was sampled yet");
    }
    const restarts = shown.lanes.reduce((sum, lane) => sum + lane.restarts.length, 0);
    this.words(told(shown.lanes.length), " members, ", told(shown.width_ms / 1000), " s a step; restarts: ", told(restarts));
    this.behindIt([["member"], ["computes", true], ["reads, pulls, pushes", true], ["waits", true], ["restarts", true], ["checkpoints", true], ["what happened"]], () => [
      ...shown.lanes.map((lane) => row([lane.member, ...KINDS.map((kind) => percent(lane[kind])), number(lane.restarts.length), number(lane.checkpoints.length), lane.lost_ms ? "is being followed" : ""])),
      ...shown.marks.map((mark) => row([mark.kind, "", "", "", "", "", element("td", {}, clock(mark.time_ms), mark.text)])),
    ]);
    const said = JSON.stringify([shown.lanes, shown.marks]);
    if (said === this.said) return;
    this.said = said;
    this.shown = shown;
    await this.draw();
  }

  async draw() {
    const { shown, canvas } = this;
    this.width = this.body.clientWidth;
    const scale = devicePixelRatio;
    const hues = Object.fromEntries([...KINDS, "checkpoint", "restart", "scale", "fault", "text", "band"].map((name) => [name, color(name)]));
    canvas.width = Math.max(this.width, 200) * scale;
    canvas.height = shown.lanes.length * HIGH * scale;
    canvas.setAttribute("aria-label", `${this.note.textContent}; the table has the figures`);
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.font = "11px system-ui";
    const wide = Math.max(this.width, 200) - LABEL;
    const place = (at) => LABEL + (wide * (at - shown.from_ms)) / Math.max(shown.to_ms - shown.from_ms, 1);
    const step = (wide * shown.width_ms) / Math.max(shown.to_ms - shown.from_ms, 1);
    for (const [index, lane] of shown.lanes.entries()) {
      if (index % AT_ONCE === AT_ONCE - 1) await pause();
      if (this.shown !== shown) return;
      drawLane(pen, lane, index * HIGH, { place, step, hues, wide });
    }
    for (const mark of shown.marks) {
      if (mark.time_ms < shown.from_ms || mark.time_ms > shown.to_ms) continue;
      pen.fillStyle = hues[mark.kind];
      pen.fillRect(place(mark.time_ms), 0, 1.5, shown.lanes.length * HIGH);
    }
  }

  end() {
    this.seen.disconnect();
    this.scheme.removeEventListener("change", this.repaint);
    this.shown = null;
  }
}

function drawLane(pen, lane, top, { place, step, hues, wide }) {
  pen.fillStyle = hues.text;
  pen.fillText(lane.member, 0, top + HIGH - 3);
  pen.fillStyle = hues.band;
  pen.fillRect(LABEL, top + 1, wide, HIGH - 2);
  for (const kind of KINDS) {
    pen.fillStyle = hues[kind];
    for (const [index, at] of lane.times_ms.entries()) {
      let below = 0;
      for (const other of KINDS) {
        if (other === kind) break;
        below += lane[other][index];
      }
      const high = Math.min(lane[kind][index], 1 - below) * (HIGH - 2);
      if (high > 0) pen.fillRect(place(at), top + HIGH - 1 - below * (HIGH - 2) - high, step + 0.3, high);
    }
  }
  const spans = [...lane.restarts.map((each) => [...each, "restart"]), ...lane.checkpoints.map((each) => [...each, "checkpoint"])];
  for (const [begin, end, kind] of spans) {
    pen.fillStyle = hues[kind];
    pen.fillRect(place(begin), top + 1, Math.max(place(end) - place(begin), 2), HIGH - 2);
  }
}

function percent(shares) {
  if (!shares.length) return number(null);
  return number((100 * shares.reduce((sum, each) => sum + each, 0)) / shares.length);
}
