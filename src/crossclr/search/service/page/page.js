// The search page. Everything that a link must reproduce is in the address; `state` mirrors it.
import { PointMap } from "/map.js";

const TOP = 24, PAUSE = 110; // results; milliseconds without a key before a search
const byId = (id) => document.getElementById(id);
const query = byId("query"), list = byId("list"), detail = byId("detail");
let info = null, points = null, state = {}, running = null, timer = 0, typing = false, gone = false, shown = [], digits = 2;

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// ---- talking to the server

class Refused extends Error {}

async function ask(path, signal) {
  let answer;
  try {
    answer = await fetch(path, { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    serverGone();
    throw error;
  }
  if (gone) serverBack();
  const content = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(content.detail || `the server answered ${answer.status}`);
  return content;
}

function serverGone() {
  notice("The server is gone. It was started with “crossclr serve”; this page goes on by itself as soon as it is back.");
  if (gone) return;
  gone = true;
  const again = async () => {
    if (!gone) return;
    try {
      const answer = await fetch("/api/info");
      if (answer.ok) { serverBack(); search(); return; }
    } catch { /* still gone */ }
    setTimeout(again, 1500);
  };
  setTimeout(again, 1500);
}

function serverBack() { gone = false; notice(""); if (!info) start(); }

function notice(text) {
  const box = byId("notice");
  box.textContent = text;
  box.hidden = !text;
}

// ---- state and address

function fromAddress() {
  const values = new URLSearchParams(location.search);
  return Object.fromEntries(["q", "like", "find", "split", "group", "item"].map((name) => [name, values.get(name) || ""]));
}

function toAddress(values) {
  const parts = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) if (value) parts.set(name, value);
  const text = parts.toString();
  return text ? `?${text}` : location.pathname;
}

function go(change, { replace = false } = {}) {
  state = { ...state, ...change };
  history[replace ? "replaceState" : "pushState"](null, "", toAddress(state));
  show();
}

function show() {
  if (document.activeElement !== query || query.value.trim() !== state.q) query.value = state.q;
  byId("split").value = state.split;
  byId("group").value = state.group;
  for (const radio of document.querySelectorAll("#find input")) radio.checked = radio.value === wanted();
  map.filter(passes);
  search();
  showDetail();
}

function wanted() {
  if (state.find in info.modalities) return state.find;
  const names = Object.keys(info.modalities);
  const side = state.like ? state.like.slice(0, 1) : info.text_side;
  return names.find((name) => name !== side) || names[0];
}

function passes(index) {
  return (!state.split || points.split[index] === state.split) && (!state.group || points.group[index] === state.group);
}

// ---- searching

let answered = null; // the address of the results that are on the page

async function search() {
  const values = { q: state.like ? "" : state.q, like: state.like, find: wanted(), split: state.split, group: state.group };
  if (!values.q && !values.like) { running?.abort(); answered = null; welcome(); return; }
  const address = `/api/search${toAddress({ ...values, top: TOP })}`;
  if (address === answered && !gone) return;
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  document.body.classList.add("busy");
  try {
    const begun = performance.now();
    const [found, seed] = await Promise.all([
      ask(address, signal),
      values.like ? ask(`/api/item${toAddress({ id: values.like })}`, signal) : null,
    ]);
    answered = address;
    notice("");
    showResults(found.results, seed, performance.now() - begun);
  } catch (error) {
    if (error.name === "AbortError") return;
    answered = null;
    if (error instanceof Refused) { showResults([], null, 0, error.message); }
  } finally {
    if (running?.signal === signal) document.body.classList.remove("busy");
  }
}

function welcome() {
  shown = [];
  list.replaceChildren();
  byId("seed").hidden = true;
  byId("summary").textContent = "";
  map.mark([]);
  document.body.classList.remove("busy");
  const counts = Object.values(info.modalities).map((about) => `${about.count.toLocaleString("en")} ${about.label}`);
  const lead = info.text ? "Type a sentence, or choose a point on the map." : "Choose a point on the map.";
  say(`${counts.join(" and ")} in one space`, info.text ? lead : `${lead} ${info.no_text}`, suggestions());
}

function say(title, text, buttons = []) {
  const box = byId("empty");
  box.replaceChildren(make("h2", {}, title), make("p", {}, text));
  if (buttons.length) box.append(make("div", { class: "chips" }, ...buttons));
  box.hidden = false;
}

function suggestions() {
  if (!info.text || !points) return [];
  const texts = [...new Set(points.text.map((text) => text.split(":")[0].replace("…", "").trim()))];
  const short = texts.filter((text) => text && text.length < 30);
  const step = Math.max(1, Math.floor(short.length / 6));
  return short.filter((_, index) => index % step === Math.floor(step / 2)).slice(0, 6)
    .map((text) => make("button", { type: "button", onclick: () => go({ q: text, like: "" }) }, text));
}

function showResults(results, seed, milliseconds, refusal = "") {
  shown = results;
  const box = byId("seed");
  box.hidden = !seed;
  if (seed) {
    box.replaceChildren(
      picture(seed) || make("span", { class: `dot ${seed.modality}` }),
      make("p", {}, "Like ", make("strong", {}, title(seed)), seed.variant ? ` (${seed.variant})` : ""),
      make("button", { type: "button", onclick: () => go({ like: "", find: "" }) }, state.q ? "Back to the sentence" : "Clear"),
    );
  }
  const kinds = new Set(results.map((item) => item.media?.kind || "text"));
  list.className = `grid ${kinds.has("video") || kinds.has("audio") ? "wide" : kinds.size === 1 && kinds.has("text") ? "texts" : ""}`;
  const spread = results.length > 1 ? results[0].score - results[results.length - 1].score : 1;
  digits = spread < 0.02 ? 4 : spread < 0.1 ? 3 : 2;
  list.replaceChildren(...results.map(card));
  const label = info.modalities[wanted()].label;
  byId("summary").textContent = results.length ? `${results.length} ${label}, nearest first · ${Math.round(milliseconds)} ms` : "";
  byId("empty").hidden = results.length > 0;
  if (!results.length) {
    const narrowed = state.split || state.group;
    const clear = make("button", { type: "button", onclick: () => go({ split: "", group: "" }) }, "Search everywhere");
    if (refusal) say("This cannot be searched", refusal, narrowed ? [clear] : []);
    else say("Nothing was found", narrowed ? "The filters let no item pass." : "The index has no such items.", narrowed ? [clear] : []);
  }
  map.mark([...results.map((item) => item.id), ...(seed ? [seed.id] : [])]);
}

// ---- one item

function title(item) { return item.text || item.key; }

function mediaAddress(item, part = 0) {
  const span = item.media.start === null ? "" : `#t=${item.media.start}${item.media.stop === null ? "" : `,${item.media.stop}`}`;
  return `/media${toAddress({ id: item.id, part })}${span}`;
}

function picture(item, part = 0) {
  if (item.media?.kind !== "image") return null;
  return make("img", { src: mediaAddress(item, part), alt: title(item), loading: "lazy", decoding: "async" });
}

function stage(item) {
  if (item.media?.kind !== "image") return null;
  const all = Array.from({ length: item.media.parts }, (_, part) => picture(item, part));
  return make("div", { class: all.length > 1 ? "stage several" : "stage" }, ...all);
}

function player(item) {
  const kind = item.media?.kind;
  if (kind !== "video" && kind !== "audio") return null;
  return make(kind, { src: mediaAddress(item), controls: true, preload: kind === "video" ? "metadata" : "none", "aria-label": title(item) });
}

function textOf(item) {
  const [head, ...rest] = item.text.split(": ");
  if (!rest.length || head.length > 60) return [title(item)];
  return [make("b", {}, head), ` ${rest.join(": ")}`];
}

function marks(item) {
  const names = { "A hub": "hub", "Hard to find": "hard to find", Influential: "influential" };
  return (item.why || []).filter((reason) => reason.split(":")[0] in names)
    .map((reason) => make("span", { class: "pill strong", title: reason }, names[reason.split(":")[0]]));
}

function neighbours(item, plain = true) {
  return Object.entries(info.modalities).map(([name, about]) => make("button", {
    type: "button", class: plain ? null : "primary",
    "aria-label": `${about.label} like ${title(item)}`,
    onclick: () => { go({ like: item.id, find: name, item: "" }); scrollTo({ top: 0 }); },
  }, about.label));
}

function card(item, index) {
  const play = player(item);
  const body = make("div", { class: "body" },
    make("p", { class: "text" }, ...textOf(item)),
    make("p", { class: "facts" },
      make("span", { class: "score", title: "cosine to the query" },
        meter(item.score), item.score.toFixed(digits)),
      item.variant ? make("span", {}, item.variant) : null,
      ...marks(item)));
  const open = make("button", {
    type: "button", class: "open", "data-index": index, "aria-label": `${title(item)}, score ${item.score.toFixed(2)}`,
    onclick: () => go({ item: item.id }),
  }, stage(item), body);
  return make("li", { class: `card ${item.modality}`, "data-id": item.id }, ...(play ? [play] : []), open,
    make("div", { class: "more" }, make("span", {}, "like this"), ...neighbours(item)));
}

function meter(score) {
  const bar = make("i");
  bar.style.width = `${Math.round(100 * Math.max(0, Math.min(1, score)))}%`;
  return make("span", { class: "meter", "aria-hidden": "true" }, bar);
}

async function showDetail() {
  if (!state.item) { if (detail.open) detail.close(); return; }
  if (detail.open && detail.dataset.id === state.item) return;
  let item;
  try {
    item = await ask(`/api/item${toAddress({ id: state.item })}`);
  } catch (error) {
    if (error instanceof Refused) { notice(error.message); go({ item: "" }, { replace: true }); }
    return;
  }
  if (item.id !== state.item) return;
  const hit = shown.find((other) => other.id === item.id);
  const rows = [["score", hit ? `${hit.score.toFixed(3)} (cosine to the query)` : ""], ["drawn by", item.variant],
    ["split", item.split], ["group", item.group], ["id", item.id],
    ["hub", `among the ten nearest of ${item.hub} queries`],
    ["connectivity", `${item.connectivity.toFixed(2)}, more than ${Math.round(100 * item.influence)}% of its modality`]];
  byId("detail-body").replaceChildren(make("div", { class: "detail" },
    make("h2", { id: "detail-title" }, title(item)),
    stage(item), player(item),
    ...(item.why.length ? [make("ul", { class: "why" }, ...item.why.map((reason) => make("li", {}, reason)))] : []),
    make("div", { class: "actions" }, make("span", {}, "More like this:"), ...neighbours(item, false)),
    ...(item.partners.length ? [make("div", {}, make("p", { class: "label" }, "Of the same clip"),
      make("ul", { class: "partners" }, ...item.partners.map(partner)))] : []),
    make("dl", {}, ...rows.filter(([, value]) => value).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]))));
  detail.dataset.id = item.id;
  if (!detail.open) detail.showModal();
}

function partner(other) {
  return make("li", {}, make("button", { type: "button", onclick: () => go({ item: other.id }) },
    ...(picture(other) ? [picture(other), other.variant || title(other)] : [title(other)])));
}

// ---- events

query.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(() => {
    const first = !typing; // one step back leaves the whole sentence, not its last letter
    typing = true;
    go({ q: query.value.trim(), like: "", item: "", find: state.like ? "" : state.find }, { replace: !first });
  }, PAUSE);
});
query.addEventListener("blur", () => { typing = false; });
byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(timer);
  go({ q: query.value.trim(), like: "" }, { replace: query.value.trim() === state.q });
});
byId("split").addEventListener("change", (event) => go({ split: event.target.value }));
byId("group").addEventListener("change", (event) => {
  const value = event.target.value.trim();
  if (!value || !info.all_groups || info.groups.includes(value)) go({ group: value });
  else { notice(`There is no group “${value}”.`); setTimeout(() => notice(""), 4000); event.target.value = state.group; }
});
byId("share").addEventListener("click", async (event) => {
  const button = event.currentTarget;
  try {
    await navigator.clipboard.writeText(location.href);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Copy it from the address bar";
  }
  setTimeout(() => { button.textContent = "Copy link"; }, 1800);
});
detail.addEventListener("close", () => { detail.dataset.id = ""; if (state.item) go({ item: "" }); });
detail.addEventListener("click", (event) => { if (event.target === detail) detail.close(); });
addEventListener("popstate", () => { typing = false; state = fromAddress(); show(); });
document.addEventListener("keydown", (event) => {
  if (detail.open || event.ctrlKey || event.metaKey || event.altKey) return;
  const writing = event.target.matches("input, select");
  if (event.key === "/" && !writing) { event.preventDefault(); query.focus(); query.select(); return; }
  if (event.key === "Escape") {
    if (event.target === query && query.value) { query.value = ""; query.dispatchEvent(new Event("input")); } else if (!writing) history.back();
    return;
  }
  moveAmongResults(event, writing);
});

function moveAmongResults(event, writing) {
  const cards = [...list.querySelectorAll(".open")];
  if (!cards.length) return;
  const here = cards.indexOf(document.activeElement);
  if (here < 0) {
    if (event.key === "ArrowDown" && (event.target === query || !writing) && event.target !== byId("map")) {
      event.preventDefault();
      cards[0].focus();
    }
    return;
  }
  const tops = cards.map((element) => element.getBoundingClientRect().top);
  const columns = Math.max(1, tops.filter((top) => Math.abs(top - tops[0]) < 8).length);
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
  if (!step) return;
  event.preventDefault();
  if (here + step < 0) query.focus();
  else cards[Math.min(cards.length - 1, here + step)].focus();
}

// ---- the map

const map = new PointMap(byId("map"), {
  onPick: (index) => go({ like: points.name[index], find: state.find, item: "" }),
  onHover: (index, place) => {
    const tip = byId("tip");
    tip.hidden = index < 0;
    if (index < 0) return;
    const about = info.modalities[points.modality[index]];
    const seen = about.media.includes("image")
      ? make("img", { src: `/media${toAddress({ id: points.name[index] })}`, alt: "" }) : make("span", { class: `dot ${points.modality[index]}` });
    tip.replaceChildren(seen, make("span", {}, points.text[index] || points.name[index]));
    const [width, height] = map.size();
    tip.style.left = `${Math.max(4, Math.min(place[0] + 14, width - tip.offsetWidth - 4))}px`;
    tip.style.top = `${place[1] + 16 + tip.offsetHeight > height ? place[1] - tip.offsetHeight - 12 : place[1] + 16}px`;
  },
});
byId("zoom-in").addEventListener("click", () => map.zoom(1.6));
byId("zoom-out").addEventListener("click", () => map.zoom(1 / 1.6));
byId("zoom-all").addEventListener("click", () => map.reset());

// ---- beginning

async function start() {
  try {
    [info, points] = await Promise.all([ask("/api/info"), ask("/api/map")]);
  } catch (error) {
    if (error instanceof Refused) notice(error.message);
    return;
  }
  document.title = `${info.name} · crossclr search`;
  byId("title").textContent = info.name;
  byId("about").textContent = info.about;
  byId("find").replaceChildren(...Object.entries(info.modalities).map(([name, about]) => make("label", {},
    make("input", { type: "radio", name: "find", value: name, onchange: () => go({ find: name }) }),
    make("span", { class: `dot ${name}` }), about.label)));
  byId("split").replaceChildren(...["", ...info.splits].map((name) => make("option", { value: name }, name || "all splits")));
  byId("groups").replaceChildren(...info.groups.map((name) => make("option", { value: name })));
  byId("group").hidden = info.groups.length === 0;
  query.disabled = !info.text;
  if (!info.text) query.placeholder = "Sentences cannot be searched here; choose a point on the map";
  byId("legend").replaceChildren(...Object.entries(info.modalities).map(([name, about]) => make("li", {}, make("span", { class: `dot ${name}` }), about.label)));
  state = fromAddress();
  map.load(points);
  show();
}

start();
