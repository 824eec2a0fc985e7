// Talking to the server, and noticing when it goes and comes back.

const PAUSE = 1500; // milliseconds between two looks whether it is back

export class Refused extends Error {}

// `gone` is called when the server stops answering, `back` when it answers again: with true if somebody waited for it.
export class Server {
  constructor({ gone, back }) { this.gone = false; this.onGone = gone; this.onBack = back; }

  async ask(path, signal) {
    let answer;
    try {
      answer = await fetch(path, { signal });
    } catch (error) {
      if (error.name !== "AbortError") this.lost();
      throw error;
    }
    if (this.gone) this.found(false);
    const content = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Refused(content.detail || `the server answered with the status ${answer.status}`);
    return content;
  }

  found(waited) { this.gone = false; this.onBack(waited); }

  lost() {
    this.onGone();
    if (this.gone) return;
    this.gone = true;
    const again = async () => {
      if (!this.gone) return;
      try {
        const answer = await fetch("/api/info");
        if (answer.ok) { this.found(true); return; }
      } catch { /* still gone */ }
      setTimeout(again, PAUSE);
    };
    setTimeout(again, PAUSE);
  }
}
