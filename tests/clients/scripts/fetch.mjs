// fetch through undici's ProxyAgent: PROXY URL
import { ProxyAgent, fetch } from "undici";

const [proxy, url] = process.argv.slice(2);
const agent = new ProxyAgent(proxy);
const answer = await fetch(url, { dispatcher: agent });
process.stdout.write(await answer.text());
await agent.close();
process.exitCode = answer.ok ? 0 : 1;
