// Camera: the point at the center of the canvas, and the zoom, the side of the whole map in CSS pixels.

export const FLIGHT = 550; // milliseconds of an animation to an image or between views
export const calm = matchMedia("(prefers-reduced-motion: reduce)");
export const ease = (t) => (t < 0.5 ? 4 * t ** 3 : 1 - (2 - 2 * t) ** 3 / 2);
export const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

export class Camera {
  constructor(n, onMove) {
    Object.assign(this, { n, onMove, deepest: 1024, x: 0.5, y: 0.5, zoom: 1, width: 0, height: 0, flight: null });
  }

  // Return the zoom that shows the whole map.
  whole() {
    return 0.9 * Math.min(this.width, this.height);
  }

  // Return the maximum zoom, at which images moved apart from the same position can be distinguished.
  closest() {
    return Math.max(4 * this.whole(), this.deepest * Math.sqrt(this.n));
  }

  limited(x, y, zoom) {
    return { x: clamp(x, 0, 1), y: clamp(y, 0, 1), zoom: clamp(zoom, this.whole() / 2, this.closest()) };
  }

  resize(width, height) {
    const wasWhole = !this.width || Math.abs(Math.log(this.zoom / this.whole())) < 0.01;
    Object.assign(this, { width, height });
    if (wasWhole) Object.assign(this, { x: 0.5, y: 0.5, zoom: this.whole() });
  }

  set(x, y, zoom) {
    Object.assign(this, this.limited(x, y, zoom), { flight: null });
    this.onMove();
  }

  pan(dx, dy) {
    this.set(this.x - dx / this.zoom, this.y - dy / this.zoom, this.zoom);
  }

  // Zoom around the point (px, py).
  zoomAt(px, py, factor) {
    const { zoom } = this.limited(0, 0, this.zoom * factor);
    const [dx, dy] = [px - this.width / 2, py - this.height / 2];
    this.set(this.x + dx / this.zoom - dx / zoom, this.y + dy / this.zoom - dy / zoom, zoom);
  }

  zoomAtMiddle(factor) {
    this.zoomAt(this.width / 2, this.height / 2, factor);
  }

  flyTo(x, y, zoom) {
    const to = this.limited(x, y, zoom);
    if (calm.matches) return this.set(to.x, to.y, to.zoom);
    this.flight = { from: { x: this.x, y: this.y, zoom: this.zoom }, to, start: null };
    return this.onMove();
  }

  flyCloser(factor) {
    const { x, y, zoom } = this.flight?.to ?? this;
    this.flyTo(x, y, zoom * factor);
  }

  flyOut() {
    this.flyTo(0.5, 0.5, this.whole());
  }

  // Continue the animation. The center moves with the scale, so that zooming in goes straight to the target.
  fly(now) {
    const { from, to } = this.flight;
    this.flight.start ??= now;
    const t = ease(clamp((now - this.flight.start) / FLIGHT, 0, 1));
    const zoom = from.zoom * (to.zoom / from.zoom) ** t;
    const level = Math.abs(to.zoom - from.zoom) < 1e-6 * to.zoom;
    const part = level ? t : (1 / from.zoom - 1 / zoom) / (1 / from.zoom - 1 / to.zoom);
    Object.assign(this, { x: from.x + part * (to.x - from.x), y: from.y + part * (to.y - from.y), zoom });
    if (t === 1) Object.assign(this, to, { flight: null });
  }

  // Convert map coordinates to CSS pixels of the canvas, and back.
  place(x, y) {
    return [(x - this.x) * this.zoom + this.width / 2, (y - this.y) * this.zoom + this.height / 2];
  }

  unplace(px, py) {
    return [this.x + (px - this.width / 2) / this.zoom, this.y + (py - this.height / 2) / this.zoom];
  }
}
