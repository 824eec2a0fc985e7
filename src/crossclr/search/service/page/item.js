// One item: as a card among the results, and in the dialog with all its details.
import { called, fileName, make, seconds, shade, splitName, toAddress } from "/elements.js";

export const title = (item) => item.text || fileName(item) || item.key;

function mediaAddress(item, part = 0) {
  const span = item.media.start === null ? "" : `#t=${item.media.start}${item.media.stop === null ? "" : `,${item.media.stop}`}`;
  return `/media${toAddress({ id: item.id, part })}${span}`;
}

export function image(item, part = 0) {
  if (item.media?.kind !== "image") return null;
  return make("img", { src: mediaAddress(item, part), alt: title(item), loading: "lazy", decoding: "async" });
}

function images(item) {
  if (item.media?.kind !== "image") return null;
  const all = Array.from({ length: item.media.parts }, (_, part) => image(item, part));
  return make("div", { class: all.length > 1 ? "stage several" : "stage" }, ...all);
}

function player(item, attributes = {}) {
  const kind = item.media?.kind;
  if (kind !== "video" && kind !== "audio") return null;
  const hint = make("p", { class: "hint" }), converted = `/media${toAddress({ id: item.id, convert: 1 })}`;
  const found = make(kind, { controls: true, preload: kind === "video" ? "metadata" : "none", "aria-label": title(item), ...attributes });
  const convert = () => { hint.textContent = "Your browser does not play this format. Converting the clip …"; found.src = converted; };
  found.addEventListener("loadeddata", () => {
    const cut = item.media.stop - item.media.start > CONVERTED;
    if (hint.textContent) hint.textContent = cut ? `These are the first ${CONVERTED} s, converted for your browser.` : "Converted for your browser.";
  });
  found.addEventListener("error", async () => {
    if (!hint.textContent) { convert(); return; }
    const answer = await fetch(converted).then((one) => one.json()).catch(() => ({}));
    found.remove();
    hint.textContent = `Your browser cannot play this clip. ${answer.detail || ""}`;
  });
  if (item.media.playable) found.src = mediaAddress(item); else convert();
  return make("div", {}, found, hint);
}

const HOVER = 300; // milliseconds before a video plays
const CONVERTED = 60; // seconds that the service converts at most

// The preview of a file. A video plays without sound while the mouse or the focus is on it, as does an animated image; a click opens it.
function poster(item) {
  const kind = item.media?.kind;
  if (!kind || (kind === "image" && !item.media.preview)) return null;
  const stage = make("div", { class: `poster ${kind}` });
  const shown = make("img", { src: `/preview${toAddress({ id: item.id })}`, alt: "", loading: "lazy", decoding: "async" });
  shown.addEventListener("error", () => stage.replaceChildren(player(item) || image(item)));
  stage.append(shown);
  const length = item.media.start === null ? 0 : item.media.stop - item.media.start;
  if (kind !== "image") stage.append(make("span", { class: "length" }, kind === "video" ? "▶ " : "♪ ", length ? seconds(length) : ""));
  if (kind === "audio" || !item.media.playable) return stage;
  let timer = 0, moving = null;
  stage.play = () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      moving = image(item) || make("video", { src: mediaAddress(item), muted: true, autoplay: true, loop: true, "aria-hidden": "true", tabindex: -1 });
      moving.muted = true;
      moving.addEventListener("error", () => moving?.remove()); // the dialog converts it
      stage.append(moving);
    }, HOVER);
  };
  stage.stop = () => { clearTimeout(timer); moving?.remove(); moving = null; };
  return stage;
}

function textOf(item) {
  const [head, ...rest] = item.text.split(": ");
  if (!rest.length || head.length > 60) return [title(item)];
  return [make("b", {}, head), ` ${rest.join(": ")}`];
}

function meter(score) {
  const bar = make("i");
  bar.style.width = `${Math.round(100 * Math.max(0, Math.min(1, score)))}%`;
  return make("span", { class: "meter", "aria-hidden": "true" }, bar);
}

// `info` is what the index contains; `go` changes the address and the page with it.
export class ItemViews {
  constructor(info, go, thumb, chosen) { this.info = info; this.go = go; this.thumb = thumb; this.chosen = chosen; }

  similar(item, kind = null) {
    return Object.entries(this.info.modalities).map(([name, about]) => make("button", {
      type: "button", class: kind, title: `similar ${about.label}`, "aria-label": `${about.label} similar to ${title(item)}`,
      onclick: () => { this.go({ like: item.id, more: [], less: [], find: name, item: "" }); scrollTo({ top: 0 }); },
    }, called(this.info, name)));
  }

  // The thumbs of a card: find more, or less, like it.
  thumbs(item, state) {
    return [["more", "+"], ["less", "−"]].map(([kind, sign]) => make("button", {
      type: "button", class: "thumb", title: `${kind} like this`, "aria-label": `${kind} like ${title(item)}`,
      "aria-pressed": String(state[kind].includes(item.id)), onclick: () => this.thumb(kind, item.id),
    }, sign));
  }

  choose(item) {
    const box = make("input", { type: "checkbox", class: "chosen", title: "select", "aria-label": `select ${title(item)}`, onchange: () => this.chosen.toggle(item, box.checked) });
    box.checked = this.chosen.has(item.id);
    return box;
  }

  // The caption, and a form that changes it in place.
  caption(item) {
    const heading = make("h2", { id: "detail-title" }, title(item));
    if (!this.info.captions || !item.media?.file) return [heading];
    const text = make("textarea", { rows: 2, maxlength: 1000, "aria-label": "Caption" }, item.text), hint = make("span", { class: "hint", role: "status" });
    const form = make("form", { class: "caption", hidden: true, onsubmit: async (event) => {
      event.preventDefault();
      hint.textContent = "Saving …";
      const answer = await fetch("/api/caption", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ id: item.id, text: text.value }) }).catch(() => null);
      const content = await answer?.json().catch(() => ({}));
      hint.textContent = answer?.ok ? `Saved in ${content.file}. Words find it now; the next “crossclr start” learns from it.` : content?.detail || "The server does not answer.";
      if (answer?.ok) heading.textContent = text.value || title(item);
    } }, text, make("button", { class: "primary" }, "Save"), hint);
    const edit = make("button", { type: "button", onclick: () => { form.hidden = !form.hidden; if (!form.hidden) text.focus(); } }, item.text ? "Correct the caption" : "Add a caption");
    return [heading, make("div", { class: "actions" }, edit), form];
  }

  // Where the moments of one file lie; the strip names them.
  timeline(item) {
    if (!item.length) return null;
    return make("div", { class: "timeline", "aria-hidden": "true" }, ...[item, ...item.others].map((one, index) => {
      const mark = make("i", { class: index ? null : "best" });
      mark.style.left = `${(100 * one.media.start) / item.length}%`;
      mark.style.width = `${Math.max(1, (100 * (one.media.stop - one.media.start)) / item.length)}%`;
      return mark;
    }));
  }

  // The other items of the same thing, in a row.
  strip(item) {
    if (!item.others?.length) return null;
    const begin = (one) => one.media?.start ?? 0;
    return make("ul", { class: "strip" }, ...item.others.slice(0, 8).sort((a, b) => begin(a) - begin(b)).map((other) => {
      const label = other.media?.start != null ? seconds(other.media.start) : other.variant || title(other);
      return make("li", {}, make("button", { type: "button", title: title(other), "aria-label": `${title(other)}, ${label}`, onclick: () => this.go({ item: other.id }) },
        image(other) || label));
    }));
  }

  dot(modality) { return make("span", { class: `dot ${shade(this.info, modality)}`, title: modality }); }

  // All modalities of a sample: its images, its texts, and the names of the others.
  together(items) {
    const of = (test) => items.filter(test);
    const texts = of((one) => this.info.modalities[one.modality].text && one.text), bare = of((one) => !one.media && !texts.includes(one));
    const drawn = of((one) => one.media?.kind === "image").map((one) => image(one));
    return {
      images: drawn.length ? make("div", { class: drawn.length > 1 ? "stage several" : "stage" }, ...drawn) : null,
      lines: [...texts.map((one) => make("p", { class: "text", title: one.text }, this.dot(one.modality), " ", ...textOf(one))),
        ...(bare.length ? [make("p", { class: "facts" }, ...bare.flatMap((one) => [this.dot(one.modality), one.modality]))] : [])],
    };
  }

  card(item, index, digits, state) {
    const whole = item.together ? this.together(item.together) : null;
    const filmed = (one) => one.media && one.media.kind !== "image";
    const stage = whole && !item.together.some(filmed) ? null : poster(item.together?.find(filmed) || item);
    const body = make("div", { class: "body" },
      ...(whole?.lines.length ? whole.lines : [make("p", { class: "text" }, ...textOf(item))]),
      make("p", { class: "facts" },
        item.score === undefined ? null : make("span", { class: "score", title: "similarity to the query; 1 is the most" }, meter(item.score), item.score.toFixed(digits)),
        item.words ? make("span", { class: "pill", title: "its caption, file name or folder has the words of the query" }, "has the words") : null,
        item.copies ? make("span", { class: "pill", title: "other files that look the same" }, `+ ${item.copies} ${item.copies > 1 ? "copies" : "copy"}`) : null,
        typeof item.probability === "number" ? make("span", { title: "estimated chance that this is right" }, `${Math.round(100 * item.probability)}% sure`) : null,
        item.experts ? make("span", { title: "which experts decided the similarity" }, Object.entries(item.experts).filter(([, share]) => share >= 0.05).map(([name, share]) => `${name} ${Math.round(100 * share)}%`).join(", ")) : null,
        item.media?.start != null && item.media.start > 0 ? make("span", {}, seconds(item.media.start)) : null,
        item.variant && !whole ? make("span", {}, item.variant) : null),
      item.media?.file && item.text ? make("p", { class: "file", title: item.media.file }, fileName(item)) : null);
    const drawn = whole ? whole.images : stage ? null : images(item);
    const open = make("button", {
      type: "button", class: "open", "data-index": index, "aria-label": item.score === undefined ? title(item) : `${title(item)}, similarity ${item.score.toFixed(2)}`,
      onclick: () => this.go({ item: item.id }),
    }, stage, drawn, body);
    if (stage?.play) {
      for (const event of ["pointerenter", "focus"]) open.addEventListener(event, stage.play);
      for (const event of ["pointerleave", "blur"]) open.addEventListener(event, stage.stop);
    }
    return make("li", { class: `card ${stage || drawn ? "" : "bare"} ${shade(this.info, item.modality)}`, "data-id": item.id }, open, this.timeline(item), this.strip(item),
      make("div", { class: "more" }, ...this.similar(item)),
      make("div", { class: "thumbs" }, this.choose(item), ...this.thumbs(item, state)));
  }

  detail(item, score) {
    const rows = [
      ["similarity", score === null ? "" : `${score.toFixed(3)} to the query (1 is the most)`],
      ["version", item.variant], ["group", this.info.filters.some((one) => one.name === "group") ? item.group : ""], ["used for", splitName(item.split)],
      ["file", item.media?.file ? make("span", { class: "path" }, [this.info.folder, item.media.file].filter(Boolean).join("/")) : ""],
      ...Object.entries(item.fields).map(([name, value]) => [name, name === "duration" ? `${value} s` : String(value)]),
      ["id", item.id]];
    return make("div", { class: "detail" },
      ...this.caption(item),
      images(item), player(item),
      make("div", { class: "actions" }, make("span", {}, "Find similar:"), ...this.similar(item, "primary")),
      ...(item.partners.length ? [make("div", {}, make("p", { class: "label" }, "Belongs together"),
        make("ul", { class: "partners" }, ...item.partners.map((other) => this.partner(other))))] : []),
      make("dl", {}, ...rows.filter(([, value]) => value).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])));
  }

  partner(other) {
    const shown = image(other);
    return make("li", {}, make("button", { type: "button", onclick: () => this.go({ item: other.id }) },
      ...(shown ? [shown, other.variant || title(other)] : [title(other)])));
  }
}
