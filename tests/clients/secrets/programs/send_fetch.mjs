// Send the key to a URL and print the answer, with Node's own fetch as it is.
const answer = await fetch(process.argv[2], { headers: { Authorization: `Bearer ${process.env.API_KEY}` } });
process.stdout.write(await answer.text());
process.exitCode = answer.ok ? 0 : 1;
