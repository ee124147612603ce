// The charts of a job: throughput beside what was promised, the program's metrics, memory, and the front of its newest plan.

import { clock, listed, number, row, span, told } from "./dom.js";
import { Charts, short } from "./panels.js";

const MIB = 2 ** 20;
const MOST_LINES = 6;
const LINES = ["compute", "pull", "good", "accent", "bad", "faint"];

export class Throughput extends Charts {
  constructor() {
    super("throughput", "Throughput: measured and predicted");
  }

  async update(shown) {
    this.element.dataset.sequence = shown.sequence;
    const promises = shown.promises.filter((each) => each.predicted);
    if (!shown.times_ms.length) return this.empty("nothing was reported yet");
    const last = shown.measured.at(-1);
    const promised = promises.at(-1);
    this.words(brief(last), " samples/s at last, ", promised ? [brief(promised.predicted), " predicted by plan ", told(promised.plan, promised.plan), interval(promised)].flat() : "nothing was predicted");
    const points = pointsOf(shown, promises);
    const held = points.map(({ at }) => promises.findLast((each) => each.from_ms <= at) ?? null);
    const drawing = {
      x: points.map(({ at }) => at / 1000),
      series: [
        { label: "measured", color: "compute", values: points.map(({ measured }) => measured) },
        { label: "predicted", color: "pull", dash: [6, 4], stepped: true, gaps: true, values: held.map((each) => each?.predicted ?? null) },
        { label: "90 % high", color: "interval", width: 1, stepped: true, gaps: true, values: held.map((each) => each?.high_90 ?? null) },
        { label: "90 % low", color: "interval", width: 1, stepped: true, gaps: true, values: held.map((each) => each?.low_90 ?? null) },
      ],
      bands: [[3, 4]],
      up: "samples/s",
    };
    await this.plot("throughput", drawing, this.note.textContent);
    this.behindIt([["time"], ["measured", true], ["predicted", true], ["low", true], ["high", true], ["plan", true]], () =>
      points.map(({ at, measured }, index) => {
        const each = held[index];
        return row([clock(at), number(measured), number(each?.predicted), number(each?.low_90), number(each?.high_90), number(each?.plan)]);
      }),
    );
  }
}

// Each report, also of two in one millisecond, and where a plan was carried out between them.
function pointsOf({ times_ms, measured }, promises) {
  const begins = new Set(promises.map((each) => Math.max(each.from_ms, times_ms[0])));
  for (const at of times_ms) begins.delete(at);
  const reports = times_ms.map((at, index) => ({ at, measured: measured[index] }));
  return [...reports, ...[...begins].map((at) => ({ at, measured: null }))].sort((one, other) => one.at - other.at);
}

function interval(promise) {
  return promise.low_90 ? [" (", brief(promise.low_90), " to ", brief(promise.high_90), ")"] : [];
}

function brief(value) {
  return told(value, short(value));
}

function lasts(seconds) {
  return seconds === null ? span(null) : told(seconds, span(seconds));
}

export class Program extends Charts {
  constructor() {
    super("program", "Loss and metrics of the program", false);
  }

  async update(shown) {
    this.element.dataset.sequence = shown.sequence;
    if (!shown.metrics.length) return this.empty("the program reports none; ", ending(shown));
    this.words(listed(shown.metrics.map((each) => [`${each.name} `, brief(each.values.at(-1))])), "; ", ending(shown));
    this.only(shown.metrics.map((each) => each.name));
    for (const [index, each] of shown.metrics.entries()) {
      const series = [{ label: each.name, color: LINES[index % LINES.length], values: each.values }];
      await this.plot(each.name, { x: each.times_ms.map((at) => at / 1000), series, range: around }, `${each.name}: ${short(each.values[0])} at first, ${short(each.values.at(-1))} now`);
    }
    this.behindIt([["metric"], ["time"], ["value", true]], () => shown.metrics.flatMap((each) => each.values.map((value, index) => row([each.name, clock(each.times_ms[index]), number(value, 5)]))));
  }
}

function around(_chart, low, high) {
  const room = Math.max((high - low) * 0.08, Math.abs(high) * 0.01, 1e-9);
  return [low - room, high + room];
}

function ending(shown) {
  const said = [];
  const target = shown.target;
  if (target) {
    const what = target.target ? [`${target.metric} `, brief(target.target)] : ["its target"];
    said.push([...what, ...reached(target)]);
  }
  said.push(shown.seconds_left === null ? "no end is foreseen" : ["the data ends in ", lasts(shown.seconds_left), " at the present speed"]);
  return listed(said, "; ");
}

function reached(target) {
  if (target.eta_s === null) return [" is out of reach by what is known"];
  const latest = target.high_90_s === null ? "never" : lasts(target.high_90_s);
  return [" is reached in ", lasts(target.eta_s), " (", lasts(target.low_90_s), " to ", latest, ")"];
}

export class Memory extends Charts {
  constructor() {
    super("memory", "Memory: used, limit, forecast");
  }

  async update(shown) {
    this.element.dataset.sequence = shown.sequence;
    if (!shown.members.length) return this.empty("no process was sampled yet");
    const fullest = [...shown.members].sort((one, other) => fullness(other) - fullness(one));
    const lines = fullest.slice(0, MOST_LINES);
    const first = lines[0];
    const limit = first.limit_bytes ? [" of ", brief(first.limit_bytes / MIB), " MiB"] : [", no limit"];
    const bound = first.upper_bytes.length ? ["; at most ", brief(first.upper_bytes.at(-1) / MIB), " MiB in ", lasts(first.ahead_s.at(-1))] : [];
    const left = shown.members.length > lines.length ? ["; the fullest ", told(lines.length), " of ", told(shown.members.length), " are drawn"] : [];
    this.words(`${first.member} uses `, brief(first.used_bytes.at(-1) / MIB), " MiB", limit, bound, left);
    const tracks = lines.flatMap((each, index) => curves(each, LINES[index % LINES.length]));
    const times = [...new Set(tracks.flatMap((each) => [...each.points.keys()]))].sort((one, other) => one - other);
    const series = tracks.map(({ points, ...each }) => ({ ...each, values: times.map((at) => points.get(at) ?? null) }));
    await this.plot("memory", { x: times.map((at) => at / 1000), series, up: "MiB" }, this.note.textContent);
    this.behindIt([["member"], ["MiB", true], ["limit", true], ["foreseen", true], ["at most", true], ["in"]], () =>
      shown.members.map((each) =>
        row([each.member, number(each.used_bytes.at(-1) / MIB), number(each.limit_bytes && each.limit_bytes / MIB), number(mib(each.expected_bytes.at(-1))), number(mib(each.upper_bytes.at(-1))), lasts(each.ahead_s.at(-1) ?? null)]),
      ),
    );
  }
}

function mib(bytes) {
  return bytes === undefined ? null : bytes / MIB;
}

function fullness(member) {
  const used = member.used_bytes.at(-1);
  return member.limit_bytes ? 1 + used / member.limit_bytes : used / 2 ** 50;
}

function curves(member, hue) {
  const now = member.times_ms.at(-1);
  const ahead = (values) => new Map(values.map((value, index) => [now + 1000 * member.ahead_s[index], value / MIB]));
  const made = [{ label: `${member.member} MiB`, color: hue, points: new Map(member.times_ms.map((at, index) => [at, member.used_bytes[index] / MIB])) }];
  if (member.limit_bytes) {
    const end = member.ahead_s.length ? now + 1000 * member.ahead_s.at(-1) : now;
    made.push({ label: `${member.member} limit`, color: hue, width: 2.4, points: new Map([[member.times_ms[0], member.limit_bytes / MIB], [end, member.limit_bytes / MIB]]) });
  }
  if (member.ahead_s.length) {
    made.push({ label: `${member.member} foreseen`, color: hue, dash: [5, 4], points: ahead(member.expected_bytes) });
    made.push({ label: `${member.member} 95 %`, color: hue, width: 1, dash: [2, 3], points: ahead(member.upper_bytes) });
  }
  return made;
}

const SIZE = ["workers", "servers", "worker_cores", "server_cores"];

export class Front extends Charts {
  constructor() {
    super("front", "The front of the newest plan");
  }

  async update({ body: why, sequence }) {
    this.element.dataset.sequence = sequence;
    this.element.dataset.plan = why.plan ?? "";
    if (why.plan === null) return this.empty(why.left_as_it_is ? `no plan yet: ${why.left_as_it_is.constant} ${why.left_as_it_is.detail}` : "no plan yet");
    const chosen = ["plan ", told(why.plan, why.plan), ` (${why.state}): ${why.reason || why.constant.replaceAll("_", " ")}`];
    this.words(listed([chosen, ...why.why_not.map((each) => `not ${each}`)], "; "));
    const front = [...(why.front ?? [])].sort((one, other) => one.cost - other.cost);
    const role = (each) => (same(each, why.wanted) ? "chosen" : same(each, why.held) ? "held" : "");
    this.behindIt([["workers", true], ["servers", true], ["cores a worker", true], ["cores a server", true], ["cost", true], ["samples/s", true], [""]], () =>
      front.map((each) => row([...SIZE.map((name) => number(each[name], 2)), number(each.cost, 2), number(each.throughput), role(each)])),
    );
    if (!front.length) {
      this.only([]);
      this.note.append("; too little is measured for a front");
      return;
    }
    const of = (kind) => front.map((each) => (kind === undefined || role(each) === kind ? each.throughput : null));
    const series = [
      { label: "front", color: "faint", values: of() },
      { label: "sizes", color: "compute", points: 5, values: of() },
      { label: "held", color: "pull", points: 10, values: of("held") },
      { label: "chosen", color: "bad", points: 10, values: of("chosen") },
    ];
    await this.plot("front", { x: front.map((each) => each.cost), series, time: false, across: "cost: cores + 0.1 × GiB", up: "samples/s" }, `${front.length} sizes, cost against samples/s; ${this.note.textContent}`);
  }
}

// A size without cores of its own is charged with some on the front.
function same(each, size) {
  return Boolean(size) && SIZE.every((name) => !size[name] || each[name] === size[name]) && each.servers === (size.servers ?? 0);
}
