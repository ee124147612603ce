// One job: its figures, its plans with a person's word on the one that waits, a lane a member.

import { get, inPath, post } from "./api.js";
import { bar, element, number, row, span, table } from "./dom.js";
import { tone } from "./jobs.js";

export async function jobView(name, changed) {
  const path = `/jobs/${inPath(name)}`;
  const [job, plans, members] = await Promise.all([get(path), get(`${path}/plans`), get(`${path}/members`)]);
  return [
    element("h1", {}, name, " ", element("span", { class: tone(job.state) ?? "faint" }, job.state)),
    figures(job),
    element("h2", {}, "Plans"),
    plansView(path, plans, changed),
    element("h2", {}, "Members"),
    membersView(members),
  ];
}

function figures(job) {
  const interval = job.predicted_low_90 ? ` (${job.predicted_low_90.toFixed(0)} to ${job.predicted_high_90.toFixed(0)})` : "";
  const shown = [
    ["trained", job.committed, `of ${job.total.toLocaleString("en")} samples`],
    ["goodput", job.samples_per_second, "samples/s"],
    ["predicted", job.predicted, `samples/s${interval}`],
    ["given up", job.dead_lettered, "samples"],
  ];
  const rows = shown.map(([title, value, unit]) => row([title, number(value), unit]));
  rows.push(row(["left", element("td", { class: "number" }, job.ended_ms ? "0 s" : span(job.seconds_left)), job.reason || ""]));
  return table("figures", [["figure"], ["value", true], [""]], rows, { id: "figures", "data-sequence": job.sequence });
}

function plansView(path, plans, changed) {
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
        plan.state === "waits" ? words(path, plan.plan, changed) : element("td", {}),
      ],
      { "data-plan": plan.plan, "data-state": plan.state },
    ),
  );
  return table("plans", columns, rows, { id: "plans", class: "plans" });
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

function membersView(members) {
  if (!members.length) return element("p", { class: "faint" }, "no process runs");
  const columns = [["member"], ["host"], ["pid", true], ["where its time goes"], ["samples/s", true], ["cores", true], ["MiB", true]];
  const rows = members.map((member) =>
    row([
      `${member.role}-${member.index}.${member.incarnation}${member.leads ? " leads" : ""}`,
      member.host,
      element("td", { class: "number" }, String(member.pid)),
      member.compute === null ? element("td", { class: "faint" }, "–") : lane(member),
      number(member.samples_per_second),
      number(member.cores_used, 2),
      number(member.memory_bytes === null ? null : member.memory_bytes / 2 ** 20),
    ]),
  );
  const key = element("p", { class: "faint" }, element("span", { class: "key compute" }, "computes "), element("span", { class: "key pull" }, "reads, pulls, pushes "), element("span", { class: "key wait" }, "waits"));
  return element("div", {}, table("members", columns, rows, { id: "members" }), key);
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
