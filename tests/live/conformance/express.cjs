// A shop with express-idempotency: POST /pay/:order, GET /effects/:order, and the order "refused".
const express = require("express");
const { idempotency, getSharedIdempotencyService } = require("express-idempotency");

const effects = {};
const site = express();
site.use(express.text({ type: "*/*" }));
site.get("/effects/:order", (request, response) => {
  response.json({ count: effects[request.params.order] ?? 0 });
});
site.post("/:kind/:order", idempotency(), async (request, response) => {
  if (getSharedIdempotencyService().isHit(request)) return;
  const order = request.params.order;
  const count = (effects[order] = (effects[order] ?? 0) + 1);
  await new Promise((done) => setTimeout(done, 300)); // the payment provider
  if (request.params.kind === "refuse") response.status(402).json({ refused: order, count });
  else response.status(201).json({ paid: order, count, body: request.body });
});
const server = site.listen(0, "127.0.0.1", () => console.log(server.address().port));
