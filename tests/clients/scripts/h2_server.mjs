// An HTTP/2 server, and nothing older: CERTIFICATE KEY. Prints its port, and is gone after a minute.
import { readFileSync } from "node:fs";
import { createSecureServer } from "node:http2";

const [cert, key] = process.argv.slice(2).map((path) => readFileSync(path));
const server = createSecureServer({ cert, key });
server.on("stream", (stream) => stream.end("hello over h2\n"));
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
setTimeout(() => process.exit(), 60_000);
