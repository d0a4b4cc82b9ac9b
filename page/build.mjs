// build.mjs PACKAGES OUTPUT: bundles the page into OUTPUT: index.html, page.js and page.css. PACKAGES is the folder that
// page/install prints.
import { copyFileSync, mkdirSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const [packages, output] = process.argv.slice(2);
const source = dirname(fileURLToPath(import.meta.url));
const esbuild = createRequire(join(packages, "package.json"))("esbuild");

mkdirSync(output, { recursive: true });
await esbuild.build({
    entryPoints: { page: join(source, "src/main.js") },
    outdir: output,
    bundle: true,
    minify: true,
    format: "esm",
    target: ["es2022"],
    charset: "utf8",
    legalComments: "inline",
    nodePaths: [packages],
    logLevel: "warning",
});
copyFileSync(join(source, "index.html"), join(output, "index.html"));
