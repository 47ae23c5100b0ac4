"use strict";

const REASONS = { 200: "OK, paid", 409: "Conflict", 423: "Locked", 503: "Service Unavailable" };

function kindOf(status) {
  if (status === 200) return "good";
  return status === 423 || status === 409 ? "held" : "bad";
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 1);
  } catch {
    return text.slice(0, 600);
  }
}

async function payOnce(form, sameKey) {
  const began = performance.now();
  try {
    const answer = await fetch(form.action, {
      method: "POST",
      headers: {
        Accept: "application/json",
        "X-CSRFToken": form.elements.csrfmiddlewaretoken.value,
      },
      body: sameKey
        ? new URLSearchParams({ idempotency_key: form.elements.idempotency_key.value })
        : undefined,
    });
    const body = await answer.text();
    return {
      status: answer.status,
      body,
      retryAfter: answer.headers.get("Retry-After"),
      replayed: answer.headers.get("Idempotent-Replayed") === "true",
      took: performance.now() - began,
    };
  } catch (error) {
    return { status: 0, body: String(error), retryAfter: null, took: performance.now() - began };
  }
}

function show(answer, title) {
  const part = document.getElementById("answer").content.cloneNode(true);
  const retry = answer.retryAfter === null ? "" : `, Retry-After: ${answer.retryAfter} s`;
  part.querySelector("section").dataset.kind = kindOf(answer.status);
  part.querySelector("h3").textContent = title;
  part.querySelector(".status").textContent =
    answer.status === 0 ? "no answer" : `${answer.status} ${REASONS[answer.status] ?? ""}`.trim();
  const again = answer.replayed ? ", replayed response" : "";
  part.querySelector(".took").textContent = `${Math.round(answer.took)} ms${retry}${again}`;
  part.querySelector("pre").textContent = pretty(answer.body);
  return part;
}

async function refresh(order) {
  const answer = await fetch(order.dataset.order, { headers: { Accept: "application/json" } });
  if (!answer.ok) return;
  const facts = await answer.json();
  order.querySelector(".state").dataset.state = facts.state;
  order.querySelector("[data-word]").textContent = facts.state;
  order.querySelector("[data-payments]").textContent = facts.payments;
}

async function payTwice(event) {
  event.preventDefault();
  const form = event.currentTarget;
  const button = event.submitter ?? form.querySelector("button");
  const sameKey = "same" in button.dataset;
  // aria-disabled instead of disabled: the keyboard focus stays where it is.
  if (button.getAttribute("aria-disabled") === "true") return;
  button.setAttribute("aria-disabled", "true");
  const order = form.closest(".order");
  try {
    const [first, second] = await Promise.all([payOnce(form, sameKey), payOnce(form, sameKey)]);
    order
      .querySelector(".answers")
      .replaceChildren(show(first, "First request"), show(second, "Second request"));
    await refresh(order);
  } finally {
    button.removeAttribute("aria-disabled");
  }
}

for (const form of document.querySelectorAll("form[data-twice]")) {
  form.addEventListener("submit", payTwice);
}
