// The map: points on a canvas, with zoom, pan, hover and click, by mouse, touch and keyboard.

const NEAR = 14; // pixels: a point this close to the pointer is meant

export class PointMap {
  constructor(canvas, { onHover, onPick }) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.onHover = onHover;
    this.onPick = onPick;
    this.points = { name: [], x: [], y: [], modality: [], split: [], group: [], text: [] };
    this.marked = new Set();
    this.passes = () => true;
    this.view = { scale: 1, x: 0, y: 0 };
    this.pointers = new Map();
    this.hovered = -1;
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.listen();
  }

  load(points, shade) { this.points = points; this.shade = shade; this.draw(); }

  mark(names) { this.marked = new Set(names); this.draw(); }

  filter(passes) { this.passes = passes; this.draw(); }

  size() { return [this.canvas.clientWidth, this.canvas.clientHeight]; }

  place(index) {
    const [width, height] = this.size();
    const { scale, x, y } = this.view;
    return [(this.points.x[index] * scale + x) * width, (this.points.y[index] * scale + y) * height];
  }

  nearest(px, py, reach = NEAR) {
    let best = -1, least = reach * reach;
    for (let index = 0; index < this.points.x.length; index++) {
      if (!this.passes(index)) continue;
      const [x, y] = this.place(index);
      const distance = (x - px) ** 2 + (y - py) ** 2;
      if (distance < least) { least = distance; best = index; }
    }
    return best;
  }

  zoom(factor, px, py) {
    const [width, height] = this.size();
    const cx = px === undefined ? 0.5 : px / width, cy = py === undefined ? 0.5 : py / height;
    const scale = Math.min(40, Math.max(1, this.view.scale * factor));
    const change = scale / this.view.scale;
    this.view = { scale, x: cx - (cx - this.view.x) * change, y: cy - (cy - this.view.y) * change };
    this.keepInside();
  }

  pan(dx, dy) {
    const [width, height] = this.size();
    this.view.x += dx / width;
    this.view.y += dy / height;
    this.keepInside();
  }

  reset() { this.view = { scale: 1, x: 0, y: 0 }; this.draw(); }

  keepInside() {
    for (const axis of ["x", "y"]) this.view[axis] = Math.min(0.5, Math.max(0.5 - this.view.scale, this.view[axis]));
    this.draw();
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.paint());
  }

  paint() {
    const [width, height] = this.size();
    if (!width || !height) return;
    const ratio = window.devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
    }
    const context = this.context, style = getComputedStyle(this.canvas);
    const ink = style.getPropertyValue("--ink");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const radius = Math.min(5, 1.7 + 0.55 * Math.log2(this.view.scale + 1));
    const rings = [];
    const count = (modality) => this.points.modality.filter((one) => one === modality).length;
    const order = [...new Set(this.points.modality)].sort((one, other) => count(other) - count(one)); // the rarer on top
    for (const modality of order) {
      const shade = style.getPropertyValue(`--${this.shade(modality)}`);
      context.fillStyle = shade;
      for (let index = 0; index < this.points.x.length; index++) {
        if (this.points.modality[index] !== modality) continue;
        const [x, y] = this.place(index);
        if (x < -9 || y < -9 || x > width + 9 || y > height + 9) continue;
        context.globalAlpha = this.passes(index) ? 0.62 : 0.08;
        context.beginPath();
        context.arc(x, y, radius, 0, 7);
        context.fill();
        if (this.marked.has(this.points.name[index])) rings.push([x, y, shade]);
      }
    }
    context.globalAlpha = 1;
    for (const [x, y, shade] of rings) {
      context.beginPath();
      context.arc(x, y, radius + 3.5, 0, 7);
      context.fillStyle = shade;
      context.fill();
      context.lineWidth = 2;
      context.strokeStyle = ink;
      context.stroke();
    }
    if (this.hovered >= 0) {
      const [x, y] = this.place(this.hovered);
      context.beginPath();
      context.arc(x, y, radius + 5, 0, 7);
      context.lineWidth = 2.5;
      context.strokeStyle = ink;
      context.stroke();
    }
  }

  hover(index) {
    if (index === this.hovered) return;
    this.hovered = index;
    this.onHover(index, index < 0 ? null : this.place(index));
    this.draw();
  }

  listen() {
    const canvas = this.canvas;
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY * 0.0018), ...at(event));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, at(event));
      this.travelled = this.pointers.size > 1 ? 99 : 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const now = at(event), before = this.pointers.get(event.pointerId);
      if (!before) { this.hover(this.nearest(...now)); return; }
      const others = [...this.pointers].filter(([id]) => id !== event.pointerId);
      if (others.length) {
        const [fx, fy] = others[0][1];
        const spread = (p) => Math.hypot(p[0] - fx, p[1] - fy) || 1;
        this.zoom(spread(now) / spread(before), (now[0] + fx) / 2, (now[1] + fy) / 2);
      } else {
        this.travelled += Math.abs(now[0] - before[0]) + Math.abs(now[1] - before[1]);
        if (this.travelled > 4) { this.hover(-1); this.pan(now[0] - before[0], now[1] - before[1]); }
      }
      this.pointers.set(event.pointerId, now);
    });
    const release = (event) => {
      const held = this.pointers.delete(event.pointerId);
      if (!held || event.type !== "pointerup" || this.travelled > 4) return;
      const found = this.nearest(...at(event), event.pointerType === "touch" ? 2 * NEAR : NEAR);
      if (found >= 0) this.onPick(found);
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", () => this.hover(-1));
    canvas.addEventListener("blur", () => this.hover(-1));
    canvas.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
      if (moves[event.key]) this.pan(...moves[event.key]);
      else if (event.key === "+" || event.key === "=") this.zoom(1.4);
      else if (event.key === "-") this.zoom(1 / 1.4);
      else if (event.key === "0") this.reset();
      else if (event.key === "Enter") {
        const found = this.centre();
        if (found >= 0) this.onPick(found);
        return;
      } else return;
      event.preventDefault();
      event.stopPropagation();
      this.hover(this.centre());
    });
  }

  centre() {
    const [width, height] = this.size();
    return this.nearest(width / 2, height / 2, Math.max(width, height));
  }
}
