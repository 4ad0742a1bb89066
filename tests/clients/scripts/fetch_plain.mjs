// Print what a URL returns, with Node's own fetch as it is.
const answer = await fetch(process.argv[2]);
process.stdout.write(await answer.text());
process.exitCode = answer.ok ? 0 : 1;
