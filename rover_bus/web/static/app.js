// The page: which view is shown, and when it is drawn again. It is drawn from the API alone, a moment after each event.

import { follow, get, token } from "./api.js";
import { element } from "./dom.js";
import { EventList } from "./events.js";
import { jobView } from "./job.js";
import { jobsView } from "./jobs.js";

const SETTLE_MS = 200; // events that come together are one drawing
const REDRAW_MS = 5000; // samples are no events
const FIRST_EVENTS = 50;

const main = document.getElementById("main");
const problem = document.getElementById("problem");
const shown = { view: element("div"), events: new EventList("") };
let due = 0;
let drawing = false;

function jobOfPlace() {
  const found = location.hash.match(/^#\/job\/([^/]+)$/);
  return found ? decodeURIComponent(found[1]).replace("@", "/") : "";
}

function complain(text) {
  problem.textContent = text;
  problem.hidden = !text;
}

async function draw() {
  if (drawing) return soon();
  drawing = true;
  const job = jobOfPlace();
  try {
    const [cluster, view] = await Promise.all([get("/cluster"), job ? jobView(job, soon) : get("/jobs").then((jobs) => [jobsView(jobs)])]);
    if (job === jobOfPlace()) {
      const focused = document.activeElement?.id;
      shown.view.replaceChildren(...view);
      if (focused) document.getElementById(focused)?.focus();
    }
    const cores = cluster.hosts.reduce((sum, host) => sum + host.cores_used, 0);
    document.getElementById("cluster").textContent =
      `${cluster.hosts.length} ${cluster.hosts.length === 1 ? "host" : "hosts"}, ${cores.toFixed(1)} cores in use, ${cluster.brain ? "a Brain leads" : "no Brain leads"}`;
    complain("");
  } catch (error) {
    complain(error.message);
  } finally {
    drawing = false;
  }
}

function soon() {
  clearTimeout(due);
  due = setTimeout(draw, SETTLE_MS);
}

async function show() {
  shown.view = element("div");
  shown.events = new EventList(jobOfPlace());
  main.replaceChildren(shown.view, element("h2", {}, "Events"), shown.events.list);
  const drawn = draw();
  const query = jobOfPlace() ? `&job=${encodeURIComponent(jobOfPlace())}` : "";
  const past = await get(`/events?count=${FIRST_EVENTS}${query}`).catch(() => []);
  for (const event of past) shown.events.take(event);
  await drawn;
}

async function begin() {
  const field = document.getElementById("token");
  field.value = token();
  document.getElementById("token-form").addEventListener("submit", (event) => event.preventDefault());
  field.addEventListener("change", () => {
    token(field.value.trim());
    soon();
  });
  window.addEventListener("hashchange", show);
  let sequence = 0;
  while (!sequence) {
    try {
      sequence = (await get("/cluster")).sequence || -1;
    } catch (error) {
      complain(error.message);
      await new Promise((resolve) => setTimeout(resolve, SETTLE_MS));
    }
  }
  await show();
  setInterval(soon, REDRAW_MS);
  const take = (event) => {
    shown.events.take(event);
    soon();
  };
  await follow(Math.max(sequence, 0), take, complain, new AbortController().signal);
}

begin();
