"use strict";

// Refresh the picture of the masters every second.
const now = document.getElementById("now");
let shown = "";

async function refresh() {
  if (document.hidden) return;
  const answer = await fetch(now.dataset.url).catch(() => null);
  if (!answer?.ok) return;
  const picture = await answer.text();
  if (picture !== shown) now.innerHTML = shown = picture;
}

if (now) setInterval(refresh, 1000);
