// The moment that is shown of a job, any that is kept: a slider over its log. The state then: the ledger as a map, slots by server and their heat.

import { get, getAt } from "./api.js";
import { element, listed, number, row, told } from "./dom.js";
import { Panel } from "./panels.js";

const SVG = "http://www.w3.org/2000/svg";
const SETTLE_MS = 80;
const SLOTS = 4096;

export class Travel {
  // `moved` is called when the state of another moment is shown: what else is shown of the job follows, and holds it up by nothing.
  constructor(path, moved) {
    this.path = path;
    this.moved = moved;
    this.at = null; // a sequence of the log's stream; null: the present
    this.ledger = new Panel("ledger", "The ledger");
    this.slots = new Panel("slots", "Slots by server");
    this.slider = element("input", { type: "range", id: "moment", min: 1, max: 1, value: 1, "aria-label": "moment of the job's log" });
    this.slider.addEventListener("input", () => this.go(Number(this.slider.value)));
    this.present = element("button", { type: "button", id: "present", class: "less" }, "now");
    this.present.addEventListener("click", () => this.go(null));
    this.said = element("output", { for: "moment" });
    this.bar = element("section", { id: "bar", "aria-label": "the moment that is shown" }, element("p", { class: "travel" }, this.slider, this.present), this.said);
    this.bar.hidden = true;
    this.figures = element("p", { id: "state" });
    const heading = element("h2", {}, "Time travel: the state at a moment");
    this.element = element("section", { id: "travel", "aria-label": "state at a moment" }, heading, this.figures, this.ledger.element, this.slots.element);
  }

  // What is added to a path of the API so that it answers of the chosen moment.
  static asked(at) {
    return at === null ? "" : `?at=${at}`;
  }

  go(at) {
    const to = at !== null && at >= Number(this.slider.max) ? null : at;
    if (to === this.at) return;
    this.at = to;
    clearTimeout(this.due);
    this.due = setTimeout(() => this.update().then(() => to === this.at && this.moved()), SETTLE_MS);
  }

  // A moment that is not kept any more is said here, and holds up nothing else of the page.
  async update() {
    try {
      await this.show(this.at);
    } catch (error) {
      this.bar.hidden = false;
      this.said.textContent = error.message;
    }
  }

  async show(at) {
    const state = await get(`${this.path}/state${Travel.asked(at)}`);
    if (at !== this.at) return;
    this.bar.hidden = false;
    this.slider.min = state.first.sequence;
    this.slider.max = state.newest.sequence;
    this.slider.value = at ?? state.newest.sequence;
    this.said.replaceChildren(at === null ? "now" : "then", ": after record ", told(state.at.sequence, state.at.sequence), ", ", when(state.at), "; kept from ", when(state.first));
    this.element.dataset.at = state.at.sequence;
    this.figures.replaceChildren(...figures(state));
    this.figures.dataset.committed = state.committed;
    drawLedger(this.ledger, state.ledger);
    const heat = await getAt(`${this.path}/heat${Travel.asked(at)}`);
    if (at !== this.at) return;
    this.slots.element.dataset.sequence = heat.sequence;
    this.slots.element.dataset.at = at ?? "";
    drawSlots(this.slots, state.slots, heat.body.servers);
  }

  end() {
    clearTimeout(this.due);
  }
}

function when(moment) {
  return element("time", { datetime: new Date(moment.time_ms).toISOString() }, new Date(moment.time_ms).toLocaleString());
}

function figures(state) {
  const waits = state.waiting_plan ? [", plan ", named(state.waiting_plan), " waits for a word"] : [];
  const cuts = Object.entries(state.checkpoints).map(([cut, is]) => [named(Number(cut)), ` ${is}`]);
  return [
    `${state.phase}${state.paused ? ", paused" : ""}; term `, named(state.term), ", generation ", named(state.generation),
    "; plan ", state.plan ? named(state.plan) : "none", " is carried out", ...waits, "; ",
    told(state.committed), " of ", told(state.total), " samples committed, ", told(state.dead_lettered), " dead-lettered; ",
    `members: ${state.members.join(", ") || "none"}; checkpoints: `, ...(cuts.length ? listed(cuts) : ["none"]),
  ];
}

function named(number) {
  return told(number, number);
}

// Pieces {kind, intervals}: each one element, however many intervals it has.
function strip(pieces, whole, label, high = "") {
  const drawn = document.createElementNS(SVG, "svg");
  drawn.setAttribute("viewBox", `0 0 ${Math.max(whole, 1)} 1`);
  drawn.setAttribute("preserveAspectRatio", "none");
  for (const { intervals, kind, opacity } of pieces) {
    const piece = document.createElementNS(SVG, "path");
    const d = intervals.map(([first, end]) => `M${first} 0h${end - first}v1h${first - end}z`).join("");
    for (const [key, value] of Object.entries({ d, class: kind, "fill-opacity": opacity ?? 1 })) piece.setAttribute(key, value);
    drawn.append(piece);
  }
  return element("div", { class: `strip ${high}`, role: "img", "aria-label": label, title: label }, drawn);
}

function drawLedger(panel, ledger) {
  if (ledger === null) {
    panel.behindIt([["batches"]], () => []);
    return panel.empty("no epoch is open");
  }
  const kinds = [
    ["committed", ledger.committed, ledger.committed_batches],
    ["leased", ledger.leased, ledger.leased_batches],
    ["returned", ledger.returned, ledger.returned_batches],
    ["dead", ledger.dead.map((batch) => [batch, batch + 1]), ledger.dead.length],
  ];
  const free = ledger.batches - ledger.frontier;
  const counts = [...kinds.map(([kind, , count]) => [told(count), ` ${kind}`]), [told(free), " never leased"]];
  panel.words("epoch ", named(ledger.epoch), ": ", listed(counts), ", of ", told(ledger.batches), " batches", ledger.coarse ? "; neighbours are drawn as one" : "");
  const pieces = kinds.map(([kind, intervals]) => ({ kind, intervals }));
  const keys = kinds.map(([kind]) => element("span", { class: `key ${kind}` }, `${kind} `));
  panel.body.replaceChildren(strip(pieces, ledger.batches, panel.note.textContent, "high"), element("p", { class: "faint" }, keys));
  panel.behindIt([["kind"], ["batches", true], ["intervals"]], () =>
    kinds.map(([kind, intervals, count]) => row([kind, number(count, 0, { "data-kind": kind }), element("td", {}, listed(intervals.slice(0, 40).map(([first, end]) => (end - first > 1 ? [named(first), " to ", named(end - 1)] : [named(first)]))), intervals.length > 40 ? ", ..." : "")])),
  );
}

function drawSlots(panel, owners, heat) {
  const held = new Map();
  for (const [server, first, end] of owners) held.set(server, [...(held.get(server) ?? []), [first, end]]);
  const hot = new Map(heat.map((each) => [each.index, each]));
  const most = Math.max(...heat.map((each) => each.keys_per_s), 1e-9);
  const lines = [...held].sort(([one], [other]) => one - other).map(([server, ranges]) => ({ server, ranges, heat: hot.get(server), count: ranges.reduce((sum, [first, end]) => sum + end - first, 0) }));
  const words = lines.map(({ server, count, heat }) => [`ps-${server} has `, told(count), ...(heat ? [" and ", told(heat.keys_per_s), " keys/s"] : [])]);
  if (!lines.length) panel.empty("no server has slots");
  else panel.words(listed(words));
  panel.body.replaceChildren(
    ...lines.map(({ server, ranges, heat }) => {
      const share = heat ? heat.keys_per_s / most : null;
      const held = { kind: "slot", intervals: ranges, opacity: share === null ? 0.5 : 0.25 + 0.75 * share };
      const hottest = { kind: "hot", intervals: (heat?.hottest ?? []).map(([slot]) => [slot, slot + 12]) };
      return element("div", { class: "server" }, element("span", {}, `ps-${server}`), strip([held, hottest], SLOTS, `ps-${server}`));
    }),
  );
  panel.behindIt([["server"], ["slots", true], ["keys/s", true], ["rows", true], ["MiB", true], ["hottest slots (keys/s)"]], () =>
    lines.map(({ server, count, heat }) => row([`ps-${server}`, number(count), number(heat?.keys_per_s), number(heat?.rows), number(heat && heat.table_bytes / 2 ** 20, 1), element("td", {}, listed((heat?.hottest ?? []).map(([slot, keys]) => [named(slot), " (", told(keys), ")"])))])),
  );
}
