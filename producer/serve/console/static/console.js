// The live part of a page: htmx asks for it while somebody looks, and nobody asks while the tab is hidden.
"use strict";

// "08:41" of today, "yesterday 23:10", "12 Nov 08:41", "2025-11-12 08:41" of another year; as the server writes them.
function shortTime(moment, now) {
  const two = (number) => String(number).padStart(2, "0");
  const clock = `${two(moment.getHours())}:${two(moment.getMinutes())}`;
  const yesterday = new Date(now.getFullYear(), now.getMonth(), now.getDate() - 1);
  if (moment.toDateString() === now.toDateString()) return clock;
  if (moment.toDateString() === yesterday.toDateString()) return `yesterday ${clock}`;
  if (moment.getFullYear() === now.getFullYear()) {
    return `${moment.getDate()} ${moment.toLocaleString("en", {month: "short"})} ${clock}`;
  }
  return `${moment.getFullYear()}-${two(moment.getMonth() + 1)}-${two(moment.getDate())} ${clock}`;
}

function localize(root) {
  const now = new Date();
  for (const time of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    time.title = moment.toLocaleString(undefined, {dateStyle: "full", timeStyle: "long"});
    time.textContent = shortTime(moment, now);
  }
}

document.addEventListener("htmx:beforeRequest", (event) => {
  if (document.hidden) event.preventDefault();
});

// The server says 304 as long as the page shows what the server has.
let shown = null;

document.addEventListener("htmx:configRequest", (event) => {
  if (shown) event.detail.headers["If-None-Match"] = shown;
});

// What a person has opened stays open when the live part is drawn anew.
const nameOf = (details) => details.id || details.querySelector("summary").textContent;
let opened = new Set();

document.addEventListener("htmx:beforeSwap", (event) => {
  event.detail.shouldSwap = event.detail.xhr.status === 200;
  if (!event.detail.shouldSwap) return;
  shown = event.detail.xhr.getResponseHeader("ETag");
  opened = new Set([...event.target.querySelectorAll("details[open]")].map(nameOf));
});

function reopen(root) {
  for (const details of root.querySelectorAll("details")) {
    if (opened.has(nameOf(details))) details.open = true;
  }
}

// Pictures are loaded anew when the live part names another version; what somebody reads or points at stays.
let drawn = null;

async function redraw() {
  const told = document.querySelector("[data-drawn]");
  const part = document.getElementById("pictures");
  if (!told || !part || told.dataset.drawn === drawn) return;
  if (part.matches(":hover") || part.contains(document.activeElement)) return;
  drawn = told.dataset.drawn;
  const answer = await fetch(told.dataset.from).catch(() => null);
  if (!answer || !answer.ok || answer.redirected) return;
  const lanes = document.getElementById("lanes");
  const top = lanes ? lanes.scrollTop : 0;
  part.innerHTML = await answer.text();
  if (document.getElementById("lanes")) document.getElementById("lanes").scrollTop = top;
  localize(part);
}

document.addEventListener("DOMContentLoaded", () => {
  localize(document);
  const told = document.querySelector("[data-drawn]");
  if (told) drawn = told.dataset.drawn;
});

// The title counts the jobs that need a person, as the server writes it.
function count(root) {
  const found = root.querySelector("[data-needs]");
  if (!found) return;
  const needs = Number(found.dataset.needs);
  document.title = (needs ? `(${needs.toLocaleString("en")}) ` : "") + document.title.replace(/^\([\d,]+\) /, "");
}

document.addEventListener("htmx:afterSwap", (event) => {
  localize(event.target);
  reopen(event.target);
  count(event.target);
  redraw();
});

// Buttons that act on what is picked are off until something is.
function arm() {
  for (const acts of document.querySelectorAll("[data-picks]")) {
    const picked = [...acts.closest("form").elements].some((each) => each.name === acts.dataset.picks && each.checked);
    for (const button of acts.querySelectorAll("button")) button.disabled = !picked;
  }
}

for (const moment of ["DOMContentLoaded", "change", "htmx:afterSettle"]) document.addEventListener(moment, arm);
window.addEventListener("pageshow", arm); // a browser that goes back shows the page as it was left

document.addEventListener("submit", (event) => {
  const question = event.submitter && event.submitter.dataset.ask;
  if (question && !window.confirm(question)) event.preventDefault();
});
