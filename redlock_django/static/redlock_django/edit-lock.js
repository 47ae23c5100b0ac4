// A page on which a row is edited: says that it is open, and shows who else has it open.
"use strict";
{
  const page = document.querySelector("[data-redlock-page]");
  const said = page?.querySelector("[role=status]");
  const button = page?.querySelector("button");
  const every = Number(page?.dataset.every) * 1000;
  let timer;

  function body(action) {
    const form = new FormData();
    form.append("csrfmiddlewaretoken", page.dataset.token);
    form.append("_edit_lock", action);
    form.append("_edit_page", page.dataset.redlockPage);
    form.append("_edit_ticket", page.dataset.ticket);
    return form;
  }

  function show(text, canTake) {
    if (said.textContent !== text) said.textContent = text;
    const choice = page.querySelector(".redlock-choice");
    if (choice) choice.hidden = !canTake;
    if (button) button.hidden = !canTake;
  }

  const refused = (answer) => answer.redirected || answer.status === 403;

  function report(action) {
    return fetch(location.href, {
      method: "POST", body: body(action), signal: AbortSignal.timeout(every),
      headers: { Accept: "application/json" },
    });
  }

  // A login in another tab replaces the CSRF token, without which this page could not be saved.
  // Returns the answer that refuses to show the page again, if there is one.
  async function takeToken() {
    const address = new URL(location.href);
    address.searchParams.set("_edit", "read"); // it opens no other page
    const answer = await fetch(address, { signal: AbortSignal.timeout(every) });
    if (refused(answer)) return answer;
    const inputs = "[name=csrfmiddlewaretoken]";
    const other = new DOMParser().parseFromString(await answer.text(), "text/html");
    const token = other.querySelector(inputs)?.value;
    if (!token) return null;
    page.dataset.token = token;
    for (const input of document.querySelectorAll(inputs)) input.value = token;
    return null;
  }

  async function tell(action) {
    clearTimeout(timer);
    try {
      let answer = await report(action);
      if (refused(answer)) answer = await takeToken() ?? await report(action);
      if (answer.redirected) return show(page.dataset.loggedOut, false);
      if (answer.status === 403) return show(page.dataset.withdrawn, false);
      if (answer.status === 404) return show(page.dataset.deleted, false);
      if (!answer.ok) throw new Error(String(answer.status));
      const { editor, can_take: canTake, ticket } = await answer.json();
      page.dataset.ticket = ticket;
      show(editor, canTake);
    } catch {
      show(page.dataset.unreachable, false);
    } finally {
      // Browsers slow the timers of a hidden tab down: it tells again as soon as it is visible.
      timer = setTimeout(() => tell("renew"), every);
    }
  }

  function leave() {
    clearTimeout(timer);
    navigator.sendBeacon(location.href, body("leave"));
  }

  if (page && page.dataset.readOnly === undefined) {
    if (button) {
      button.hidden = false;
      button.addEventListener("click", () => tell("take"));
    }
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) tell("renew");
    });
    addEventListener("pagehide", leave);
    addEventListener("pageshow", (event) => {
      if (event.persisted) tell("renew"); // from the back/forward cache
    });
    timer = setTimeout(() => tell("renew"), every);
  }
}
