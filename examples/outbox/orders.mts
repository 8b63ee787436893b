// An order service that publishes what it commits. See README.md beside it.
//
//     curl localhost:8000/orders -d '{"item": "tea", "quantity": 2}'
//
// The database is $ORDERS_DATABASE_URL, in PostgreSQL.
import { randomUUID } from "node:crypto";
import { createServer, type IncomingMessage } from "node:http";
import type { AddressInfo } from "node:net";
import pg from "pg";

type Order = { item: string; quantity: number };

const TABLES = `
  CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, item text NOT NULL, quantity integer NOT NULL);
  CREATE TABLE IF NOT EXISTS stock (item text PRIMARY KEY, quantity integer NOT NULL);
  INSERT INTO stock (item, quantity) VALUES ('tea', 10) ON CONFLICT DO NOTHING`;
const pool = new pg.Pool({ connectionString: process.env.ORDERS_DATABASE_URL });
pool.on("error", (error) => console.error("an idle connection was lost:", error.message));

/** There is not enough left. */
class SoldOut extends Error {}

/** Stores an order together with the event that tells of it: both, or neither. */
async function place({ item, quantity }: Order): Promise<string> {
  const order = randomUUID();
  const placed = JSON.stringify({ order, item, quantity });
  const client = await pool.connect();
  let committed = false;
  try {
    await client.query("BEGIN");
    await client.query("INSERT INTO orders (id, item, quantity) VALUES ($1, $2, $3)", [order, item, quantity]);
    const event = "INSERT INTO outbox (aggregate_id, event_type, payload) VALUES ($1, $2, $3)";
    await client.query(event, [order, "placed", placed]);
    const take = "UPDATE stock SET quantity = quantity - $1 WHERE item = $2 AND quantity >= $1";
    if ((await client.query(take, [quantity, item])).rowCount === 0) throw new SoldOut();
    await client.query("COMMIT");
    committed = true;
    return order;
  } finally {
    client.release(!committed); // Closing the connection rolls back.
  }
}

async function read(request: IncomingMessage): Promise<Order | undefined> {
  try {
    let text = "";
    for await (const chunk of request.setEncoding("utf8")) text += chunk;
    const { item, quantity } = JSON.parse(text);
    return typeof item === "string" && Number.isInteger(quantity) && quantity > 0 ? { item, quantity } : undefined;
  } catch {
    return undefined;
  }
}

async function answer(request: IncomingMessage): Promise<[number, object]> {
  const order = await read(request);
  if (!order) return [400, { error: 'expected {"item": "tea", "quantity": 2}' }];
  try {
    return [201, { order: await place(order) }];
  } catch (error) {
    if (error instanceof SoldOut) return [409, { error: "sold out" }];
    console.error(error);
    return [500, { error: "the order could not be stored" }];
  }
}

await pool.query(TABLES);
const server = createServer(async (request, response) => {
  const [status, body] = await answer(request);
  response.writeHead(status, { "content-type": "application/json" }).end(`${JSON.stringify(body)}\n`);
});
server.listen(Number(process.env.PORT ?? 8000), "127.0.0.1", () => {
  console.log("listening on", (server.address() as AddressInfo).port);
});
