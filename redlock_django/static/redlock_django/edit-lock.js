// Reports that the change form of an object is open, and shows which other user has it open.
"use strict";
{
  const { url, form: id, seen: shown, every } = document.currentScript.dataset;
  const form = document.getElementById(id);
  const line = document.createElement("p");
  const mark = "border-inline-start: 4px solid #c77700; padding: 0.6rem; margin-block: 0 1rem";
  let [seen, ticket, isReporting, timer] = [shown, "", false, 0];

  // After "Back", a browser may load a new page and put into it what was typed into the old one.
  function isRestored({ options, type, value, defaultValue, checked, defaultChecked }) {
    if (options) return [...options].some((one) => one.selected !== one.defaultSelected);
    if (type === "checkbox" || type === "radio") return checked !== defaultChecked;
    return defaultValue !== undefined && value !== defaultValue;
  }

  function body(more) {
    const data = new FormData();
    data.set("csrfmiddlewaretoken", form.querySelector("[name=csrfmiddlewaretoken]").value);
    data.set("ticket", ticket);
    if (more) data.set(more, "1");
    return data;
  }

  async function report() {
    clearTimeout(timer);
    if (isReporting) return;
    isReporting = true;
    let seconds = every;
    try {
      const said = await (await fetch(url, { method: "POST", body: body() })).json();
      ticket = said.ticket ?? "";
      line.textContent = said.message ?? "";
      line.style.cssText = said.message ? mark : "margin: 0"; // a policy may forbid attributes
      if (said.ticket === undefined) seconds /= 4; // another page has it, and may be left
    } catch {} // no answer, or a login page: the next report may succeed
    isReporting = false;
    timer = setTimeout(report, seconds * 1000);
  }

  if (form) {
    line.setAttribute("role", "status");
    form.before(line);
    // A theme may replace the URL of the form, which has it, too.
    form.addEventListener("formdata", ({ formData }) => formData.set("_edit_seen", seen));
    addEventListener("pagehide", () => {
      clearTimeout(timer);
      navigator.sendBeacon(url, body("leaving"));
    });
    addEventListener("pageshow", ({ persisted }) => {
      if (persisted) return report(); // the old page itself, from memory
      const { editSeen: first } = history.state ?? {};
      if (first && [...form.elements].some(isRestored)) seen = first;
      history.replaceState({ ...history.state, editSeen: seen }, "");
    });
    document.addEventListener("visibilitychange", () => document.hidden || report());
    report();
  }
}
