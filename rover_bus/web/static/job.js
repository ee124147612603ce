// One job: its figures, its plans with a person's word on the one that waits, its charts, a lane a member, its state at any moment.

import { getAt, inPath, post } from "./api.js";
import { Front, Memory, Program, Throughput } from "./charts.js";
import { bar, element, fill, number, row, span, table, told } from "./dom.js";
import { tone } from "./jobs.js";
import { Lanes } from "./lanes.js";
import { frame, pause } from "./panels.js";
import { Travel } from "./travel.js";

const DEAR_MS = 10000; // what reads the Brain's log is asked for no more often, unless a plan changed
const PAST_MS = 5000; // a moment that is gone is asked for no more often
const MOST_ROWS = 20; // that are made in one frame

export class JobView {
  constructor(name, changed) {
    this.path = `/jobs/${inPath(name)}`;
    this.name = name;
    this.changed = changed;
    this.heading = element("h1", {}, name);
    this.figures = element("div");
    this.plans = element("div");
    this.members = new Members();
    this.panels = { throughput: new Throughput(), front: new Front(), lanes: new Lanes(), program: new Program(), memory: new Memory() };
    this.travel = new Travel(this.path, changed);
    this.then = { at: null, drawn: 0 };
    this.dear = { at: -DEAR_MS, plan: "" };
    const { throughput, front, lanes, program, memory } = this.panels;
    this.elements = [
      this.heading,
      this.travel.bar,
      this.figures,
      element("h2", {}, "Plans"),
      this.plans,
      throughput.element,
      front.element,
      lanes.element,
      element("h2", {}, "Members"),
      this.members.place,
      program.element,
      memory.element,
      this.travel.element,
    ];
  }

  // Everything is of one moment, that of the slider: a drawing that finds it moved leaves the rest to the next one.
  async update() {
    const { at } = this.travel;
    if (at !== null && at === this.then.at && performance.now() - this.then.drawn < PAST_MS) return;
    const ask = (path) => getAt(`${this.path}${path}${Travel.asked(at)}`);
    const moved = () => at !== this.travel.at;
    const [job, plans, members] = await Promise.all([ask(""), ask("/plans"), ask("/members")]);
    if (moved()) return;
    this.heading.replaceChildren(this.name, " ", element("span", { class: tone(job.body.state) ?? "faint" }, job.body.state));
    fill(this.figures, figures(job.body, at));
    fill(this.plans, plansView(this.path, plans, at, this.changed));
    await this.members.update(members, at, moved);
    if (moved()) return;
    for (const name of ["throughput", "lanes", "program"]) {
      const shown = await ask(`/${name}`);
      await pause();
      if (moved()) return;
      await this.show(name, shown.body, at);
    }
    if (job.body.state !== "submitted") await this.travel.update();
    await this.updateDear(`${at} ${plans.body.map((plan) => `${plan.plan} ${plan.state}`)}`, ask, moved);
    if (!moved()) this.then = { at, drawn: performance.now() };
  }

  async updateDear(plan, ask, moved) {
    if (plan === this.dear.plan && performance.now() - this.dear.at < DEAR_MS) return;
    const { at } = this.travel;
    const [why, memory] = await Promise.all([ask("/explanation"), ask("/memory")]);
    if (moved()) return;
    this.dear = { at: performance.now(), plan };
    await this.show("front", why, at);
    await pause();
    if (!moved()) await this.show("memory", memory.body, at);
  }

  async show(name, shown, at) {
    const panel = this.panels[name];
    await panel.update(shown);
    panel.element.dataset.at = at ?? "";
  }

  end() {
    for (const panel of Object.values(this.panels)) panel.end();
    this.travel.end();
  }
}

function figures(job, at) {
  const interval = job.predicted_low_90 ? [" (", told(job.predicted_low_90), " to ", told(job.predicted_high_90), ")"] : [];
  const shown = [
    ["trained", job.committed, ["of ", told(job.total), " samples"]],
    ["goodput", job.samples_per_second, ["samples/s"]],
    ["predicted", job.predicted, ["samples/s", ...interval]],
    ["given up", job.dead_lettered, ["samples"]],
  ];
  const rows = shown.map(([title, value, unit]) => row([title, number(value), element("td", {}, unit)]));
  rows.push(row(["left", left(job), job.reason || ""]));
  return table("figures", [["figure"], ["value", true], [""]], rows, { id: "figures", "data-sequence": job.sequence, "data-at": at });
}

function left(job) {
  return element("td", { class: "number", "data-value": job.seconds_left }, span(job.seconds_left));
}

// A person answers what waits now.
function plansView(path, { body: plans, sequence }, at, changed) {
  if (!plans.length) return element("p", { class: "faint" }, "none yet");
  const columns = [["plan", true], ["change"], ["state"], ["measured", true], ["predicted", true], ["after", true], ["why"], ["your word"]];
  const rows = [...plans].reverse().map((plan) =>
    row(
      [
        number(plan.plan),
        plan.change,
        plan.state + (plan.person ? `, by ${plan.person}` : ""),
        number(plan.measured),
        number(plan.predicted),
        number(plan.after),
        plan.reason || plan.why,
        plan.state === "waits" && at === null ? words(path, plan.plan, changed) : element("td", {}),
      ],
      { "data-plan": plan.plan, "data-state": plan.state },
    ),
  );
  return table("plans", columns, rows, { id: "plans", class: "plans", "data-sequence": sequence, "data-at": at });
}

function words(path, plan, changed) {
  const said = element("span", { role: "status" });
  const say = (word) => async () => {
    try {
      const answer = await post(`${path}/plans/${plan}/${word}`, {});
      said.textContent = answer.became;
      changed();
    } catch (error) {
      said.textContent = error.message;
    }
  };
  return element(
    "td",
    {},
    element("button", { type: "button", id: `approve-${plan}`, onclick: say("approve") }, "approve"),
    element("button", { type: "button", id: `reject-${plan}`, class: "less", onclick: say("reject") }, "reject"),
    said,
  );
}

const MEMBERS = [["member"], ["host"], ["pid", true], ["where its time goes"], ["samples/s", true], ["cores", true], ["MiB", true]];

// Its rows stay from one drawing to the next; those that say something else are made again, some a frame.
class Members {
  constructor() {
    const key = element("p", { class: "faint" }, element("span", { class: "key compute" }, "computes "), element("span", { class: "key pull" }, "reads, pulls, pushes "), element("span", { class: "key wait" }, "waits"));
    this.whole = element("div", {}, table("members", MEMBERS, [], { id: "members", class: "members" }), key);
    this.table = this.whole.querySelector("table");
    this.place = element("div");
    this.rows = []; // each {said, made}
  }

  async update({ body: members, sequence }, at, moved) {
    if (!members.length) return this.place.replaceChildren(element("p", { class: "faint" }, "no process runs"));
    if (!this.whole.isConnected) this.place.replaceChildren(this.whole);
    for (const each of this.rows.splice(members.length)) each.made.remove();
    let made = 0;
    for (const [index, member] of members.entries()) {
      const said = JSON.stringify(member);
      const former = this.rows[index];
      if (former?.said === said) continue;
      this.rows[index] = { said, made: memberRow(member) };
      if (former) former.made.replaceWith(this.rows[index].made);
      else this.table.tBodies[0].append(this.rows[index].made);
      if (++made % MOST_ROWS === 0) await frame();
      if (moved()) return;
    }
    this.table.dataset.sequence = sequence;
    this.table.dataset.at = at ?? "";
  }
}

function memberRow(member) {
  return row([
    `${member.role}-${member.index}.${member.incarnation}${member.leads ? " leads" : ""}`,
    member.host,
    element("td", { class: "number", "data-value": member.pid }, String(member.pid)),
    member.compute === null ? element("td", { class: "faint" }, "–") : lane(member),
    number(member.samples_per_second),
    number(member.cores_used, 2),
    number(member.memory_bytes === null ? null : member.memory_bytes / 2 ** 20),
  ]);
}

function lane(member) {
  const parts = [
    { share: member.compute, kind: "compute" },
    { share: member.pull, kind: "pull" },
    { share: member.wait, kind: "wait" },
  ];
  const [compute, pull, wait] = parts.map((part) => `${Math.round(100 * part.share)} %`);
  return bar(parts, `computes ${compute}, reads, pulls and pushes ${pull}, waits ${wait}`);
}
