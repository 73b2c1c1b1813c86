// Requests to the service that the page is from. An error has the service's own sentence as its message.

export class ServiceError extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

// Return a query string such as "?k=5", without what is missing; "" if nothing is left.
export function query(params = {}) {
  const given = Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServiceError(0, "The service does not answer. Check that the command in the terminal is still running.");
  }
  if (response.ok) return response;
  const detail = await response.json().then((body) => body.detail, () => null);
  const first = Array.isArray(detail) ? detail.map((each) => each.msg).join("; ") : detail;
  throw new ServiceError(response.status, first || `The service answered with status ${response.status}.`);
}

async function parsed(response) {
  return response.status === 204 ? null : response.json();
}

export async function get(path, params, signal) {
  return parsed(await request(path + query(params), { signal }));
}

// Return bytes as an ArrayBuffer.
export async function bytes(path, params, signal) {
  return (await request(path + query(params), { signal })).arrayBuffer();
}

// Send a form as it is, anything else as JSON.
export async function post(path, body, signal) {
  if (body instanceof FormData) return parsed(await request(path, { method: "POST", body, signal }));
  const headers = { "Content-Type": "application/json" };
  return parsed(await request(path, { method: "POST", headers, body: JSON.stringify(body ?? {}), signal }));
}

export async function remove(path, signal) {
  return parsed(await request(path, { method: "DELETE", signal }));
}

// An id may contain slashes, dots and question marks.
export const item = (id) => `items/${encodeURIComponent(id)}`;
export const neighbors = (id) => `neighbors/${encodeURIComponent(id)}`;
export const image = (id) => `images/${encodeURIComponent(id)}`;
export const thumbnail = (id, size = 192) => `thumbnails/${encodeURIComponent(id)}?size=${size}`;
