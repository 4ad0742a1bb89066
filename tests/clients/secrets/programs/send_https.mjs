// Send the key to a URL and print the answer, with Node's https module as it is.
import https from "node:https";

const headers = { Authorization: `Bearer ${process.env.API_KEY}` };
https.get(process.argv[2], { headers }, (answer) => {
  process.exitCode = answer.statusCode === 200 ? 0 : 1;
  answer.pipe(process.stdout);
});
