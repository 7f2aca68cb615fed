// Replaces the live part of a page after each change of the fleet. Pages work without it, too.
"use strict";

const LEAST_MS = 2000; // between two refreshes of one browser
const MOST_MS = 15000; // ages on the page grow, although nothing changes
const live = document.getElementById("live");
let isBusy = false, isWanted = false;

async function refresh() {
  if (isBusy || document.hidden) { isWanted = true; return; }
  isBusy = true; isWanted = false;
  try {
    const answer = await fetch(location.href, { headers: { "X-Fleet-Live": "1" } });
    if (answer.status === 401) { location.reload(); return; }
    if (answer.ok) replace(await answer.text());
  } catch { /* the server is away: the stream tells when it is back */ }
  setTimeout(() => { isBusy = false; if (isWanted) refresh(); }, LEAST_MS);
}

function replace(text) {
  if (live.querySelector("details[open]")) return; // somebody fills in a form
  const parsed = new DOMParser().parseFromString(text, "text/html");
  const focused = live.contains(document.activeElement) ? document.activeElement : null;
  const name = focused && (focused.getAttribute("href") || focused.textContent);
  live.replaceChildren(...parsed.body.childNodes);
  if (!name) return;
  const again = [...live.querySelectorAll("a, summary")].find((each) => (each.getAttribute("href") || each.textContent) === name);
  if (again) again.focus({ preventScroll: true });
}

if (live) {
  new EventSource("/events").onmessage = refresh;
  setInterval(refresh, MOST_MS);
  document.addEventListener("visibilitychange", () => { if (isWanted) refresh(); });
}
