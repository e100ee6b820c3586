// The live part of a page: a stream of server-sent events while somebody looks, none while nobody does.
"use strict";

function localize(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    time.title = time.dateTime;
    time.textContent = moment.toLocaleString(undefined, {dateStyle: "medium", timeStyle: "medium"});
  }
}

function follow(part) {
  part.setAttribute("hx-ext", "sse");
  part.setAttribute("sse-connect", part.dataset.live);
  part.setAttribute("sse-swap", "frame");
  htmx.process(part);
}

function leave(part) {
  htmx.trigger(part, "htmx:beforeCleanupElement");
  for (const name of ["hx-ext", "sse-connect", "sse-swap"]) part.removeAttribute(name);
  const fresh = part.cloneNode(false);
  fresh.append(...part.childNodes);
  part.replaceWith(fresh);
}

document.addEventListener("DOMContentLoaded", () => {
  localize(document);
  const part = () => document.querySelector("[data-live]");
  if (part() && !document.hidden) follow(part());
  document.addEventListener("visibilitychange", () => {
    if (!part()) return;
    if (document.hidden) leave(part());
    else follow(part());
  });
});

document.addEventListener("htmx:afterSwap", (event) => localize(event.target));

document.addEventListener("submit", (event) => {
  const question = event.submitter && event.submitter.dataset.ask;
  if (question && !window.confirm(question)) event.preventDefault();
});
