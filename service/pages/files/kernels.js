// Buttons that copy a text, linked lines of code, and what is told where a part of a page cannot be had.

for (const button of document.querySelectorAll("[data-copy]")) {
  button.hidden = !navigator.clipboard;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    button.textContent = "Copied";
  });
}

// Marks every line that is of the same line of the source, shows the first of each text, and says how many there are.
function mark(chosen) {
  for (const line of document.querySelectorAll(".code .on")) line.classList.remove("on");
  const counts = [];
  for (const text of document.querySelectorAll(".code pre")) {
    const lines = text.querySelectorAll(`[data-line="${chosen.dataset.line}"]`);
    for (const line of lines) line.classList.add("on");
    if (lines.length > 0 && !text.contains(chosen)) {
      text.scrollTop = lines[0].offsetTop - text.clientHeight / 3;
    }
    if (text.dataset.kind !== "cuda" && lines.length > 0) counts.push(`${lines.length} of the ${text.dataset.name}`);
  }
  const marked = counts.length > 0 ? counts.join(", ") : "none that is shown here";
  document.getElementById("marked").textContent = `Line ${chosen.dataset.line} of the CUDA source. Lines marked: ${marked}.`;
}

document.querySelector(".code")?.addEventListener("click", (event) => {
  const line = event.target.closest("[data-line]");
  if (line === null) return;
  const link = event.target.closest("a");
  if (link !== null) {
    event.preventDefault();
    stop(link);
  }
  mark(line);
});

// Of the numbers of a text one is a stop of the Tab key, as there may be thousands; arrow keys lead to the others.
function stop(link) {
  for (const other of link.closest("pre").querySelectorAll("a.g[tabindex='0']")) other.tabIndex = -1;
  link.tabIndex = 0;
}

for (const text of document.querySelectorAll(".code pre")) {
  const links = [...text.querySelectorAll("a.g")];
  links.forEach((link, at) => (link.tabIndex = at === 0 ? 0 : -1));
  text.addEventListener("keydown", (event) => {
    const at = links.indexOf(event.target);
    const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: links.length - 1 }[event.key];
    if (at < 0 || links[next] === undefined) return;
    event.preventDefault();
    stop(links[next]);
    links[next].focus();
  });
}

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
