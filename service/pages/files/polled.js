// Pages whose tables htmx fetches anew every few seconds: where the service gives none they say so until it does.
"use strict";

addEventListener("DOMContentLoaded", () => {
  document.body.addEventListener("htmx:afterRequest", ({ detail }) => {
    live.tellLink(detail.successful ? "back" : "lost", 0, detail.xhr.status);
  });
});
