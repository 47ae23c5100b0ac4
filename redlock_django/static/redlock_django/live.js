// Live refresh of the held locks: fetches the page itself, and brings over what has changed.
// Selection, focus and scroll stay, because what is unchanged is left alone.
"use strict";
{
  const EVERY = 5000; // ms; never below 2000
  const PATIENCE = 10000; // ms for one answer
  const REMEMBERED = "redlock-live"; // for this tab only

  let control, timer, on = false, refreshed = false, lastBox = null;

  const every = (where, what) => Array.from(where.querySelectorAll(what));

  // A lock's row is known by its address, in which its fingerprint stands.
  const keyOf = (row) => row.querySelector("a[href]")?.getAttribute("href") ?? row.textContent;

  function rowsOf(table, oneBodyEach) {
    return Array.from(oneBodyEach ? table.tBodies : table.tBodies[0].rows);
  }

  function beingRead(part) {
    const selection = window.getSelection();
    return !selection.isCollapsed && selection.containsNode(part, true);
  }

  function bring(part, fresh) {
    if (part.innerHTML === fresh.innerHTML || beingRead(part)) return;
    if (part.contains(document.activeElement)) return; // the next time, then
    part.innerHTML = fresh.innerHTML;
  }

  function bringRow(row, fresh) {
    const cells = every(row, "th, td");
    every(fresh, "th, td").forEach((cell, place) => {
      const old = cells[place];
      if (old.innerHTML !== cell.innerHTML && !old.querySelector("input") && !beingRead(old)) {
        old.innerHTML = cell.innerHTML;
      }
    });
  }

  function bringList(page) {
    const form = document.getElementById("changelist-form");
    const freshForm = page.getElementById("changelist-form");
    if (!form || !freshForm) return;
    const table = form.querySelector("#result_list");
    const freshTable = freshForm.querySelector("#result_list");
    if (!table || !freshTable) {
      if (table || freshTable) form.replaceWith(document.importNode(freshForm, true));
      refreshed = true;
      return;
    }
    const oneBodyEach = table.tBodies.length > 1 || freshTable.tBodies.length > 1;
    const known = new Map(rowsOf(table, oneBodyEach).map((row) => [keyOf(row), row]));
    const holder = oneBodyEach ? table : table.tBodies[0];
    const focused = document.activeElement;
    let before = rowsOf(table, oneBodyEach)[0];
    for (const fresh of rowsOf(freshTable, oneBodyEach)) {
      let row = known.get(keyOf(fresh));
      if (row) {
        known.delete(keyOf(fresh));
        bringRow(row, fresh);
      } else {
        row = document.importNode(fresh, true);
      }
      if (row === before) before = before.nextElementSibling;
      else holder.insertBefore(row, before);
    }
    for (const [, gone] of known) {
      if (gone.contains(focused)) {
        // Whoever works by keyboard goes on in the next row.
        const next = gone.nextElementSibling || gone.previousElementSibling;
        next?.querySelector("input, a")?.focus({ preventScroll: true });
      }
      gone.remove();
    }
    if (document.activeElement !== focused && focused.isConnected) {
      focused.focus({ preventScroll: true }); // moving a row takes the focus from it
    }
    const counter = form.querySelector(".action-counter");
    const freshCounter = freshForm.querySelector(".action-counter");
    if (counter && freshCounter) counter.dataset.actionsIcnt = freshCounter.dataset.actionsIcnt;
    const pages = form.querySelector(".paginator"), freshPages = freshForm.querySelector(".paginator");
    if (pages && freshPages) bring(pages, freshPages);
    refreshed = true;
    recount();
  }

  // Django's own script knows only the rows that the page came with.

  const boxes = () => every(document, "#result_list input.action-select");

  function recount() {
    const all = boxes(), chosen = all.filter((box) => box.checked);
    all.forEach((box) => box.closest("tr").classList.toggle("selected", box.checked));
    const toggle = document.getElementById("action-toggle");
    if (toggle) toggle.checked = all.length > 0 && chosen.length === all.length;
    const counter = document.querySelector("#changelist-form .action-counter");
    if (!counter || !window.interpolate) return;
    const words = window.ngettext(
      "%(sel)s of %(cnt)s selected", "%(sel)s of %(cnt)s selected", chosen.length);
    counter.textContent = window.interpolate(
      words, { sel: chosen.length, cnt: Number(counter.dataset.actionsIcnt) }, true);
  }

  function selecting(event) {
    const box = event.target;
    if (!refreshed || !(box instanceof HTMLInputElement)) return;
    if (box.id === "action-toggle") {
      boxes().forEach((one) => { one.checked = box.checked; });
    } else if (box.matches("#result_list input.action-select")) {
      const all = boxes(), ends = [all.indexOf(box), all.indexOf(lastBox)].sort((a, b) => a - b);
      if (event.shiftKey && ends[0] >= 0) {
        all.slice(ends[0], ends[1] + 1).forEach((one) => { one.checked = box.checked; });
      }
      lastBox = box;
    } else {
      return;
    }
    event.stopPropagation();
    recount();
  }

  function changing(event) {
    if (refreshed && event.target.matches?.("#result_list input.action-select, #action-toggle")) {
      event.stopPropagation();
    }
  }

  function say(word) {
    control.querySelector(".redlock-live-said").textContent = control.dataset[word] ?? "";
    control.classList.toggle("redlock-live-failed", word === "failed");
    control.querySelector("button").textContent = on ? control.dataset.stop : control.dataset.start;
  }

  async function refresh() {
    if (!on || control.dataset.asking || document.hidden) return;
    control.dataset.asking = "now";
    try {
      const answer = await fetch(location.href, { signal: AbortSignal.timeout(PATIENCE) });
      if (!on) return;
      if (answer.redirected) return stop("gone");
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!on) return;
      for (const part of every(document, "[data-live]")) {
        const fresh = page.getElementById(part.id);
        if (fresh) bring(part, fresh);
      }
      bringList(page);
      say("on");
    } catch {
      if (on) say("failed");
    } finally {
      delete control.dataset.asking;
      plan();
    }
  }

  function plan() {
    clearTimeout(timer);
    if (on && !document.hidden) timer = setTimeout(refresh, EVERY);
  }

  function start() {
    on = true;
    sessionStorage.setItem(REMEMBERED, "on");
    say("on");
    refresh();
  }

  function stop(word) {
    on = false;
    sessionStorage.removeItem(REMEMBERED);
    clearTimeout(timer);
    say(word);
  }

  function looking() {
    if (!on) return;
    say(document.hidden ? "hidden" : "on");
    if (document.hidden) clearTimeout(timer);
    else refresh();
  }

  function begin() {
    control = document.getElementById("redlock-live");
    if (!control) return;
    control.hidden = false;
    control.querySelector("button").addEventListener("click", () => (on ? stop("off") : start()));
    document.addEventListener("visibilitychange", looking);
    document.addEventListener("click", selecting, true);
    document.addEventListener("change", changing, true);
    if (sessionStorage.getItem(REMEMBERED)) start();
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
}
