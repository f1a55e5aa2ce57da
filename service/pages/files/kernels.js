// Buttons that copy a text, linked lines of code, and what is told where a part of a page cannot be had.

for (const button of document.querySelectorAll("[data-copy]")) {
  button.hidden = !navigator.clipboard;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    button.textContent = "Copied";
  });
}

// Marks every line that is of the same line of the source, and shows the first of each text.
function mark(chosen) {
  for (const line of document.querySelectorAll(".code .on")) line.classList.remove("on");
  for (const text of document.querySelectorAll(".code pre")) {
    const lines = text.querySelectorAll(`[data-line="${chosen.dataset.line}"]`);
    for (const line of lines) line.classList.add("on");
    if (lines.length > 0 && !text.contains(chosen)) {
      text.scrollTop = lines[0].offsetTop - text.clientHeight / 3;
    }
  }
}

document.querySelector(".code")?.addEventListener("click", (event) => {
  const line = event.target.closest("[data-line]");
  if (line === null) return;
  if (event.target.closest("a") !== null) event.preventDefault();
  mark(line);
});

document.body.addEventListener("htmx:afterSwap", () => tell(""));

// What is wrong with a filter, or why a part of a page cannot be made.
function tell(words, target = null) {
  const place = document.getElementById("fault") ?? target;
  if (place !== null) place.textContent = words;
}
document.body.addEventListener("htmx:responseError", (event) => {
  const page = new DOMParser().parseFromString(event.detail.xhr.responseText, "text/html");
  tell(page.querySelector("main p")?.textContent ?? "The service gave no answer.", event.detail.target);
});
document.body.addEventListener("htmx:sendError", (event) => {
  tell("The service cannot be reached.", event.detail.target);
});
