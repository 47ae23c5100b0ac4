// Live refresh of the held locks: fetches the current page and copies the changed parts into it.
// Selection, focus and scroll position are kept, because unchanged elements are not replaced.
"use strict";
{
  const INTERVAL = 5000; // ms; at least 2000
  const TIMEOUT = 10000; // ms for one response
  const STORAGE_KEY = "redlock-live"; // in sessionStorage: for this tab only

  let control, timer, on = false, refreshed = false, lastBox = null;

  const selectAll = (root, selector) => Array.from(root.querySelectorAll(selector));

  // The URL of a lock identifies its row, because it contains the fingerprint.
  const keyOf = (row) => row.querySelector("a[href]")?.getAttribute("href") ?? row.textContent;

  function rowsOf(table, oneBodyEach) {
    return Array.from(oneBodyEach ? table.tBodies : table.tBodies[0].rows);
  }

  function hasSelection(part) {
    const selection = window.getSelection();
    return !selection.isCollapsed && selection.containsNode(part, true);
  }

  function updatePart(part, fresh) {
    if (part.innerHTML === fresh.innerHTML || hasSelection(part)) return;
    if (part.contains(document.activeElement)) return; // left for the next refresh
    part.innerHTML = fresh.innerHTML;
  }

  function updateRow(row, fresh) {
    const cells = selectAll(row, "th, td");
    selectAll(fresh, "th, td").forEach((cell, index) => {
      const old = cells[index];
      if (old.innerHTML !== cell.innerHTML && !old.querySelector("input") && !hasSelection(old)) {
        old.innerHTML = cell.innerHTML;
      }
    });
  }

  function updateList(page) {
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
        updateRow(row, fresh);
      } else {
        row = document.importNode(fresh, true);
      }
      if (row === before) before = before.nextElementSibling;
      else holder.insertBefore(row, before);
    }
    for (const [, gone] of known) {
      if (gone.contains(focused)) {
        // Keep the keyboard focus near the removed row.
        const next = gone.nextElementSibling || gone.previousElementSibling;
        next?.querySelector("input, a")?.focus({ preventScroll: true });
      }
      gone.remove();
    }
    if (document.activeElement !== focused && focused.isConnected) {
      focused.focus({ preventScroll: true }); // moving a row removes the focus from it
    }
    const counter = form.querySelector(".action-counter");
    const freshCounter = freshForm.querySelector(".action-counter");
    if (counter && freshCounter) counter.dataset.actionsIcnt = freshCounter.dataset.actionsIcnt;
    const pages = form.querySelector(".paginator"), freshPages = freshForm.querySelector(".paginator");
    if (pages && freshPages) updatePart(pages, freshPages);
    refreshed = true;
    updateCounter();
  }

  // Django's own script handles only the rows that were in the page when it was loaded.

  const boxes = () => selectAll(document, "#result_list input.action-select");

  function updateCounter() {
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

  function onClick(event) {
    const box = event.target;
    if (!refreshed || !(box instanceof HTMLInputElement)) return;
    if (box.id === "action-toggle") {
      boxes().forEach((other) => { other.checked = box.checked; });
    } else if (box.matches("#result_list input.action-select")) {
      const all = boxes(), ends = [all.indexOf(box), all.indexOf(lastBox)].sort((a, b) => a - b);
      if (event.shiftKey && ends[0] >= 0) {
        all.slice(ends[0], ends[1] + 1).forEach((other) => { other.checked = box.checked; });
      }
      lastBox = box;
    } else {
      return;
    }
    event.stopPropagation();
    updateCounter();
  }

  function onChange(event) {
    if (refreshed && event.target.matches?.("#result_list input.action-select, #action-toggle")) {
      event.stopPropagation();
    }
  }

  function showStatus(status) {
    control.querySelector(".redlock-live-status").textContent = control.dataset[status] ?? "";
    control.classList.toggle("redlock-live-failed", status === "failed");
    control.querySelector("button").textContent = on ? control.dataset.stop : control.dataset.start;
  }

  async function refresh() {
    if (!on || control.dataset.fetching || document.hidden) return;
    control.dataset.fetching = "now";
    try {
      const response = await fetch(location.href, { signal: AbortSignal.timeout(TIMEOUT) });
      if (!on) return;
      if (response.redirected) return stop("gone");
      if (!response.ok) throw new Error(String(response.status));
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      if (!on) return;
      for (const part of selectAll(document, "[data-live]")) {
        const fresh = page.getElementById(part.id);
        if (fresh) updatePart(part, fresh);
      }
      updateList(page);
      showStatus("on");
    } catch {
      if (on) showStatus("failed");
    } finally {
      delete control.dataset.fetching;
      schedule();
    }
  }

  function schedule() {
    clearTimeout(timer);
    if (on && !document.hidden) timer = setTimeout(refresh, INTERVAL);
  }

  function start() {
    on = true;
    sessionStorage.setItem(STORAGE_KEY, "on");
    showStatus("on");
    refresh();
  }

  function stop(status) {
    on = false;
    sessionStorage.removeItem(STORAGE_KEY);
    clearTimeout(timer);
    showStatus(status);
  }

  function onVisibilityChange() {
    if (!on) return;
    showStatus(document.hidden ? "hidden" : "on");
    if (document.hidden) clearTimeout(timer);
    else refresh();
  }

  function init() {
    control = document.getElementById("redlock-live");
    if (!control) return;
    control.hidden = false;
    control.querySelector("button").addEventListener("click", () => (on ? stop("off") : start()));
    document.addEventListener("visibilitychange", onVisibilityChange);
    document.addEventListener("click", onClick, true);
    document.addEventListener("change", onChange, true);
    if (sessionStorage.getItem(STORAGE_KEY)) start();
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", init);
  else init();
}
