// All jobs: how far each is, how fast, how fast its plan promised, and when it will have ended.

import { get, inPath } from "./api.js";
import { bar, element, figure, fill, number, row, span, table, told } from "./dom.js";

const COLUMNS = [
  ["job"], ["state"], ["trained"], ["samples/s", true], ["predicted", true], ["left", true], ["workers", true], ["servers", true], ["waits for"],
];

export class JobsView {
  constructor() {
    this.place = element("div");
    this.elements = [this.place];
  }

  async update() {
    fill(this.place, jobsTable(await get("/jobs")));
  }

  end() {}
}

function jobsTable(jobs) {
  if (!jobs.length) return element("p", {}, "No job yet: ", element("code", {}, "rover submit JOB.toml"));
  const order = [...jobs].sort((one, other) => (one.ended_ms > 0) - (other.ended_ms > 0) || other.submitted_ms - one.submitted_ms);
  return table("jobs", COLUMNS, order.map(line), { id: "jobs", "data-sequence": jobs[0].sequence });
}

function line(job) {
  const share = job.total ? (job.committed + job.dead_lettered) / job.total : 0;
  const done = `${figure(job.committed)} of ${figure(job.total)} samples`;
  const waits = job.plan_waits ? element("a", { href: `#/job/${inPath(job.job)}` }, "plan ", told(job.plan_waits, job.plan_waits), " waits for a word") : job.reason;
  return row(
    [
      element("a", { href: `#/job/${inPath(job.job)}` }, job.job),
      element("td", { class: tone(job.state) }, job.state),
      bar([{ share, kind: "done" }], done),
      number(job.samples_per_second),
      number(job.predicted),
      element("td", { class: "number", "data-value": job.seconds_left }, span(job.seconds_left)),
      number(job.workers),
      number(job.servers),
      element("td", {}, waits || ""),
    ],
    { "data-job": job.job, "data-committed": job.committed },
  );
}

export function tone(state) {
  if (state === "completed") return "good";
  return state === "failed" ? "bad" : null;
}
