// What a query consists of besides its words: a file of one's own, and items to find more or less of.
import { byId, make } from "/elements.js";

const NAMES = "file-names"; // names of files by token, kept in this tab only

function names() { return JSON.parse(sessionStorage.getItem(NAMES) || "{}"); }

// Send a file to the server and call `done` with its token; `say` shows what goes on, an empty text nothing.
export async function sendFile(file, info, { done, say }) {
  if (!info.files) { say(`A file cannot be the query here. ${info.no_files}`); return; }
  const mebibytes = info.largest_file / 2 ** 20;
  if (file.size > info.largest_file) { say(`“${file.name}” is too large; the limit is ${mebibytes} MiB.`); return; }
  say(`Reading “${file.name}” …`);
  try {
    const headers = { "content-type": file.type || "application/octet-stream" };
    const answer = await fetch("/api/file", { method: "POST", body: file, headers });
    const content = await answer.json().catch(() => ({}));
    if (!answer.ok) { say(`“${file.name}”: ${content.detail || `the server answered with the status ${answer.status}`}`); return; }
    sessionStorage.setItem(NAMES, JSON.stringify({ ...names(), [content.token]: file.name }));
    say("");
    done(content.token);
  } catch {
    say(`“${file.name}” could not be sent; does the server still run?`);
  }
}

// Choose, drop or paste a file.
export function listenForFiles(take) {
  byId("file").addEventListener("change", (event) => { if (event.target.files[0]) take(event.target.files[0]); event.target.value = ""; });
  byId("choose").addEventListener("click", () => byId("file").click());
  const carries = (event) => [...(event.dataTransfer?.types || [])].includes("Files");
  addEventListener("dragover", (event) => { if (carries(event)) { event.preventDefault(); document.body.classList.add("dropping"); } });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
  addEventListener("drop", (event) => {
    document.body.classList.remove("dropping");
    if (!carries(event)) return;
    event.preventDefault();
    if (event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
  });
  addEventListener("paste", (event) => { const file = event.clipboardData?.files[0]; if (file) { event.preventDefault(); take(file); } });
}

function chip(kind, text, label, remove) {
  return make("span", { class: `chip ${kind}` }, text,
    make("button", { type: "button", "aria-label": label, onclick: remove }, "×"));
}

// The parts of the query as chips under the search box. `titles` maps ids of items to what people call them.
export function showParts(state, titles, go) {
  const parts = [];
  const called = (id) => (titles.get(id) || id).split(": ")[0];
  if (state.file) {
    parts.push(chip("file", `file: ${names()[state.file] || "from a link"}`, "Remove the file", () => go({ file: "" })));
    if (state.q) {
      const slider = make("input", { type: "range", min: 0, max: 1, step: 0.1, value: state.share || 0.5, "aria-label": "Weight of the file next to the words" });
      slider.addEventListener("change", () => go({ share: slider.value === "0.5" ? "" : slider.value }));
      parts.push(make("label", { class: "balance" }, "words", slider, "file"));
    }
  }
  for (const [kind, word] of [["more", "more"], ["less", "less"]]) {
    for (const id of state[kind]) {
      parts.push(chip(`is-${kind}`, `${word} like ${called(id)}`, `Forget: ${word} like ${called(id)}`, () => go({ [kind]: state[kind].filter((one) => one !== id) })));
    }
  }
  byId("parts").replaceChildren(...parts);
  byId("parts").hidden = !parts.length;
}

// The state after a thumb: the same thumb again takes it back, the other one replaces it.
export function toggled(state, kind, id) {
  const other = kind === "more" ? "less" : "more";
  const had = state[kind].includes(id);
  return {
    [kind]: had ? state[kind].filter((one) => one !== id) : [...state[kind], id],
    [other]: state[other].filter((one) => one !== id),
    item: "",
  };
}
