// A module as products serve it: minified by terser, from .cache (which git ignores) or from npm.
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { fileURLToPath, pathToFileURL } from "node:url";

/* Its text; null if terser is not to be had, which fails in CI. */
export async function minified(module) {
  const folder = fileURLToPath(new URL("../../.cache/web/", import.meta.url));
  const main = `${folder}node_modules/terser/main.js`;
  try {
    if (!existsSync(main)) {
      mkdirSync(folder, { recursive: true });
      const wanted = ["install", "--no-save", "--no-audit", "--prefix", folder, "terser@5"];
      execFileSync("npm", wanted, { stdio: "ignore", timeout: 60_000 });
    }
    const terser = await import(pathToFileURL(main));
    return (await terser.minify(readFileSync(module, "utf8"), { module: true })).code;
  } catch (error) {
    if (process.env.CI === "true") throw error;
    return null;
  }
}
