// The log of events: newest first; an event opens its story, from the first cause to what followed.

import { get } from "./api.js";
import { clock, element } from "./dom.js";

const MOST = 200;

export class EventList {
  constructor(job) {
    this.job = job;
    this.list = element("ol", { class: "events", "aria-label": "events" });
  }

  // Events of the past and those of the stream may come in any order, and some come twice.
  take(event) {
    if (this.job && event.job !== this.job) return;
    let behind = this.list.firstElementChild;
    while (behind && Number(behind.dataset.sequence) > event.sequence) behind = behind.nextElementSibling;
    if (behind && Number(behind.dataset.sequence) === event.sequence) return;
    this.list.insertBefore(this.line(event), behind);
    while (this.list.children.length > MOST) this.list.lastChild.remove();
  }

  line(event) {
    const text = this.job || !event.job ? event.text : `${event.job}: ${event.text}`;
    const opens = element("button", { type: "button", "aria-expanded": "false" }, clock(event.time_ms), text);
    const item = element("li", { "data-sequence": event.sequence }, opens);
    opens.addEventListener("click", () => toggle(item, opens, event));
    return item;
  }
}

async function toggle(item, opens, event) {
  const there = item.querySelector("ol");
  opens.setAttribute("aria-expanded", there ? "false" : "true");
  if (there) {
    there.remove();
    return;
  }
  const steps = await get(`/events/${event.sequence}/story`);
  const lines = steps.map((step) => element("li", { value: step.depth + 1 }, step.why ? `${step.why}: ` : "", step.event.text));
  item.append(element("ol", { class: "story", "aria-label": "story" }, lines));
}
