// A box on a photo that selects the part to search, moved and resized with mouse, touch and keyboard.

import { element } from "./cards.js";

const LEAST = 0.05; // side of the box, as a fraction of the photo
const STEP = 0.02; // of an arrow key
const WHOLE = [0, 0, 1, 1];
const EDGE = { mouse: 10, pen: 16, touch: 26 }; // pixels from an edge that resize
const MOVES = { ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, -STEP], ArrowDown: [0, STEP] };

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

export class Crop {
  // `onChange` is called with the box, as fractions [x, y, width, height], or null for the whole photo.
  constructor(image, onChange) {
    Object.assign(this, { onChange, box: [...WHOLE], held: null });
    this.frame = element("div", "box", ...["nw", "ne", "sw", "se"].map((corner) => element("i", corner)));
    this.frame.tabIndex = 0;
    this.frame.setAttribute("role", "application");
    this.frame.setAttribute("aria-roledescription", "crop box");
    this.root = element("div", "crop", image, this.frame);
    this.root.addEventListener("pointerdown", (event) => this.grab(event));
    this.root.addEventListener("pointermove", (event) => this.drag(event));
    for (const type of ["pointerup", "pointercancel"]) this.root.addEventListener(type, () => (this.held = null));
    this.root.addEventListener("dblclick", () => this.set(WHOLE));
    this.frame.addEventListener("keydown", (event) => this.key(event));
    this.draw();
  }

  get value() {
    return this.box[2] > 0.999 && this.box[3] > 0.999 ? null : this.box.map((each) => Math.round(each * 1e4) / 1e4);
  }

  // Set the box without telling.
  show(box) {
    this.box = [...(box ?? WHOLE)];
    this.draw();
  }

  set([x, y, width, height]) {
    const [w, h] = [clamp(width, LEAST, 1), clamp(height, LEAST, 1)];
    this.show([clamp(x, 0, 1 - w), clamp(y, 0, 1 - h), w, h]);
    this.onChange(this.value);
  }

  draw() {
    const names = ["left", "top", "width", "height"];
    names.forEach((name, place) => (this.frame.style[name] = `${100 * this.box[place]}%`));
    this.root.classList.toggle("part", this.value !== null);
    const [x, y, width, height] = this.box.map((each) => Math.round(100 * each));
    const said = this.value ? `${width} × ${height} % of the photo, from ${x}, ${y} %` : "the whole photo";
    this.frame.setAttribute("aria-label", `Part to search: ${said}. Arrow keys move, with Shift they resize, Escape resets.`);
  }

  // Return a point of the screen as a fraction of the photo, and how near it must be to an edge to take it.
  at(event) {
    const { left, top, width, height } = this.root.getBoundingClientRect();
    const reach = EDGE[event.pointerType] ?? EDGE.mouse;
    return [(event.clientX - left) / width, (event.clientY - top) / height, reach / width, reach / height];
  }

  grab(event) {
    if (event.button) return;
    const [px, py, rx, ry] = this.at(event);
    const [x, y, w, h] = this.box;
    const inside = px > x - rx && px < x + w + rx && py > y - ry && py < y + h + ry;
    const side = (p, from, size, reach) => (Math.abs(p - from) < reach ? -1 : Math.abs(p - from - size) < reach ? 1 : 0);
    const [sx, sy] = inside ? [side(px, x, w, rx), side(py, y, h, ry)] : [0, 0];
    const anew = !inside || (!this.value && !sx && !sy); // draws another box
    this.held = { px, py, sx, sy, anew, box: [...this.box] };
    this.root.setPointerCapture(event.pointerId);
  }

  drag(event) {
    if (!this.held) return;
    const { px, py, sx, sy, anew, box } = this.held;
    const [qx, qy] = this.at(event).map((each) => clamp(each, 0, 1));
    if (anew) {
      if (Math.max(Math.abs(qx - px), Math.abs(qy - py)) < LEAST) return; // a click is none
      this.set([Math.min(px, qx), Math.min(py, qy), Math.abs(qx - px), Math.abs(qy - py)]);
      return;
    }
    this.resize(box, sx, sy, qx - px, qy - py);
  }

  // Move a box, or those of its sides that are given: -1 is left or top, 1 is right or bottom.
  resize([x, y, w, h], sx, sy, dx, dy) {
    const along = (from, size, side, by) => {
      if (side < 0) return [clamp(from + by, 0, from + size - LEAST), size - clamp(by, -from, size - LEAST)];
      return side > 0 ? [from, clamp(size + by, LEAST, 1 - from)] : [from, size];
    };
    if (!sx && !sy) return this.set([x + dx, y + dy, w, h]);
    const [[left, width], [top, height]] = [along(x, w, sx, dx), along(y, h, sy, dy)];
    return this.set([left, top, width, height]);
  }

  key(event) {
    if (event.key === "Escape" && this.value) this.set(WHOLE);
    else if (event.key in MOVES && event.shiftKey) this.resize(this.box, 1, 1, ...MOVES[event.key]);
    else if (event.key in MOVES) this.resize(this.box, 0, 0, ...MOVES[event.key]);
    else return;
    event.preventDefault();
  }
}
