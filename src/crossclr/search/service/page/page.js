// The search page. The address holds everything that a link must reproduce; `state` mirrors it.
import { Choice } from "/choice.js";
import { byId, called, make, shade, toAddress } from "/elements.js";
import { makeFilters, passes, showFilters } from "/filters.js";
import { image, ItemViews, title } from "/item.js";
import { moveAmongCards } from "/keys.js";
import { PointMap } from "/map.js";
import { listenForFiles, sendFile, showParts, toggled } from "/parts.js";
import { Refused, Server } from "/server.js";

const STEP = 24, MOST = 192, PAUSE = 110; // results at a time and in all; milliseconds without a key before a search
const FEW = 60; // items; with fewer, the map is folded away
const UNLIKELY = 0.05; // if every result is less likely to be right, there is no good match
const query = byId("query"), list = byId("list"), detail = byId("detail");
let info = null, points = null, views = null, state = fromAddress(), shown = [], top = STEP;
const picked = new Choice();
const titles = new Map(); // ids of items -> what people call them
let running = null, timer = 0, typing = false;

// ---- talking to the server

const server = new Server({
  gone: () => notice("The server does not answer. Start it again with “crossclr serve”; this page continues as soon as it is back."),
  back: (waited) => { notice(""); if (!info) start(); else if (waited) search(); },
});
const ask = (path, signal) => server.ask(path, signal);

function notice(text) {
  const box = byId("notice");
  box.textContent = text;
  box.hidden = !text;
}

// ---- state and address

function fromAddress() {
  const values = new URLSearchParams(location.search);
  const single = ["q", "text_modality", "like", "file", "share", "find", "item"].map((name) => [name, values.get(name) || ""]);
  const short = ["split", "group"].filter((name) => values.get(name)).map((name) => `${name}=${values.get(name)}`);
  return { ...Object.fromEntries(single), more: values.getAll("more"), less: values.getAll("less"), where: [...values.getAll("where"), ...short] };
}

function go(change, { replace = false } = {}) {
  state = { ...state, ...change };
  if (Object.keys(change).some((name) => name !== "item")) top = STEP;
  history[replace ? "replaceState" : "pushState"](null, "", toAddress(state));
  show();
}

function show() {
  if (!info) return; // still loading; start() shows the state
  if (document.activeElement !== query || query.value.trim() !== state.q) query.value = state.q;
  byId("text-modality").value = state.text_modality || info.text_modality;
  showFilters(info.filters, state.where);
  byId("filters").classList.toggle("active", state.where.length > 0);
  for (const radio of document.querySelectorAll("#find input")) {
    radio.checked = radio.value === wanted();
    if (radio.checked) radio.parentElement.scrollIntoView({ block: "nearest", inline: "nearest" }); // a narrow row scrolls
  }
  map.filter(passes(info.filters, points.filters, state.where));
  showParts(state, titles, go);
  search();
  showDetail();
}

function asking() { return state.like ? state.like.split("/")[0] : state.text_modality || info.text_modality; }

const WHOLE = { all: "everything", fused: "whole samples" }; // besides one modality: items of all, or whole samples

function wanted() {
  if (state.find in info.modalities || state.find in WHOLE || state.find.includes("+")) return state.find;
  const names = Object.keys(info.modalities);
  return names.find((name) => name !== asking()) || names[0];
}

// ---- searching

let answered = null; // the address of the results that are on the page

function cut(text) {
  const most = info.longest_text;
  if (text.length <= most) return text;
  notice(`Your text has ${text.length.toLocaleString("en")} characters. Only the first ${most.toLocaleString("en")} are searched.`);
  return text.slice(0, most);
}

async function search() {
  const longer = top > STEP;
  const { like, more, less, where } = state;
  const values = { q: like ? "" : state.q, text_modality: like ? "" : state.text_modality, like, file: like ? "" : state.file, more, less, find: wanted(), where };
  if (values.q && values.file && state.share) values.weight = [`text=${2 * (1 - state.share)}`, `file=${2 * state.share}`];
  if (!values.q && !like && !values.file && !more.length) { running?.abort(); answered = null; welcome(); return; }
  const address = `/api/search${toAddress({ ...values, q: values.q.slice(0, info.longest_text), top, fold: 1 })}`;
  if (address === answered && !server.gone) return;
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
    cut(values.q);
    showResults(found.results, seed, performance.now() - begun, longer);
    if (found.results.length && found.results.every((item) => !item.words && typeof item.probability === "number" && item.probability < UNLIKELY)) foldAway();
  } catch (error) {
    if (error.name === "AbortError") return;
    answered = null;
    clear();
    if (error instanceof Refused) refuse(error.message);
  } finally {
    if (running?.signal === signal) document.body.classList.remove("busy");
  }
}

function clear() {
  shown = [];
  list.hidden = false;
  list.replaceChildren();
  byId("end").hidden = true;
  byId("seed").hidden = true;
  byId("empty").hidden = true;
  byId("summary").textContent = "";
  map.mark([]);
}

async function welcome() {
  clear();
  document.body.classList.remove("busy");
  const counts = Object.values(info.modalities).map((about) => `${about.count.toLocaleString("en")} ${about.label}`);
  const lead = info.text ? "Describe what you are looking for, or choose a point on the map." : `Choose a point on the map. ${info.no_text}`;
  say(`Search ${new Intl.ListFormat("en").format(counts)}`, lead, suggestions());
  running = new AbortController();
  const { signal } = running;
  try {
    const { results } = await ask(`/api/sample${toAddress({ find: wanted() in info.modalities ? wanted() : "", top: STEP })}`, signal);
    if (!signal.aborted) fill(results, 2);
  } catch { /* the words above are enough */ }
}

function say(heading, text, buttons = []) {
  byId("empty").replaceChildren(make("h2", {}, heading), make("p", {}, text));
  if (buttons.length) byId("empty").append(make("div", { class: "chips" }, ...buttons));
  byId("empty").hidden = false;
}

function everywhere() {
  return state.where.length ? [make("button", { type: "button", onclick: () => go({ where: [] }) }, "Search without filters")] : [];
}

function refuse(reason) { say("This search is not possible", reason, everywhere()); }

function suggestions() {
  if (!info.text || !points) return [];
  const texts = [...new Set(points.text.map((text) => text.split(":")[0].replace("…", "").trim()))];
  const short = texts.filter((text) => text && text.length < 30);
  const step = Math.max(1, Math.floor(short.length / 6));
  return short.filter((_, index) => index % step === Math.floor(step / 2)).slice(0, 6)
    .map((text) => make("button", { type: "button", onclick: () => go({ q: text, like: "" }) }, text));
}

function showResults(results, seed, milliseconds, longer) {
  const before = longer ? list.children.length : 0;
  if (!longer) clear();
  if (seed) showSeed(seed);
  map.mark([...results.flatMap((item) => item.together || [item]).map((item) => item.id), ...(seed ? [seed.id] : [])]);
  if (!results.length) {
    say("No results", state.where.length ? "No item passes the filters." : "The index has no such items.", everywhere());
    return;
  }
  const spread = results[0].score - results[results.length - 1].score;
  const digits = results.length === 1 ? 2 : spread < 0.02 ? 4 : spread < 0.1 ? 3 : 2;
  fill(results, digits, before);
  const from = state.file ? "" : asking();
  const direction = from ? `${from} → ${WHOLE[wanted()] || wanted()} · ` : "";
  byId("summary").replaceChildren(`${direction}${count(results)}, best match first`, make("span", { class: "time" }, ` · ${Math.round(milliseconds)} ms`));
}

// No result is likely to be right: say so, and show the nearest items only on request.
function foldAway() {
  list.hidden = true;
  byId("summary").textContent = "";
  map.mark([]);
  const show = make("button", { type: "button", onclick: () => { list.hidden = false; byId("empty").hidden = true; } }, `Show ${shown.length} weak matches`);
  say("No good match", "No item of this collection is likely to be what you describe. Try other words.", [show]);
}

// How many results, in words: "8 videos", or "8 moments of 3 videos".
function count(results) {
  const label = info.modalities[wanted()]?.label || "results";
  const moments = results.reduce((sum, item) => sum + 1 + item.others.length, 0);
  const timed = results.some((item) => item.others.some((other) => other.media?.start != null));
  return timed ? `${moments} moments in ${results.length} ${label === "moments" ? "files" : label}` : `${results.length} ${label}`;
}

function fill(results, digits, before = 0) {
  shown = results.flatMap((item) => [item, ...(item.others || [])]);
  for (const item of shown) titles.set(item.id, title(item));
  const kinds = new Set(results.map((item) => item.media?.kind || "text"));
  if (results.some((item) => item.together)) kinds.add("video"); // wide cards
  list.className = `grid ${kinds.has("video") || kinds.has("audio") ? "wide" : kinds.size === 1 && kinds.has("text") ? "texts" : ""}`;
  const cards = results.slice(before).map((item, index) => views.card(item, before + index, digits, state));
  if (before) list.append(...cards); else list.replaceChildren(...cards);
  byId("end").hidden = !hasMore();
}

function showSeed(seed) {
  byId("seed").replaceChildren(
    image(seed) || make("span", { class: `dot ${shade(info, seed.modality)}` }),
    make("p", {}, "Similar to ", make("strong", {}, title(seed)), seed.variant ? ` (${seed.variant})` : ""),
    make("button", { type: "button", onclick: () => go({ like: "", find: "" }) }, state.q ? "Back to the text" : "Clear"),
  );
  byId("seed").hidden = false;
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
  const hit = shown.find((other) => other.id === item.id && other.score !== undefined);
  byId("detail-body").replaceChildren(views.detail(item, hit ? hit.score : null));
  detail.dataset.id = item.id;
  if (!detail.open) detail.showModal();
}

// ---- events

query.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(() => {
    const first = !typing; // one step back removes the whole text, not its last letter
    typing = true;
    go({ q: query.value.trim(), like: "", more: [], less: [], item: "", find: state.like ? "" : state.find }, { replace: !first });
  }, PAUSE);
});
query.addEventListener("blur", () => { typing = false; });
byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(timer);
  go({ q: query.value.trim(), like: "" }, { replace: query.value.trim() === state.q });
});
listenForFiles((file) => sendFile(file, info, { say: notice, done: (token) => go({ file: token, like: "", more: [], less: [], item: "" }) }));
byId("text-modality").addEventListener("change", (event) => go({ text_modality: event.target.value === info.text_modality ? "" : event.target.value }));
byId("filters").addEventListener("click", (event) => {
  const open = byId("form").classList.toggle("filtering");
  event.currentTarget.setAttribute("aria-expanded", open);
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
  moveAmongCards(event, list, query, byId("map"));
});

// ---- the map

const map = new PointMap(byId("map"), {
  onPick: (index) => go({ like: points.name[index], more: [], less: [], find: state.find, item: "" }),
  onHover: (index, place) => {
    const tip = byId("tip");
    tip.hidden = index < 0;
    if (index < 0) return;
    const about = info.modalities[points.modality[index]];
    const seen = about.media.includes("image")
      ? make("img", { src: `/media${toAddress({ id: points.name[index] })}`, alt: "" }) : make("span", { class: `dot ${shade(info, points.modality[index])}` });
    tip.replaceChildren(seen, make("span", {}, points.text[index] || points.name[index]));
    const [width, height] = map.size();
    tip.style.left = `${Math.max(4, Math.min(place[0] + 14, width - tip.offsetWidth - 4))}px`;
    tip.style.top = `${place[1] + 16 + tip.offsetHeight > height ? place[1] - tip.offsetHeight - 12 : place[1] + 16}px`;
  },
});
byId("zoom-in").addEventListener("click", () => map.zoom(1.6));
byId("zoom-out").addEventListener("click", () => map.zoom(1 / 1.6));
byId("zoom-all").addEventListener("click", () => map.reset());

// More results: as the end comes into view, or by a button where the map lies below the results.
const hasMore = () => answered && !list.hidden && list.children.length >= top && top < MOST;
function more() {
  if (!hasMore()) return;
  top += STEP;
  search();
}
byId("end").addEventListener("click", more);
new IntersectionObserver((seen) => {
  if (seen.some((one) => one.isIntersecting) && matchMedia("(min-width: 901px)").matches) more();
}).observe(byId("end"));

function foldMap(folded) {
  document.body.classList.toggle("without-map", folded);
  byId("fold").textContent = folded ? "Show map" : "Hide map";
  byId("fold").setAttribute("aria-expanded", !folded);
}
byId("fold").addEventListener("click", () => {
  const folded = !document.body.classList.contains("without-map");
  localStorage.setItem("without-map", folded ? "yes" : "no");
  foldMap(folded);
});

// ---- start

async function start() {
  try {
    [info, points] = await Promise.all([ask("/api/info"), ask("/api/map")]);
  } catch (error) {
    if (error instanceof Refused) notice(error.message);
    return;
  }
  views = new ItemViews(info, go, (kind, id) => go(toggled(state, kind, id)), picked);
  picked.folder = info.folder;
  byId("choose").hidden = !info.files;
  document.title = `${info.name} · crossclr search`;
  byId("title").textContent = info.name;
  byId("about").textContent = info.about;
  const modalities = Object.entries(info.modalities);
  const choice = (name, ...shown) => make("label", {}, make("input", { type: "radio", name: "find", value: name, onchange: () => go({ find: name }) }), ...shown);
  byId("find").replaceChildren(
    ...modalities.map(([name]) => choice(name, make("span", { class: `dot ${shade(info, name)}` }), called(info, name))),
    ...Object.entries(WHOLE).map(([name, word]) => choice(name, word)));
  byId("find").hidden = modalities.length < 2;
  byId("text-modality").replaceChildren(...info.text_modalities.map((name) => make("option", { value: name }, `typed as ${name}`)));
  byId("text-modality").hidden = info.text_modalities.length < 2;
  makeFilters(info.filters, (name, value) => go({ where: [...state.where.filter((one) => !one.startsWith(`${name}=`)), ...(value ? [`${name}=${value}`] : [])] }));
  if (matchMedia("(max-width: 520px)").matches) query.placeholder = "Search";
  if (!info.text) query.placeholder = "A word of a file name or caption";
  byId("legend").replaceChildren(...modalities.map(([name]) => make("li", {}, make("span", { class: `dot ${shade(info, name)}` }), called(info, name))));
  const kept = localStorage.getItem("without-map"), count = modalities.reduce((sum, [, about]) => sum + about.count, 0);
  foldMap(kept === null ? count < FEW : kept === "yes");
  if (query.value.trim()) state.q = query.value.trim(); // typed while the page was loading
  map.load(points, (name) => shade(info, name));
  show();
}

start();
