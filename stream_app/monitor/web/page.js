// The page: which of the two it is, and its live connection.

import { follow } from "./connection.js";
import { setText } from "./dom.js";
import { experimentPage } from "./experiment.js";
import { listPage } from "./list.js";

const PREFIX = "/experiments/";

function start() {
  const main = document.getElementById("content");
  const status = document.getElementById("connection");
  const path = location.pathname;
  const name = path.startsWith(PREFIX) ? path.slice(PREFIX.length) : null;
  const page = name === null ? listPage(main) : experimentPage(main, decoded(name));
  const url = name === null ? "/api/events" : `/api/experiments/${name}/events`;
  follow(url, page, (state, text) => {
    status.dataset.state = state;
    setText(status, text);
  });
}

// A broken escape in the address is shown as it is.
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

start();
