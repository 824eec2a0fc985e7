// Arrow keys move among the cards of the results.
export function moveAmongCards(event, list, query, map) {
  const writing = event.target.matches("input, select");
  const cards = [...list.querySelectorAll(".open")];
  if (!cards.length) return;
  const here = cards.indexOf(document.activeElement);
  if (here < 0) {
    if (event.key === "ArrowDown" && (event.target === query || !writing) && event.target !== map) {
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
