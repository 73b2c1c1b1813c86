// Requests to the service that the page is from. An error has the service's own sentence as its message.

const problem = (status, detail) => Object.assign(new Error(detail), { status });

// Return a query string such as "?k=5", without what is missing; "" if nothing is left.
export function query(params = {}) {
  const given = Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

async function request(path, options) {
  const response = await fetch(path, options).catch((error) => {
    if (error.name === "AbortError") throw error;
    throw problem(0, "The service does not answer. Check that the command in the terminal is still running.");
  });
  if (response.ok) return response;
  const { detail } = await response.json().catch(() => ({}));
  throw problem(response.status, detail ?? `The service answered with status ${response.status}.`);
}

export async function get(path, params, signal) {
  return (await request(path + query(params), { signal })).json();
}

// Return bytes as an ArrayBuffer.
export async function bytes(path, params, signal) {
  return (await request(path + query(params), { signal })).arrayBuffer();
}

// Send a form as it is, anything else as JSON.
export async function post(path, body = {}, signal = null) {
  const form = body instanceof FormData;
  const headers = form ? {} : { "Content-Type": "application/json" };
  return (await request(path, { method: "POST", headers, body: form ? body : JSON.stringify(body), signal })).json();
}

export async function remove(path, signal) {
  return (await request(path, { method: "DELETE", signal })).json();
}

// An id may contain slashes, dots and question marks.
export const item = (id) => `items/${encodeURIComponent(id)}`;
export const neighbors = (id) => `neighbors/${encodeURIComponent(id)}`;
export const image = (id) => `images/${encodeURIComponent(id)}`;
export const thumbnail = (id, size = 192) => `thumbnails/${encodeURIComponent(id)}?size=${size}`;
