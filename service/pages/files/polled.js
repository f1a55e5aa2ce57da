// Pages whose tables htmx fetches anew every few seconds: where the service does not answer they say so until it does.
"use strict";

addEventListener("DOMContentLoaded", () => {
  document.body.addEventListener("htmx:afterRequest", (event) => live.tellLink(event.detail.successful ? "back" : "lost"));
});
