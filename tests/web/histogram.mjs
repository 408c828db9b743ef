// Prints how often each count of ones comes for reward 0, with the browser's generator.
// Arguments: terms as JSON, number of draws.
import { Draws, parse, sampler } from "../../producers/web/shufflebandit.js";

const [terms, times] = process.argv.slice(2);
const noise = parse(JSON.parse(terms)), share = sampler(noise, new Draws());
const counts = new Array(noise.bits).fill(0);
for (let i = 0; i < Number(times); i++) counts[share()] += 1;
console.log(JSON.stringify(counts));
