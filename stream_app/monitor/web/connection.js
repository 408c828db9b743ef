// The live connection: server-sent events read by fetch, so that refusals can be told from
// outages and a silent connection is noticed. It always says what state it is in.

import { clock } from "./dom.js";

const SILENT_MS = 15000; // three heartbeats
const DOWN_MS = 8000;
const HIDDEN_MS = 30000;
const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 8000;

// Calls show(event) for every event, and tell(state, text) whenever the state changes.
export function follow(url, show, tell) {
  const link = new Link(url, show, tell);
  document.addEventListener("visibilitychange", () => link.visibility());
  window.addEventListener("online", () => link.hurry());
  link.run();
}

class Link {
  constructor(url, show, tell) {
    Object.assign(this, { url, show, tell });
    this.heard = null; // when something last came
    this.current = null; // when what is shown was last known to be current
    this.lost = null; // since when there is no connection
    this.kafka = true;
    this.refused = "";
    this.wake = () => {};
  }

  async run() {
    let retry = FIRST_RETRY_MS;
    for (;;) {
      const before = this.heard;
      await this.attempt();
      if (this.heard !== before) retry = FIRST_RETRY_MS;
      this.lose();
      await this.pause(retry * (0.75 + Math.random() / 2));
      retry = Math.min(LAST_RETRY_MS, retry * 2);
    }
  }

  lose() {
    if (this.lost === null) {
      this.lost = Date.now();
      setTimeout(() => this.say(), DOWN_MS + 100);
    }
    this.say();
  }

  async attempt() {
    this.abort = new AbortController();
    this.listen();
    try {
      const answer = await fetch(this.url, { signal: this.abort.signal, cache: "no-store" });
      if (answer.ok) {
        this.refused = "";
        await this.read(answer.body.getReader());
      } else {
        this.refused = await refusal(answer);
      }
    } catch {
      // Refused, cut off, or silent: the caller tries again.
      this.refused = "";
    } finally {
      clearTimeout(this.silence);
    }
  }

  listen() {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => this.abort.abort(), SILENT_MS);
  }

  async read(reader) {
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
      rest = blocks.pop();
      this.alive();
      for (const block of blocks) this.take(block);
      this.say();
    }
  }

  alive() {
    this.heard = Date.now();
    if (this.kafka) this.current = this.heard;
    this.lost = null;
    this.listen();
  }

  take(block) {
    if (!block.startsWith("data: ")) return;
    const event = JSON.parse(block.slice(6));
    this.kafka = event.kafka;
    if (this.kafka) this.current = this.heard;
    this.show(event);
  }

  say() {
    const shown =
      this.current === null ? "nothing is shown yet" : `showing the state of ${clock(this.current)}`;
    if (this.refused) this.tell("down", `${this.refused}: ${shown}`);
    else if (this.lost !== null && Date.now() - this.lost >= DOWN_MS) {
      this.tell("down", `service down: ${shown}`);
    } else if (this.lost !== null) {
      this.tell("waiting", `reconnecting since ${clock(this.lost)}: ${shown}`);
    } else if (!this.kafka) this.tell("waiting", `Kafka is away: ${shown}`);
    else this.tell("live", "live");
  }

  async pause(time) {
    await new Promise((resolve) => {
      this.wake = resolve;
      setTimeout(resolve, time);
    });
    while (this.hidden) await new Promise((resolve) => (this.wake = resolve));
  }

  hurry() {
    this.wake();
  }

  // A browser has few connections to one server: a page that nobody sees gives its own back.
  visibility() {
    clearTimeout(this.leave);
    this.hidden = false;
    if (document.hidden) {
      this.leave = setTimeout(() => {
        this.hidden = true;
        this.abort.abort();
      }, HIDDEN_MS);
    } else this.wake();
  }
}

async function refusal(answer) {
  try {
    return `the service refuses (${(await answer.json()).error})`;
  } catch {
    return `the service refuses (${answer.status})`;
  }
}
