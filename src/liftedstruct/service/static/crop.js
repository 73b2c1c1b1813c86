// A box on a photo that selects the part to search, moved and resized with mouse, touch and keyboard.

import { control, element } from "./cards.js";

const LEAST = 0.05; // side of the box, as a fraction of the photo
const STEP = 0.02; // of an arrow key
const WHOLE = [0, 0, 1, 1];
const REACH = { mouse: 10, pen: 16, touch: 26 }; // pixels from a side that move it
const MOVES = { ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, -STEP], ArrowDown: [0, STEP] };

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

// Return an interval with one side moved (-1 is the first, 1 the second) or both (0).
function moved(from, size, side, by) {
  if (side < 0) return [clamp(from + by, 0, from + size - LEAST), size - clamp(by, -from, size - LEAST)];
  return side > 0 ? [from, clamp(size + by, LEAST, 1 - from)] : [clamp(from + by, 0, 1 - size), size];
}

export class Crop {
  // `onChange` is called with "x,y,width,height" in fractions of the photo, or "" for the whole photo.
  constructor(image, onChange) {
    Object.assign(this, { onChange, held: null });
    const corners = ["nw", "ne", "sw", "se"].map((at) => element("i", at));
    const role = { role: "application", ariaRoleDescription: "crop box", tabIndex: 0 };
    this.frame = control("div", { className: "box", ...role, onkeydown: (event) => this.key(event) }, ...corners);
    const [onpointerdown, onpointermove] = [(event) => this.grab(event), (event) => this.drag(event)];
    const onpointerup = () => (this.held = null);
    const on = { onpointerdown, onpointermove, onpointerup, onpointercancel: onpointerup, ondblclick: () => this.set(WHOLE) };
    this.root = control("div", { className: "crop", ...on }, image, this.frame);
    this.show("");
  }

  get value() {
    const whole = Math.min(this.box[2], this.box[3]) > 0.999;
    return whole ? "" : this.box.map((each) => Math.floor(each * 1e4 + 1e-6) / 1e4).join(",");
  }

  // Show a box without telling.
  show(value) {
    this.box = value ? value.split(",").map(Number) : [...WHOLE];
    ["left", "top", "width", "height"].forEach((name, at) => (this.frame.style[name] = `${100 * this.box[at]}%`));
    this.root.classList.toggle("part", this.value !== "");
    const [x, y, width, height] = this.box.map((each) => Math.round(100 * each));
    const said = this.value ? `${width} × ${height} % of the photo, from ${x}, ${y} %` : "the whole photo";
    this.frame.ariaLabel = `Part to search: ${said}. Arrow keys move it, with Shift resize it, Escape resets it.`;
  }

  set(box) {
    this.show(box.join(","));
    this.onChange(this.value);
  }

  // Return a point of the screen and the reach of the pointer, in fractions of the photo.
  at(event) {
    const { left, top, width, height } = this.root.getBoundingClientRect();
    const reach = REACH[event.pointerType] ?? REACH.mouse;
    return [(event.clientX - left) / width, (event.clientY - top) / height, reach / width, reach / height];
  }

  grab(event) {
    if (event.button) return;
    const [px, py, rx, ry] = this.at(event);
    const [x, y, w, h] = this.box;
    const inside = px > x - rx && px < x + w + rx && py > y - ry && py < y + h + ry;
    const side = (p, from, size, reach) => inside && (Math.abs(p - from - size) < reach) - (Math.abs(p - from) < reach);
    const [sx, sy] = [side(px, x, w, rx), side(py, y, h, ry)];
    this.held = { px, py, sx, sy, another: !inside || (!this.value && !sx && !sy), box: this.box };
    this.root.setPointerCapture(event.pointerId);
  }

  drag(event) {
    if (!this.held) return;
    const { px, py, sx, sy, another, box } = this.held;
    const [qx, qy] = this.at(event).map((each) => clamp(each, 0, 1));
    const drawn = [Math.min(px, qx), Math.min(py, qy), Math.abs(qx - px), Math.abs(qy - py)];
    if (!another) this.move(box, sx, sy, qx - px, qy - py);
    else if (Math.min(drawn[2], drawn[3]) > LEAST) this.set(drawn); // a click draws none
  }

  move([x, y, w, h], sx, sy, dx, dy) {
    const [left, width] = sx || !sy ? moved(x, w, sx, dx) : [x, w]; // a side moves across itself only
    const [top, height] = sy || !sx ? moved(y, h, sy, dy) : [y, h];
    this.set([left, top, width, height]);
  }

  key(event) {
    const side = event.shiftKey ? 1 : 0;
    if (event.key in MOVES) this.move(this.box, side, side, ...MOVES[event.key]);
    else if (event.key === "Escape" && this.value) this.set(WHOLE);
    else return;
    event.preventDefault();
  }
}
