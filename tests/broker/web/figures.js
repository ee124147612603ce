// What each panel of the page has to show by the API, for test_figures.py: `differences(panel, job)` names what differs at the
// sequence that the panel says. A figure is an element with `data-value`; no digit stands in a panel outside of figures, times,
// names, and strings of the API.

const MIB = 2 ** 20;
const BRIEF = 5e-4; // a figure within words has four digits
const at = (id) => document.getElementById(id);
const mean = (values) => values.reduce((sum, each) => sum + each, 0) / values.length;

async function ask(path) {
  const response = await fetch(`/api/v1${path}`, { cache: "no-store" });
  const body = await response.json();
  if (!response.ok) throw new Error(body.message);
  return { body, sequence: response.headers.get("Rover-Sequence") };
}

// A path, asked of the moment that a panel says it shows.
function then(panel, path) {
  return path + (at(panel).dataset.at ? `?at=${at(panel).dataset.at}` : "");
}

function left(job) {
  return job.seconds_left;
}

const PANELS = {
  cluster: { path: () => "/cluster", figures: ({ hosts }) => [hosts.length, hosts.reduce((sum, host) => sum + host.cores_used, 0)] },
  jobs: {
    path: () => "/jobs",
    figures: (jobs) =>
      jobs.flatMap((job) => [(job.committed + job.dead_lettered) / job.total, job.samples_per_second, job.predicted, left(job), job.workers, job.servers, job.plan_waits]),
    words: (jobs) => jobs.flatMap((job) => [job.job, job.state]),
  },
  figures: {
    path: (job) => then("figures", `/jobs/${job}`),
    figures: (job) => [job.committed, job.total, job.samples_per_second, job.predicted, job.predicted_low_90, job.predicted_high_90, job.dead_lettered, left(job)],
  },
  plans: {
    path: (job) => then("plans", `/jobs/${job}/plans`),
    figures: (plans) => [...plans].reverse().flatMap((plan) => [plan.plan, plan.measured, plan.predicted, plan.after]),
    words: (plans) => plans.flatMap((plan) => [plan.change, plan.state, plan.reason || plan.why]),
  },
  members: {
    path: (job) => then("members", `/jobs/${job}/members`),
    figures: (members) =>
      members.flatMap((each) => [each.pid, each.compute, each.pull, each.wait, each.samples_per_second, each.cores_used, each.memory_bytes && each.memory_bytes / MIB]),
    words: (members) => members.flatMap((each) => [`${each.role}-${each.index}.${each.incarnation}`, each.host]),
  },
  throughput: {
    path: (job) => then("throughput", `/jobs/${job}/throughput`),
    figures: ({ times_ms, measured, promises }) => {
      const last = promises.at(-1);
      const held = (time) => promises.filter((each) => each.from_ms <= time).at(-1);
      const begins = promises.map((each) => Math.max(each.from_ms, times_ms[0])).filter((time) => !times_ms.includes(time));
      const lines = [...times_ms.map((time, index) => [time, measured[index]]), ...begins.map((time) => [time])].sort(([one], [other]) => one - other);
      return [
        ...[measured.at(-1), last.predicted, last.plan, last.low_90, last.high_90],
        ...lines.flatMap(([time, reported]) => [reported, held(time)?.predicted, held(time)?.low_90, held(time)?.high_90, held(time)?.plan]),
      ];
    },
  },
  front: {
    path: (job) => then("front", `/jobs/${job}/explanation`),
    figures: ({ plan, front }) =>
      [plan, ...[...front].sort((one, other) => one.cost - other.cost).flatMap((each) => [each.workers, each.servers, each.worker_cores, each.server_cores, each.cost, each.throughput])],
    words: ({ state, reason, why_not }) => [`(${state}): ${reason}`, ...why_not.map((each) => `not ${each}`)],
    more: ({ front, wanted, held }) => {
      const cells = [...at("front").querySelectorAll("details tbody tr")].map((line) => line.lastChild.textContent);
      const named = [...front].sort((one, other) => one.cost - other.cost).map((each) => (each.workers === wanted.workers ? "chosen" : each.workers === held.workers ? "held" : ""));
      return [cells, named];
    },
  },
  lanes: {
    path: (job) => then("lanes", `/jobs/${job}/lanes`),
    figures: ({ lanes, width_ms }) => [
      ...[lanes.length, width_ms / 1000, lanes.flatMap((each) => each.restarts).length],
      ...lanes.flatMap((each) => [...["compute", "pull", "wait"].map((kind) => 100 * mean(each[kind])), each.restarts.length, each.checkpoints.length]),
    ],
    words: ({ lanes, marks }) => [...lanes.map((each) => each.member), ...marks.map((each) => each.text)],
  },
  program: {
    path: (job) => then("program", `/jobs/${job}/program`),
    figures: ({ metrics, target, seconds_left }) => [
      ...metrics.map((each) => each.values.at(-1)),
      ...[target.target, target.eta_s, target.low_90_s, target.high_90_s, seconds_left],
      ...metrics.flatMap((each) => each.values),
    ],
    words: ({ metrics, target }) => [...metrics.map((each) => each.name), target.metric],
  },
  memory: {
    path: (job) => then("memory", `/jobs/${job}/memory`),
    figures: ({ members }) => {
      const [fullest] = [...members].sort((one, other) => other.used_bytes.at(-1) / other.limit_bytes - one.used_bytes.at(-1) / one.limit_bytes);
      const row = (each) => [each.used_bytes.at(-1) / MIB, each.limit_bytes / MIB, each.expected_bytes.at(-1) / MIB, each.upper_bytes.at(-1) / MIB, each.ahead_s.at(-1)];
      const [used, limit, , upper, ahead] = row(fullest);
      return [used, limit, upper, ahead, ...members.flatMap(row)];
    },
    words: ({ members }) => members.map((each) => each.member),
  },
  state: {
    path: (job) => `/jobs/${job}/state?at=${at("travel").dataset.at}`,
    place: () => [at("bar").querySelector("output"), at("state")],
    figures: (said) => [said.at.sequence, said.term, said.generation, said.plan || null, said.waiting_plan, said.committed, said.total, said.dead_lettered, ...Object.keys(said.checkpoints).map(Number)],
    words: (said) => [`${said.phase}; term`, `members: ${said.members.join(", ")}`, ...Object.values(said.checkpoints)],
    more: (said) => [[...at("bar").querySelectorAll("output time")].map((each) => Date.parse(each.dateTime)), [said.at.time_ms, said.first.time_ms]],
  },
  ledger: {
    path: (job) => `/jobs/${job}/state?at=${at("travel").dataset.at}`,
    figures: ({ ledger }) => {
      if (!ledger) return [];
      const counts = [ledger.committed_batches, ledger.leased_batches, ledger.returned_batches, ledger.dead.length];
      return [
        ...[ledger.epoch, ...counts, ledger.batches - ledger.frontier, ledger.batches],
        ...maps(ledger).flatMap(([, intervals], index) => [counts[index], ...intervals.slice(0, 40).flatMap(([first, end]) => (end - first > 1 ? [first, end - 1] : [first]))]),
      ];
    },
    more: ({ ledger }) => [
      [...at("ledger").querySelectorAll("path")].flatMap((each) => [...each.getAttribute("d").matchAll(/M(\d+) 0h(\d+)v1h-(\d+)z/g)].map(([, first, wide, back]) => [first, wide, back, each.getAttribute("class")].join())),
      ledger ? maps(ledger).flatMap(([kind, intervals]) => intervals.map(([first, end]) => [first, end - first, end - first, kind].join())) : [],
    ],
  },
  slots: {
    path: (job) => `/jobs/${job}/state?at=${at("travel").dataset.at}`,
    also: (job) => then("slots", `/jobs/${job}/heat`),
    figures: ({ slots }, heat) => {
      const servers = [...new Set(slots.map(([server]) => server))].map((server) => {
        const count = slots.filter(([owner]) => owner === server).reduce((sum, [, first, end]) => sum + end - first, 0);
        return [count, heat?.servers.find((each) => each.index === server)];
      });
      return [
        ...servers.flatMap(([count, hot]) => [count, hot?.keys_per_s]),
        ...servers.flatMap(([count, hot]) => [count, hot?.keys_per_s, hot?.rows, hot && hot.table_bytes / MIB, ...(hot?.hottest ?? []).flat()]),
      ];
    },
  },
};

function maps(ledger) {
  return [["committed", ledger.committed], ["leased", ledger.leased], ["returned", ledger.returned], ["dead", ledger.dead.map((batch) => [batch, batch + 1])]];
}

async function differences(name, job) {
  const panel = PANELS[name];
  const { body, sequence } = await ask(panel.path(job));
  const also = panel.also?.(job) ? await ask(panel.also(job)) : null;
  const places = panel.place?.() ?? [at(name)];
  const said = places[0].dataset.sequence;
  const found = [];
  if (said && said !== (also ?? { sequence }).sequence) found.push(`the panel shows ${said}, the API ${sequence}`);
  const drawn = places.flatMap((place) => [...place.querySelectorAll("[data-value]")]);
  const wanted = panel.figures(body, also?.body).filter((value) => value !== null && value !== undefined && !Number.isNaN(value));
  if (!wanted.length && name !== "ledger") found.push("the API has no figure of it");
  const values = drawn.map((each) => Number(each.dataset.value));
  if (values.length !== wanted.length || !values.every((value, index) => close(value, wanted[index]))) found.push(`drawn ${JSON.stringify(values)}, by the API ${JSON.stringify(wanted)}`);
  for (const each of drawn) if (each.textContent && !reads(each.textContent, Number(each.dataset.value))) found.push(`${each.dataset.value} is written ${each.textContent}`);
  const text = places.map((place) => place.textContent).join(" ");
  for (const word of panel.words?.(body) ?? []) if (!text.includes(word)) found.push(`nothing says ${word}`);
  const [shown, due] = (panel.more?.(body) ?? []).map((each) => JSON.stringify(each));
  if (shown !== due) found.push(`${shown} is drawn, ${due} is said`);
  for (const stray of strays(places, body)) found.push(`no figure of the API: ${stray}`);
  return found;
}

function close(value, wanted) {
  return Math.abs(value - wanted) <= 1e-12 * Math.abs(wanted); // a mean is summed in one order or another
}

const SCALES = { k: 1e3, M: 1e6, G: 1e9, min: 60, h: 3600 };

function reads(text, value) {
  const [, digits, unit] = text.match(/^(-?[\d,.]+) ?(k|M|G|s|min|h|)$/) ?? [];
  if (digits === undefined) return false;
  const scale = SCALES[unit] ?? 1;
  const last = 10 ** -(digits.split(".")[1]?.length ?? 0);
  return Math.abs(Number(digits.replaceAll(",", "")) * scale - value) <= Math.max(0.5001 * last * scale, BRIEF * Math.abs(value) * (last < 1));
}

function strings(body) {
  if (typeof body === "string") return [body];
  return body && typeof body === "object" ? Object.values(body).flatMap(strings) : [];
}

function strays(places, body) {
  const known = strings(body).filter(Boolean).sort((one, other) => other.length - one.length);
  const found = [];
  for (const place of places) {
    const walked = document.createTreeWalker(place, NodeFilter.SHOW_TEXT);
    while (walked.nextNode()) {
      const { parentElement, textContent } = walked.currentNode;
      if (parentElement.closest("[data-value], time, .chart")) continue;
      let text = textContent.replace(/(worker|ps|master)-\d+(\.\d+)?/g, "");
      for (const each of known) text = text.replaceAll(each, "");
      if (/\d/.test(text)) found.push(textContent);
    }
  }
  return found;
}
