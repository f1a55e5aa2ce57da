// The page of a model: fetched anew when one of its problems changes its state.
"use strict";

addEventListener("DOMContentLoaded", () => {
  const { id, status } = document.getElementById("model").dataset;
  if (status === "done" || status === "cancelled") return;
  const soon = live.refresher();
  live.follow(
    `/v1/batches/${id}/events`,
    0,
    ["progress"],
    ["done", "cancelled"],
    (kind) => (kind === "progress" ? soon() : live.end()),
    live.tellLink,
  );
});
