// The page of a model: fetched anew when one of its problems changes its state.
"use strict";

addEventListener("DOMContentLoaded", () => {
  const { id, status, ended } = document.getElementById("model").dataset;
  const ends = ended.split(" ");
  if (ends.includes(status)) return;
  const soon = live.refresher();
  live.follow(
    `/v1/batches/${id}/events`,
    0,
    ["progress"],
    ends,
    (kind) => (kind === "progress" ? soon() : live.end()),
    live.tellLink,
  );
});
