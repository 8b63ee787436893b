// Takes callbacks and checks their signatures, with Node and no packages. See docs/guides/callbacks.md.
//
//     node verify.mjs                            takes callbacks on 127.0.0.1:$PORT
//     node verify.mjs ID TIMESTAMP SIGNATURE     checks one: the values of its headers, and its body on stdin
import { createHmac, timingSafeEqual } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { gunzipSync } from "node:zlib";

const SECRET = process.env.RELAIS_SIGNING_SECRET ?? "";
const MAX_BODY = 16 * 1024 * 1024;
const seen = new Set(); // Keep yours with what you do, in the same transaction.

// Whether this was sent by Relais within five minutes. The body is a Buffer: decompressed, and not parsed.
function verify(secret, id, timestamp, signatures, body) {
  const key = Buffer.from(secret.replace(/^whsec_/, ""), "base64");
  if (key.length < 24) throw new Error("this is not a signing secret");
  if (!/^[0-9]{1,12}$/.test(timestamp) || Math.abs(Date.now() / 1000 - Number(timestamp)) > 300) return false;
  const tag = createHmac("sha256", key).update(`${id}.${timestamp}.`).update(body).digest("base64");
  const expected = Buffer.from(`v1,${tag}`);
  return signatures.split(" ").some((signature) => {
    const given = Buffer.from(signature);
    return given.length === expected.length && timingSafeEqual(given, expected);
  });
}

function take(headers, raw) {
  let body = raw;
  try {
    if (headers["content-encoding"] === "gzip") body = gunzipSync(raw, { maxOutputLength: MAX_BODY });
  } catch {
    return 400;
  }
  const [id, timestamp, signatures] = ["id", "timestamp", "signature"].map((name) => headers[`webhook-${name}`] ?? "");
  if (!verify(SECRET, id, timestamp, signatures, body)) return 401;
  if (!seen.has(id)) console.log("taken", id, JSON.parse(body).status);
  seen.add(id);
  return 204;
}

if (process.argv.length > 2) {
  const [id, timestamp, signatures] = process.argv.slice(2);
  const genuine = verify(SECRET, id, timestamp, signatures, readFileSync(0));
  console.log(genuine ? "accepted" : "refused");
  process.exitCode = genuine ? 0 : 1;
} else {
  const server = createServer((request, response) => {
    const chunks = [];
    let length = 0;
    request.on("data", (chunk) => {
      length += chunk.length;
      if (length > MAX_BODY) request.destroy();
      else chunks.push(chunk);
    });
    request.on("end", () => response.writeHead(take(request.headers, Buffer.concat(chunks))).end());
  });
  server.listen(Number(process.env.PORT ?? 8000), "127.0.0.1", () => console.log("listening on", server.address().port));
}
